"""Segment of a partition log: `<base offset>.log`, its indexes, tail in memory.

    <base offset, 20 digits>.log    whole record batches, one after the other from position 0,
                                    verbatim (docs/formats/record-batch.md)
    ... .idx, .tdx                  sparse indexes (docs/formats/index.md)

docs/formats/segment.md. While a segment is written its file may be longer than its data: space is
preallocated in steps, and the block after the last batch is padded; both are zeros. A segment that
is sealed ends with its last batch. What decides (flush, roll, delete) is elsewhere.
"""

import enum
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dlogd.storage.io.append_memory import AppendMemory
from dlogd.storage.io.files import Directory, File
from dlogd.storage.segment import offset_index, time_index
from dlogd.storage.segment.index_files import BadEntriesError, finish_entries, open_entries
from dlogd.storage.segment.offset_index import OffsetIndex
from dlogd.storage.segment.record_timestamps import KnownTimes
from dlogd.storage.segment.sparse_index import EntryHeader, OpenedEntries
from dlogd.storage.segment.tail_buffer import TailBuffer
from dlogd.storage.segment.time_index import NO_TIMESTAMP, TimeIndex

LOG = ".log"
INDEX_KINDS = (offset_index.KIND, time_index.KIND)
"""Each segment has one index of each, in this order."""
IDX, TDX = [kind.suffix for kind in INDEX_KINDS]
SUFFIXES = (IDX, TDX, LOG)
"""Of all files of a segment, in the order in which they are removed."""
SEGMENT_NAME = re.compile(rf"(\d{{20}})({'|'.join(map(re.escape, SUFFIXES))})")


def file_name(base_offset: int, suffix: str = LOG) -> str:
    """Return the name of a segment's file."""
    return f"{base_offset:020d}{suffix}"


def parse_name(name: str) -> tuple[int, str] | None:
    """Return (base offset, suffix) of a segment's file, None for any other name."""
    found = SEGMENT_NAME.fullmatch(name)
    return (int(found[1]), found[2]) if found else None


NEVER_MS = 1 << 62
"""For `roll_at_ms`: the age of the segment is unknown, or it has none."""


class SegmentState(enum.Enum):
    """Life of a segment; only forward."""

    CREATING = 1  # rolled to; its file is being made, batches wait in memory
    OPEN = 2  # has a file that is or was written
    SEALED = 3  # durable, trimmed, never written again (but truncation may reopen it)
    DROPPED = 4  # its files are gone; who holds it may still read


@dataclass(frozen=True, slots=True)
class OpenedSegment:
    """The files of a segment that was opened for reading."""

    file: File
    indexes: tuple[OpenedEntries, ...]

    def fits(self, segment: "Segment") -> bool:
        """Return whether the indexes are still those of the segment: it may have been cut."""
        counts = [opened.entries.total for opened in self.indexes]
        return counts == [index.settled for index in segment.indexes]

    @property
    def files(self) -> list[File]:
        """All open files."""
        return [self.file, *[opened.file for opened in self.indexes]]


