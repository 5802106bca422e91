"""Recovery of one segment after a stop: its good end, and the worth of its indexes.

Blocks, run by the engine. Decides nothing: `dlogd.storage.log.log_recovery` does, seeing all
segments.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import NamedTuple

from dlog.batch.header import BASE_OFFSET, BATCH_STRUCT, HEADER_BYTES, LEADER_EPOCH, MAX_TIME
from dlog.batch.record_times import age_of
from dlogd.storage.io.files import Directory, File
from dlogd.storage.segment import offset_index, time_index
from dlogd.storage.segment.batch_scan import Fields, OnRead, Window, batch_at, ignore_read, scan
from dlogd.storage.segment.index_files import (
    LoadedEntries,
    load_entries,
    load_last_entry,
    store_entries,
)
from dlogd.storage.segment.segment_indexes import INDEX_KINDS
from dlogd.storage.segment.segment_names import file_name
from dlogd.storage.segment.sparse_index import EntryHeader

Entries = list[tuple[int, int]]


class Place(NamedTuple):
    """Where a batch begins."""

    offset: int
    position: int


@dataclass(slots=True)
class Examined:
    """A segment as found on disk: good batches in [0, end_position), offsets to `end_offset`."""

    base_offset: int
    size: int
    """Of the file, with what is preallocated or bad."""
    end_position: int = 0
    end_offset: int = 0
    data_end: int = 0
    """Position after the last byte of the file that is not zero, or more."""
    durable: bool = True
    """Whether the segment was written under the flush policy `always`, as far as is known."""
    mark: int = 0
    """Everything below is on stable storage; 0: unknown."""
    index_count: int = 0
    times_count: int = 0
    indexed_position: int = 0
    """Of the last indexed batch."""
    offsets: Entries = field(default_factory=list)
    times: Entries = field(default_factory=list)
    """All entries, unless a quick look was enough."""
    files_are_current: bool = False
    """Whether the index files hold `offsets` and `times`."""
    files_are_whole: bool = False
    """Whether nothing else is in them, room to grow included."""
    max_timestamp_ms: int = time_index.NO_TIMESTAMP
    has_true_times: bool = False
    """Whether `times` and `max_timestamp_ms` were computed from the records."""
    is_decoded: bool = True
    """Whether the records of all batches could be decoded for that."""
    first_timestamp_ms: int = time_index.NO_TIMESTAMP
    epochs: list[tuple[int, int]] = field(default_factory=list)
    """(leader epoch, offset) at each change within what was scanned."""
    scanned_from: int = 0
    """Offset."""
    bytes_read: int = 0

    @property
    def is_sealed(self) -> bool:
        """Whether the segment was closed, trimmed and synced: nothing of it can be missing."""
        return (
            bool(self.times)
            and self.times[-1][1] == self.end_offset - self.base_offset
            and self.mark == self.end_position == self.size
        )

    def close_times(self) -> None:
        """Add the last time entry of a closed segment, unless it is there."""
        relative = self.end_offset - self.base_offset
        if relative and (not self.times or self.times[-1][1] < relative):
            self.times.append((self.max_timestamp_ms, relative))
            self.times_count = len(self.times)
            self.files_are_current = False

    def reopen_times(self) -> None:
        """Take the last time entry of a closed segment away: it will be appended to."""
        if self.times and self.times[-1][1] == self.end_offset - self.base_offset:
            self.times.pop()
            self.times_count -= 1

    def header(self, magic: bytes) -> EntryHeader:
        """Return the head that an index file should have."""
        mark = self.mark if magic == offset_index.MAGIC else 0
        return EntryHeader(
            magic=magic, base_offset=self.base_offset, durable=self.durable, mark=mark
        )

    def store_indexes(self, directory: Directory, *, durable: bool) -> None:
        """Write both index files anew."""
        for kind, entries in zip(INDEX_KINDS, (self.offsets, self.times), strict=True):
            name, header = file_name(self.base_offset, kind.suffix), self.header(kind.magic)
            store_entries(directory, name, header, kind.entry, entries, durable=durable)
        self.files_are_current = True


def quick_look(
    directory: Directory,
    file: File,
    base_offset: int,
    end_offset: int | None,
    on_read: OnRead = ignore_read,
) -> Examined | None:
    """Return a sealed segment by the ends of its indexes; None: the batches must be looked at.

    `end_offset` is where it must end, if that is known. `on_read` hears of reads of batches.
    """
    found = Examined(base_offset=base_offset, size=file.size())
    offsets, times = (
        load_last_entry(
            directory, file_name(base_offset, kind.suffix), found.header(kind.magic), kind.entry
        )
        for kind in INDEX_KINDS
    )
    if offsets is None or times is None or not times.count:
        return None
    found.mark, found.durable = offsets.header.mark, offsets.header.durable
    found.index_count, found.times_count = offsets.count, times.count
    found.indexed_position = offsets.entry[1]
    found.max_timestamp_ms = times.entry[0]
    found.has_true_times, found.is_decoded = times.header.is_true, times.header.is_decoded
    found.times = [times.entry]
    found.end_position = found.data_end = found.size
    found.end_offset = base_offset + times.entry[1]
    found.files_are_current = True
    if not found.is_sealed or end_offset not in (None, found.end_offset):
        return None
    if not found.indexed_position < found.size:
        return None
    found.first_timestamp_ms = _first_timestamp(file)
    start = Place(base_offset + offsets.entry[0], found.indexed_position)
    return found if _ends_well(file, found, start, on_read) else None


def _ends_well(file: File, found: Examined, start: Place, on_read: OnRead) -> bool:
    """Return whether good batches lead from the last index entry to the end."""
    window = Window(file, found.size, on_read)
    end = scan(window, start.position, start.offset, lambda *_: None)
    found.bytes_read = window.bytes_read
    return (end.position, end.next_offset) == (found.end_position, found.end_offset)


def _first_timestamp(file: File) -> int:
    head = file.pread(HEADER_BYTES, 0)
    return age_of(BATCH_STRUCT.unpack(head)) if len(head) == HEADER_BYTES else -1


def examine(
    directory: Directory,
    file: File,
    base_offset: int,
    *,
    durable: bool,
    interval_bytes: int,
    on_read: OnRead = ignore_read,
) -> Examined:
    """Walk over the batches from the last good index entry to where good ones end.

    `durable` is assumed when the index file does not tell. The indexes are completed in memory.
    """
    found = Examined(base_offset=base_offset, size=file.size(), durable=durable)
    offsets, times = _load(directory, found)
    if offsets is not None:
        found.mark, found.durable = offsets.header.mark, offsets.header.durable
    window = Window(file, found.size, on_read)
    start = _last_good_entry(window, found, offsets, times)
    found.scanned_from = base_offset + start[0]
    loaded = (len(found.offsets), len(found.times))
    visit = Visitor(found, interval_bytes)
    end = scan(window, start[1], found.scanned_from, visit)
    found.end_position, found.end_offset = end.position, end.next_offset
    found.max_timestamp_ms = visit.max_timestamp_ms
    closing = (found.max_timestamp_ms, end.next_offset - base_offset)
    if (
        times is not None
        and closing[1]
        and times.entries[len(found.times) : times.vouched] == [closing]
    ):
        found.times.append(closing)
        loaded = (loaded[0], len(found.times))
    if offsets is not None and times is not None:
        found.files_are_whole = offsets.is_whole and times.is_whole
        found.files_are_current = loaded == (len(found.offsets), len(found.times)) and loaded == (
            offsets.vouched,
            times.vouched,
        )
    if end.position:
        found.first_timestamp_ms = _first_timestamp(file)
    found.index_count, found.times_count = len(found.offsets), len(found.times)
    found.indexed_position = visit.indexed_position
    found.bytes_read = window.bytes_read
    return found


def _load(
    directory: Directory, found: Examined
) -> tuple[LoadedEntries | None, LoadedEntries | None]:
    offsets, times = (
        load_entries(
            directory,
            file_name(found.base_offset, kind.suffix),
            found.header(kind.magic),
            kind.entry,
        )
        for kind in INDEX_KINDS
    )
    return offsets, times


def _last_good_entry(
    window: Window, found: Examined, offsets: LoadedEntries | None, times: LoadedEntries | None
) -> tuple[int, int]:
    """Keep the entries up to the last one that both indexes have and that names a good batch.

    Entries before a good one were durable before it, so they are good too, if the checksum says
    that they are what was written. Returns its relative offset and position, (0, 0) without one.
    """
    if offsets is None or times is None:
        return 0, 0
    kept, kept_times = offsets.entries[: offsets.vouched], times.entries[: times.vouched]
    relatives = [entry[1] for entry in kept_times]
    while kept:
        relative, position = kept[-1]
        count = bisect_right(relatives, relative)
        if (
            count
            and relatives[count - 1] == relative
            and batch_at(window, position, found.base_offset + relative) is not None
        ):
            found.offsets, found.times = kept, kept_times[:count]
            return relative, position
        kept.pop()
    return 0, 0


class Visitor:
    """Adds what a walk over the batches sees to the examined segment."""

    def __init__(self, found: Examined, interval_bytes: int) -> None:
        self._found = found
        self._interval_bytes = interval_bytes
        self.indexed_position = found.offsets[-1][1] if found.offsets else 0
        self._epoch = -1
        self.max_timestamp_ms = found.times[-1][0] if found.times else time_index.NO_TIMESTAMP

    def __call__(self, fields: Fields, position: int) -> None:
        if position - self.indexed_position >= self._interval_bytes:
            relative = fields[BASE_OFFSET] - self._found.base_offset
            self._found.offsets.append((relative, position))
            self._found.times.append((self.max_timestamp_ms, relative))
            self.indexed_position = position
        self.max_timestamp_ms = max(self.max_timestamp_ms, fields[MAX_TIME])
        if fields[LEADER_EPOCH] != self._epoch:
            self._epoch = fields[LEADER_EPOCH]
            self._found.epochs.append((fields[LEADER_EPOCH], fields[BASE_OFFSET]))
