"""Segment of a partition log: `<base offset>.log`, its indexes, tail in memory.

    <base offset, 20 digits>.log    whole record batches, one after the other from position 0,
                                    verbatim (docs/formats/record-batch.md)
    ... .idx, .tdx                  sparse indexes (docs/formats/index.md)

docs/formats/segment.md. While a segment is written its file may be longer than its data: space is
preallocated in steps, and the block after the last batch is padded; both are zeros. A segment that
is sealed ends with its last batch. What decides (flush, roll, delete) is elsewhere.
"""

import enum
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dlogd.storage.io.append_memory import AppendMemory
from dlogd.storage.io.files import Directory, File
from dlogd.storage.segment.index_files import BadEntriesError
from dlogd.storage.segment.record_timestamps import KnownTimes
from dlogd.storage.segment.segment_examination import Examined
from dlogd.storage.segment.segment_indexes import OpenedSegment, SegmentIndexes, headers_of
from dlogd.storage.segment.segment_names import file_name
from dlogd.storage.segment.segment_space import NEVER, SegmentSpace
from dlogd.storage.segment.sparse_index import EntryHeader, OpenedEntries
from dlogd.storage.segment.tail_buffer import TailBuffer
from dlogd.storage.segment.time_index import NO_TIMESTAMP

NEVER_MS = NEVER
"""For `roll_at_ms`: the age of the segment is unknown, or it has none."""


class SegmentState(enum.Enum):
    """Life of a segment; only forward."""

    CREATING = 1  # rolled to; its file is being made, batches wait in memory
    OPEN = 2  # has a file that is or was written
    SEALED = 3  # durable, trimmed, never written again (but truncation may reopen it)
    DROPPED = 4  # its files are gone; who holds it may still read


