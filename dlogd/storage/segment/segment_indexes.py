"""Indexes of a segment as one: each kind has a file, all are cut and closed together."""

from collections.abc import Sequence
from dataclasses import dataclass

from dlogd.storage.io.files import Directory, File
from dlogd.storage.segment import offset_index, time_index
from dlogd.storage.segment.index_files import BadEntriesError, finish_entries, open_entries
from dlogd.storage.segment.offset_index import OffsetIndex
from dlogd.storage.segment.record_timestamps import KnownTimes
from dlogd.storage.segment.segment_names import file_name
from dlogd.storage.segment.sparse_index import EntryHeader, OpenedEntries
from dlogd.storage.segment.time_index import TimeIndex

INDEX_KINDS = (offset_index.KIND, time_index.KIND)
"""Each segment has one index of each, in this order."""


class SegmentIndexes:
    """The offset index and the time index of a segment. Owner: the event loop's thread."""

    __slots__ = ("_all", "_base_offset", "offsets", "times")

    def __init__(self, base_offset: int, offsets_count: int = 0, times_count: int = 0) -> None:
        self._base_offset = base_offset
        self.offsets = OffsetIndex(base_offset, offsets_count)
        self.times = TimeIndex(base_offset, times_count)
        self._all = (self.offsets, self.times)

    @property
    def counts(self) -> list[int]:
        """How many entries each file has."""
        return [index.settled for index in self._all]

    def settle(self, position: int) -> None:
        """Everything below `position` is on stable storage: let entries reach their files."""
        for index in self._all:
            index.settle(position)

    def cut(self, position: int, offset: int) -> None:
        """Forget entries of batches at or beyond `position` (which begin at `offset` or later)."""
        for index in self._all:
            count = index.count_before(position, offset)
            assert count is not None, "an index is open before it is cut"
            index.cut(count)

    def close(self, end_offset: int, end_position: int, max_timestamp_ms: int) -> None:
        """Add the last time entry and settle all. Raises OSError."""
        relative = end_offset - self._base_offset
        last = self.times.entry(self.times.count - 1) if self.times.count else (0, 0)
        assert last is not None, "an index is open before it is closed"
        if relative > last[1]:
            self.times.add(max_timestamp_ms, relative, end_position)
        for index in self._all:
            index.settle_all(end_position)

    def note(self) -> list[File]:
        """Vouch in each file for its entries, and return the files. Raises OSError."""
        for index in self._all:
            index.note()
        files = self.files
        assert len(files) == len(self._all), "an index is open before it is closed"
        return files

    def set_headers(self, headers: Sequence[EntryHeader]) -> None:
        """Replace the heads of the files. Raises OSError."""
        for index, header in zip(self._all, headers, strict=True):
            index.set_header(header)

    def attach(self, opened: Sequence[OpenedEntries]) -> None:
        """Use the files that `open_files` brought."""
        for index, each in zip(self._all, opened, strict=True):
            index.attach(each)

    def replace_settled(self, counts: Sequence[int]) -> None:
        """The files, which are not open, were made again with so many entries each."""
        for index, count in zip(self._all, counts, strict=True):
            index.replace_settled(count)

    def forget_recent(self) -> None:
        """Keep in memory only entries that are not in the files."""
        for index in self._all:
            index.forget_recent()

    @property
    def files(self) -> list[File]:
        """The open files."""
        return [index.file for index in self._all if index.file is not None]

    def detach(self) -> list[File]:
        """Return the open files, to be closed by the caller, and forget them."""
        found = [index.detach() for index in self._all]
        return [file for file in found if file is not None]

    # -- files; these block and are run by the engine

    def open_files(
        self, directory: Directory, headers: Sequence[EntryHeader], *, writable: bool
    ) -> tuple[OpenedEntries, ...]:
        """Open all files; made when missing and `writable`. Blocks. Raises BadEntriesError."""
        opened: list[OpenedEntries] = []
        try:
            for index, header in zip(self._all, headers, strict=True):
                name, count = file_name(self._base_offset, index.kind.suffix), index.settled
                opened.append(open_entries(directory, name, header, count, writable=writable))
                if index is self.offsets and writable and not header.durable:
                    # Before a later segment has data: see `Segment.set_policy`.
                    opened[-1].file.sync()
        except (OSError, BadEntriesError):
            for each in opened:
                each.file.close()
            raise
        return tuple(opened)

    def finish(self, files: Sequence[File]) -> None:
        """Cut the files to their entries and bring them to stable storage. Blocks."""
        for index, file in zip(self._all, files, strict=True):
            finish_entries(file, index.settled)


def headers_of(
    base_offset: int, durable: bool, flushed_position: int, known: KnownTimes
) -> tuple[EntryHeader, EntryHeader]:
    """Return what should stand at the head of each index file of a segment."""
    return (
        EntryHeader(
            magic=offset_index.MAGIC,
            base_offset=base_offset,
            durable=durable,
            mark=flushed_position,
        ),
        EntryHeader(
            magic=time_index.MAGIC,
            base_offset=base_offset,
            durable=durable,
            is_true=known.is_true,
            is_decoded=known.is_decoded,
        ),
    )


@dataclass(frozen=True, slots=True)
class OpenedSegment:
    """The files of a segment that was opened for reading."""

    file: File
    indexes: tuple[OpenedEntries, ...]

    def fits(self, indexes: SegmentIndexes) -> bool:
        """Return whether the indexes are still those of the segment: it may have been cut."""
        return [opened.entries.total for opened in self.indexes] == indexes.counts

    @property
    def files(self) -> list[File]:
        """All open files."""
        return [self.file, *[opened.file for opened in self.indexes]]