class Segment:
    """A segment as the log, readers and senders see it.

    Invariant: flushed_position <= written_position <= tail.end.
    Owner: the event loop's thread. A reader that lets control return to the loop holds it by
    `acquire` / `release`; its file then stays open and readable even when the segment is dropped.
    """

    __slots__ = (
        "_references",
        "allocated_end",
        "base_offset",
        "bytes_expected",
        "cut_count",
        "direct",
        "directory",
        "durable",
        "end_offset",
        "extend_at",
        "file",
        "first_timestamp_ms",
        "flushed_position",
        "index",
        "indexed_position",
        "indexes",
        "known_times",
        "max_timestamp_ms",
        "on_read_error",
        "on_unused",
        "prepared",
        "roll_at_ms",
        "state",
        "tail",
        "times",
        "wait_position",
        "written_offset",
        "written_position",
        "zero_at",
        "zeroed_end",
    )

    def __init__(
        self,
        directory: Directory,
        base_offset: int,
        memory: AppendMemory,
        *,
        durable: bool,
        direct: bool,
        end: int = 0,
        prefix: bytes = b"",
    ) -> None:
        self.directory = directory
        self.base_offset = base_offset
        self.durable = durable
        self.direct = direct
        self.state = SegmentState.CREATING
        self.file: File | None = None
        self.tail = TailBuffer(memory, end, prefix)
        self.adopt_entries(0, 0)
        self.end_offset = base_offset  # of a closed segment; the log knows the active one's
        self.written_position = end
        self.written_offset = base_offset
        self.flushed_position = end
        self.allocated_end = 0
        self.bytes_expected = 0
        # More space is prepared when writes have passed this position.
        self.extend_at = 1 << 62
        # Of what is allocated, this much has been overwritten with zeros; more is when writes
        # have passed `zero_at`.
        self.zeroed_end = 0
        self.zero_at = 1 << 62
        # Writes must stay below: space beyond is being preallocated and zeroed at the moment.
        self.wait_position = 1 << 62
        self.prepared = False
        self.indexed_position = 0
        # By the heads of the batches, which may lie, unless `known_times` says otherwise.
        self.max_timestamp_ms = NO_TIMESTAMP
        self.known_times = KnownTimes()
        # Of the first batch, where the segment's age is known; by it and `segment.ms` it is rolled.
        self.first_timestamp_ms = NO_TIMESTAMP
        self.roll_at_ms = NEVER_MS
        # What streams the segment to a reader tells here that the file could not be read.
        self.on_read_error: Callable[[OSError], object] = _ignore
        self.on_unused: Callable[[Segment], None] | None = None
        # How often bytes were cut off: others may stand where they stood.
        self.cut_count = 0
        self._references = 0

    def __repr__(self) -> str:
        return f"Segment({self.base_offset}, {self.state.name}, {self.tail.end} bytes)"

    @property
    def path(self) -> str:
        """Path for messages."""
        return f"{self.directory.path}/{file_name(self.base_offset)}"

    @property
    def end_position(self) -> int:
        """Position after the last batch."""
        return self.tail.end

    def begin_age(self, first_timestamp_ms: int, segment_ms: int) -> None:
        """The first batch has this timestamp; NO_TIMESTAMP: there is none, or it has none."""
        self.first_timestamp_ms = first_timestamp_ms
        self.limit_age(segment_ms)

    def limit_age(self, segment_ms: int) -> None:
        """Be rolled at this age, which may be as long as a setting can say, and shorter later."""
        first_ms = self.first_timestamp_ms
        self.roll_at_ms = NEVER_MS if first_ms < 0 else first_ms + segment_ms

    # -- what readers use

    def acquire(self) -> None:
        """Keep the file open until `release`."""
        self._references += 1

    def release(self) -> None:
        """End what `acquire` began."""
        assert self._references > 0, "release without acquire"
        self._references -= 1
        if not self._references and self.on_unused is not None:
            self.on_unused(self)

    @property
    def is_acquired(self) -> bool:
        """Whether a reader holds the segment."""
        return self._references > 0

    def memory_view(self, position: int, length_max: int) -> memoryview | None:
        """Return bytes from memory, valid only until control returns to the loop.

        None: read them by the engine, at most up to `written_position`; what lies beyond that is
        always in memory.
        """
        return self.tail.memory_view(position, length_max)

    # -- indexes

    def add_entry(self, offset: int, position: int, end: int) -> None:
        """Index the batch that begins at `position` with `offset` and ends at `end`.

        To be called before `max_timestamp_ms` counts that batch.
        """
        relative = offset - self.base_offset
        self.index.add(relative, position, end)
        self.times.add(self.max_timestamp_ms, relative, end)
        self.indexed_position = position

    def adopt_entries(self, index_count: int, times_count: int) -> None:
        """Begin with what recovery found in the index files."""
        self.index = OffsetIndex(self.base_offset, index_count)
        self.times = TimeIndex(self.base_offset, times_count)
        self.indexes = (self.index, self.times)

    def settle(self, position: int) -> None:
        """Everything below `position` is on stable storage: let index entries reach their files."""
        for index in self.indexes:
            index.settle(position)

    @property
    def is_indexed(self) -> bool:
        """Whether the indexes can be searched."""
        return self.index.is_open or not self.index.settled

    def cut_indexes(self, position: int, offset: int) -> None:
        """Forget entries of batches at or beyond `position` (which begin at `offset` or later)."""
        self.cut_count += 1
        self.known_times.cut(position)
        for index in self.indexes:
            count = index.count_before(position, offset)
            assert count is not None, "an index is open before it is cut"
            index.cut(count)
        last = self.index.floor_position(position)
        self.indexed_position = last[1] if last is not None else 0
        self.index.mark(min(position, self.flushed_position))

    def close_indexes(self, end_offset: int) -> list[File]:
        """Add the last time entry, settle all, and return the files. Raises OSError."""
        relative = end_offset - self.base_offset
        last = self.times.entry(self.times.count - 1) if self.times.count else (0, 0)
        assert last is not None, "an index is open before it is closed"
        if relative > last[1]:
            self.times.add(self.max_timestamp_ms, relative, self.tail.end)
        known = self.known_times
        known.is_true = known.is_true or not known.is_claimed
        for index in self.indexes:
            index.settle_all(self.tail.end)
        self.times.set_header(self.headers()[1])
        self.index.mark(self.tail.end)
        for index in self.indexes:
            index.note()
        files = [index.file for index in self.indexes if index.file is not None]
        assert len(files) == len(self.indexes), "an index is open before it is closed"
        return files

    def set_policy(self, durable: bool, direct: bool) -> None:
        """Change how the segment is written; all that it holds must be on stable storage.

        That it is weak must be on stable storage before a later segment has data: a power cut may
        take the pages of this one only, which would be damage under the policy `always`.
        """
        self.durable, self.direct = durable, direct
        if self.index.is_open:
            for index, header in zip(self.indexes, self.headers(), strict=True):
                index.set_header(header)

    def attach_indexes(self, opened: Sequence[OpenedEntries]) -> None:
        """Use the files that `open_indexes` brought."""
        for index, each in zip(self.indexes, opened, strict=True):
            index.attach(each)

    def replace_settled(self, counts: Sequence[int]) -> None:
        """The index files, which are not open, were made again with so many entries each."""
        for index, count in zip(self.indexes, counts, strict=True):
            index.replace_settled(count)

    def forget_recent_entries(self) -> None:
        """Keep in memory only entries that are not in the files."""
        for index in self.indexes:
            index.forget_recent()

    # -- files; these block and are run by the engine

    def headers(self) -> tuple[EntryHeader, EntryHeader]:
        """Return what should stand at the head of each index file."""
        base, durable, mark = self.base_offset, self.durable, self.flushed_position
        known = self.known_times
        return (
            EntryHeader(magic=offset_index.MAGIC, base_offset=base, durable=durable, mark=mark),
            EntryHeader(
                magic=time_index.MAGIC,
                base_offset=base,
                durable=durable,
                is_true=known.is_true,
                is_decoded=known.is_decoded,
            ),
        )

    def create_file(self) -> File:
        """Make the segment's file, so that it is there after a power cut. Blocks."""
        file = self.directory.open(file_name(self.base_offset), create=True, direct=self.direct)
        try:
            self.directory.sync()
        except OSError:
            file.close()
            raise
        return file

    def open_file(self) -> File:
        """Open the segment's file for writing. Blocks."""
        return self.directory.open(file_name(self.base_offset), direct=self.direct)

    def open_indexes(self, *, writable: bool) -> tuple[OpenedEntries, ...]:
        """Open all index files; made when missing and `writable`. Blocks.

        Raises BadEntriesError when one does not hold what it should:
        `dlogd.storage.segment.index_rebuild` makes all of them again.
        """
        opened: list[OpenedEntries] = []
        try:
            for index, header in zip(self.indexes, self.headers(), strict=True):
                name, count = file_name(self.base_offset, index.kind.suffix), index.settled
                opened.append(open_entries(self.directory, name, header, count, writable=writable))
                if index is self.index and writable and not self.durable:
                    opened[-1].file.sync()  # before a later segment has data: see `set_policy`
        except (OSError, BadEntriesError):
            close_files([each.file for each in opened])
            raise
        return tuple(opened)

    def open_for_reading(self) -> OpenedSegment:
        """Open all files of a sealed segment. Blocks."""
        name = file_name(self.base_offset)
        file = self.directory.open(name, direct=self.direct, read_only=True)
        try:
            indexes = self.open_indexes(writable=False)
        except (OSError, BadEntriesError):
            file.close()
            raise
        return OpenedSegment(file, indexes)

    def finish_files(self, index_files: Sequence[File]) -> None:
        """Trim the files to their content and bring them to stable storage. Blocks."""
        assert self.file is not None
        self.file.truncate(self.tail.end)
        self.file.sync()
        for index, file in zip(self.indexes, index_files, strict=True):
            finish_entries(file, index.settled)

    def detach_files(self) -> list[File]:
        """Return the open files, to be closed by the caller, and forget them."""
        found = [self.file, *[index.detach() for index in self.indexes]]
        self.file = None
        self.prepared = False
        return [file for file in found if file is not None]


def _ignore(_: OSError) -> None:
    """Nobody asked to be told."""


def close_files(files: list[File]) -> None:
    """Close all of `files`. Blocks."""
    for file in files:
        file.close()


class SegmentRange(NamedTuple):
    """Bytes [position, position + length) of a segment: whole batches.

    What follows may be read up to `readable_end`: it is in the file and below the same end offset.
    """

    segment: Segment
    position: int
    length: int
    readable_end: int