class Segment:
    """A segment as the log, readers and senders see it.

    Invariant: flushed_position <= written_position <= tail.end. Its fields are assigned here alone.
    Owner: the event loop's thread. A reader that lets control return to the loop holds it by
    `acquire` / `release`; its file then stays open and readable even when the segment is dropped.
    """

    __slots__ = (
        "_references",
        "base_offset",
        "bytes_expected",
        "cut_count",
        "direct",
        "directory",
        "durable",
        "end_offset",
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
        "space",
        "state",
        "tail",
        "times",
        "written_offset",
        "written_position",
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
        self._set_indexes(SegmentIndexes(base_offset))
        self.end_offset = base_offset  # of a closed segment; the log knows the active one's
        self.written_position = end
        self.written_offset = base_offset
        self.flushed_position = end
        self.space = SegmentSpace()
        self.bytes_expected = 0
        self.prepared = False
        self.indexed_position = 0
        # By the heads of the batches, which may lie, unless `known_times` says otherwise.
        self.max_timestamp_ms = NO_TIMESTAMP
        self.known_times = KnownTimes()
        # Of the first batch, where the segment's age is known; by it and `segment.ms` it is rolled.
        self.first_timestamp_ms = NO_TIMESTAMP
        self.roll_at_ms = NEVER_MS
        # What streams the segment to a reader tells here that the file could not be read.
        self.on_read_error: Callable[[OSError], object] = lambda _: None
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

    # -- appends

    def expect(self, bytes_expected: int) -> None:
        """The segment will be about that long."""
        self.bytes_expected = bytes_expected

    def add_entry(self, offset: int, position: int, end: int) -> None:
        """Index the batch that begins at `position` with `offset` and ends at `end`.

        To be called before `max_timestamp_ms` counts that batch.
        """
        relative = offset - self.base_offset
        self.index.add(relative, position, end)
        self.times.add(self.max_timestamp_ms, relative, end)
        self.indexed_position = position

    def set_newest(self, timestamp_ms: int) -> None:
        """The heads of the batches have this largest timestamp."""
        self.max_timestamp_ms = timestamp_ms

    def note_written(self, position: int, offset: int) -> None:
        """The file has everything up to here; on stable storage if the segment is durable."""
        self.written_position, self.written_offset = position, offset
        if self.durable:
            self.flushed_position = position

    def note_flushed(self, position: int) -> None:
        """Everything below `position` is on stable storage."""
        self.flushed_position = max(self.flushed_position, position)
        self.index.mark(self.flushed_position)

    # -- life

    def prepare(self) -> None:
        """The indexes are being opened."""
        self.prepared = True

    def open_with(self, file: File) -> None:
        """Use a file to be written."""
        self.file, self.state = file, SegmentState.OPEN

    def replace_file(self, file: File) -> None:
        """Use another file; the one before it was detached."""
        self.file = file

    def attach(self, opened: OpenedSegment) -> None:
        """Use the files that `open_for_reading` brought."""
        self.file = opened.file
        self.indexes.attach(opened.indexes)

    def end_at(self, offset: int) -> None:
        """Another segment begins at `offset`."""
        self.end_offset = offset

    def seal(self) -> None:
        """The files are finished."""
        self.state = SegmentState.SEALED
        self.indexes.forget_recent()

    def drop(self) -> None:
        """The files are being removed."""
        self.state = SegmentState.DROPPED

    def reopen(self) -> None:
        """The segment, which was sealed, is written again; its files were replaced."""
        self.state = SegmentState.OPEN
        self.space.adopt(self.tail.end)

    def adopt(self, found: Examined) -> None:
        """Begin with what recovery found; everything is on stable storage."""
        self.durable, self.state = found.durable, SegmentState.SEALED
        self._set_indexes(SegmentIndexes(self.base_offset, found.index_count, found.times_count))
        self.indexed_position = found.indexed_position
        self.end_offset = self.written_offset = found.end_offset
        self.max_timestamp_ms = found.max_timestamp_ms
        has_batches = found.end_position > 0
        self.known_times.adopt(
            is_true=found.has_true_times, is_decoded=found.is_decoded, has_batches=has_batches
        )

    def adopt_active(self, file: File, size: int, *, durable: bool) -> None:
        """Go on as the active segment after `adopt`; the file has `size` bytes."""
        self.open_with(file)
        self.known_times.reopen()
        self.durable = durable
        self.space.adopt(size)

    def set_policy(self, durable: bool, direct: bool) -> None:
        """Change how the segment is written; all that it holds must be on stable storage.

        That it is weak must be on stable storage before a later segment has data: a power cut may
        take the pages of this one only, which would be damage under the policy `always`.
        """
        self.durable, self.direct = durable, direct
        if self.index.is_open:
            self.indexes.set_headers(self.headers())

    def begin_rewrite(self, durable: bool, direct: bool) -> None:
        """The segment will be written again under this policy; its files still say otherwise."""
        self.known_times.doubt()
        self.durable, self.direct = durable, direct

    def cut_to(self, position: int, offset: int, prefix: bytes) -> None:
        """End at `position` with `offset` as the active segment; the file was cut already.

        `prefix` is the last partial block before `position`. Indexes are cut by `cut_indexes`.
        """
        self.tail.reset(position, prefix)
        self.written_position = self.flushed_position = position
        self.written_offset = offset
        self.space.cut(position)
        self.prepared = True

    # -- indexes

    def _set_indexes(self, indexes: SegmentIndexes) -> None:
        self.indexes, self.index, self.times = indexes, indexes.offsets, indexes.times

    @property
    def is_indexed(self) -> bool:
        """Whether the indexes can be searched."""
        return self.index.is_open or not self.index.settled

    def cut_indexes(self, position: int, offset: int) -> None:
        """Forget entries of batches at or beyond `position` (which begin at `offset` or later)."""
        self.cut_count += 1
        self.known_times.cut(position)
        self.indexes.cut(position, offset)
        last = self.index.floor_position(position)
        self.indexed_position = last[1] if last is not None else 0
        self.index.mark(min(position, self.flushed_position))

    def close_indexes(self, end_offset: int) -> list[File]:
        """Add the last time entry, settle all, and return the files. Raises OSError."""
        self.known_times.close()
        self.indexes.close(end_offset, self.tail.end, self.max_timestamp_ms)
        self.times.set_header(self.headers()[1])
        self.index.mark(self.tail.end)
        return self.indexes.note()

    def rebuild_indexes(self, counts: Sequence[int], max_timestamp_ms: int) -> None:
        """The index files, which are not open, were made again from the batches' heads."""
        self.indexes.replace_settled(counts)
        if self.state is not SegmentState.OPEN:
            self.max_timestamp_ms = max_timestamp_ms
        self.known_times.rebuild()

    def remember_times(self, opened: OpenedEntries, newest_ms: int, *, is_decoded: bool) -> None:
        """Use a time index that was made of the records."""
        self.times.attach(opened)
        self.max_timestamp_ms = newest_ms
        self.known_times.remember(is_decoded=is_decoded)

    # -- files; these block and are run by the engine

    def headers(self) -> tuple[EntryHeader, EntryHeader]:
        """Return what should stand at the head of each index file."""
        return headers_of(self.base_offset, self.durable, self.flushed_position, self.known_times)

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
        return self.indexes.open_files(self.directory, self.headers(), writable=writable)

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
        self.indexes.finish(index_files)

    def detach_files(self) -> list[File]:
        """Return the open files, to be closed by the caller, and forget them."""
        found = [] if self.file is None else [self.file]
        found += self.indexes.detach()
        self.file = None
        self.prepared = False
        return found


class SegmentRange(NamedTuple):
    """Bytes [position, position + length) of a segment: whole batches.

    What follows may be read up to `readable_end`: it is in the file and below the same end offset.
    """

    segment: Segment
    position: int
    length: int
    readable_end: int
