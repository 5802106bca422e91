"""Format of log entries and of the records of the log file (docs/formats/raft-log.md).

Pure. An entry begins with its kind, whose numbers are those of pysyncobj:

    u8 0   commands: u32 count, then of each u8 what (0 command, 1 barrier), u32 length, bytes
    u8 1   nothing: the first entry of a leader's term, and the stub that begins a log
    u8 2   voters: uuid change id, the whole new set

A record of the file begins with its kind as well; see `Record`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from uuid import UUID

from dlogd.metadata.raft import voters as voter_sets
from dlogd.metadata.raft.voters import Voters
from dlogd.metadata.state.encoding import MalformedError, Reader, Writer

COMMANDS, NO_OP, VOTERS = 0, 1, 2
NO_OP_ENTRY = bytes([NO_OP])

ITEMS_BYTES_MAX = 4 << 20
"""Of the items of one entry or message, unless a single one is larger."""

Entry = tuple[bytes, int, int]
"""Bytes, index, term: the shape that pysyncobj wants."""


class What(IntEnum):
    """What an item of a commands entry is."""

    COMMAND = 0
    BARRIER = 1


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that somebody proposed."""

    what: What
    data: bytes

    @property
    def key(self) -> bytes:
        """Sixteen bytes that tell it from all others: the id of the command or the barrier."""
        return self.data[2:18] if self.what is What.COMMAND else self.data


def encode_items(items: Sequence[Item]) -> bytes:
    """Return the bytes of a commands entry."""
    writer = Writer()
    writer.u8(COMMANDS)
    write_items(writer, items)
    return bytes(writer.data)


def write_items(writer: Writer, items: Sequence[Item]) -> None:
    """Write a list of items."""
    writer.u32(len(items))
    for item in items:
        writer.u8(item.what)
        writer.u32(len(item.data))
        writer.data += item.data


def read_items(reader: Reader) -> tuple[Item, ...]:
    """Read a list of items; raise MalformedError."""
    items = []
    for _ in range(reader.count(5)):
        what = reader.u8()
        if what > What.BARRIER:
            raise MalformedError(f"unknown item {what}")
        items.append(Item(What(what), reader.raw(reader.u32())))
    return tuple(items)


def decode_items(entry: bytes) -> tuple[Item, ...]:
    """Return what is in a commands entry; raise MalformedError."""
    reader = Reader(entry, 1)
    items = read_items(reader)
    reader.expect_end()
    return items


def encode_voters(change_id: UUID, voters: Voters) -> bytes:
    """Return the bytes of a voters entry."""
    writer = Writer()
    writer.u8(VOTERS)
    writer.uuid(change_id)
    voter_sets.write(writer, voters)
    return bytes(writer.data)


def decode_voters(entry: bytes) -> tuple[UUID, Voters]:
    """Return change id and voters of a voters entry; raise MalformedError."""
    reader = Reader(entry, 1)
    change_id, voters = reader.uuid(), voter_sets.read(reader)
    reader.expect_end()
    return change_id, voters


class Record(IntEnum):
    """The first byte of a record in the log's file."""

    IDENTITY = 1  # i32 node id, uuid directory id
    BASE = 2  # i64 index, i64 term, voters: what stands before the first entry
    ENTRY = 3  # i64 index, i64 term, the rest: the entry
    CUT = 4  # i64 index: this entry and all after it are gone
    VOTE = 5  # i64 term, u8 whether there is a vote, i64 vote
    COMMIT = 6  # i64 index: all up to it is committed


def identity_record(node_id: int, directory_id: UUID) -> bytes:
    """Say whose log it is."""
    writer = Writer()
    writer.u8(Record.IDENTITY)
    writer.i32(node_id)
    writer.uuid(directory_id)
    return bytes(writer.data)


def base_record(index: int, term: int, voters: Voters) -> bytes:
    """Say where the log begins."""
    writer = Writer()
    writer.u8(Record.BASE)
    writer.i64(index)
    writer.i64(term)
    voter_sets.write(writer, voters)
    return bytes(writer.data)


def entry_record(entry: Entry) -> bytes:
    """Add an entry."""
    writer = Writer()
    writer.u8(Record.ENTRY)
    writer.i64(entry[1])
    writer.i64(entry[2])
    return bytes(writer.data) + entry[0]


def vote_record(term: int, vote: int | None) -> bytes:
    """Set term and vote."""
    writer = Writer()
    writer.u8(Record.VOTE)
    writer.i64(term)
    writer.boolean(vote is not None)
    writer.i64(0 if vote is None else vote)
    return bytes(writer.data)


def index_record(kind: Record, index: int) -> bytes:
    """Cut the log, or move its commit index."""
    writer = Writer()
    writer.u8(kind)
    writer.i64(index)
    return bytes(writer.data)
