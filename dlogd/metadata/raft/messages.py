"""Messages between Raft nodes, and their bytes (docs/formats/raft-wire.md).

Pure. A message is a dict, as pysyncobj wants it, of a known type with exactly the fields of that
type; nothing else is ever encoded or decoded, and only MalformedError is raised. The first byte is
the type, then the fields follow in the order of the table.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dlogd.metadata.raft import entries as wire
from dlogd.metadata.raft import voters as voter_sets
from dlogd.metadata.state.encoding import MalformedError, Reader, Writer

Message = dict[str, Any]

MESSAGE_BYTES_MAX = 16 << 20
"""Of a frame between two nodes; a command has at most 4 MiB."""


@dataclass(frozen=True, slots=True)
class _Form:
    write: Callable[[Writer, Any], None]
    read: Callable[[Reader], Any]


def _write_blob(writer: Writer, value: bytes) -> None:
    writer.u32(len(value))
    writer.data += value


def _read_blob(reader: Reader) -> bytes:
    return reader.raw(reader.u32())


def _write_entries(writer: Writer, entries: list[wire.Entry]) -> None:
    writer.u32(len(entries))
    for command, index, term in entries:
        writer.i64(index)
        writer.i64(term)
        _write_blob(writer, command)


def _read_entries(reader: Reader) -> list[wire.Entry]:
    entries: list[wire.Entry] = []
    for _ in range(reader.count(21)):
        index, term, command = reader.i64(), reader.i64(), _read_blob(reader)
        if not command or command[0] > wire.VOTERS:
            raise MalformedError(f"entry {index} is of no known kind")
        if command[0] == wire.VOTERS:
            wire.decode_voters(command)
        if entries and (index != entries[-1][1] + 1 or term < entries[-1][2]):
            raise MalformedError(f"entry {index} of term {term} is out of order")
        entries.append((command, index, term))
    return entries


_I64 = _Form(Writer.i64, Reader.i64)
_U16 = _Form(Writer.u16, Reader.u16)
_I32 = _Form(Writer.i32, Reader.i32)
_BOOL = _Form(Writer.boolean, Reader.boolean)
_UUID = _Form(Writer.uuid, Reader.uuid)
_TEXT = _Form(Writer.text, Reader.text)
_BLOB = _Form(_write_blob, _read_blob)
_ENTRIES = _Form(_write_entries, _read_entries)
_VOTERS = _Form(voter_sets.write, voter_sets.read)
_ITEMS = _Form(wire.write_items, wire.read_items)

_FIELDS: dict[str, tuple[int, dict[str, _Form]]] = {
    "pre_vote": (1, {"term": _I64, "last_log_index": _I64, "last_log_term": _I64}),
    "pre_vote_reply": (2, {"term": _I64}),
    "request_vote": (3, {"term": _I64, "last_log_index": _I64, "last_log_term": _I64}),
    "response_vote": (4, {"term": _I64}),
    "append_entries": (
        5,
        {
            "term": _I64,
            "seq": _I64,
            "commit_index": _I64,
            "prevLogIdx": _I64,
            "prevLogTerm": _I64,
            "entries": _ENTRIES,
        },
    ),
    "next_node_idx": (
        6,
        {"term": _I64, "seq": _I64, "next_node_idx": _I64, "reset": _BOOL, "success": _BOOL},
    ),
    "stale_term": (7, {"term": _I64}),
    "timeout_now": (8, {"term": _I64}),
    "snapshot": (
        9,
        {"term": _I64, "index": _I64, "total": _I64, "position": _I64, "data": _BLOB},
    ),
    "snapshot_ack": (10, {"term": _I64, "index": _I64, "position": _I64}),
    "propose": (11, {"term": _I64, "items": _ITEMS}),
    "propose_refused": (12, {"term": _I64, "items": _ITEMS}),
    "admin": (
        13,
        {
            "request_id": _UUID,
            "operation": _TEXT,
            "node_id": _I32,
            "host": _TEXT,
            "port": _U16,
        },
    ),
    "admin_reply": (14, {"request_id": _UUID, "code": _I32, "text": _TEXT}),
    "voters": (15, {"voters": _VOTERS}),
}
_TYPES = {number: name for name, (number, _) in _FIELDS.items()}


def encode(message: Message) -> bytes:
    """Return the bytes of a message; raise MalformedError for what has none."""
    number, fields = _FIELDS[message["type"]]
    writer = Writer()
    writer.u8(number)
    for name, form in fields.items():
        form.write(writer, message[name])
    return bytes(writer.data)


def decode(data: bytes | memoryview) -> Message:
    """Return the message of some bytes; raise only MalformedError."""
    reader = Reader(data)
    name = _TYPES.get(reader.u8())
    if name is None:
        raise MalformedError("a message of no known type")
    message: Message = {"type": name}
    for field, form in _FIELDS[name][1].items():
        message[field] = form.read(reader)
    reader.expect_end()
    return message
