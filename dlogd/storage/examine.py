"""Look at one segment on disk after a stop: how far it is good, and what its indexes are worth.

Blocks, run by the engine. Decides nothing: `dlogd.storage.recovery` does, seeing all segments.
"""

from bisect import bisect_right
from dataclasses import dataclass, field

from dlog.batch.header import BATCH_STRUCT, HEADER_BYTES
from dlogd.storage import index, time_index
from dlogd.storage.entries import EntryHeader, LoadedEntries, load_entries, store_entries
from dlogd.storage.files import Directory, File
from dlogd.storage.scan import Fields, Window, batch_at, scan
from dlogd.storage.segment import IDX, TDX, file_name

Entries = list[tuple[int, int]]


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
    offsets: Entries = field(default_factory=list)
    times: Entries = field(default_factory=list)
    files_are_current: bool = False
    """Whether the index files hold exactly `offsets` and `times`."""
    max_timestamp_ms: int = time_index.NO_TIMESTAMP
    first_timestamp_ms: int = time_index.NO_TIMESTAMP
    epochs: list[tuple[int, int]] = field(default_factory=list)
    """(leader epoch, offset) at each change within what was scanned."""
    scanned_from: int = 0
    """Offset."""
    bytes_read: int = 0

    @property
    def indexed_position(self) -> int:
        """Position of the last indexed batch."""
        return self.offsets[-1][1] if self.offsets else 0

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
            self.files_are_current = False

    def reopen_times(self) -> None:
        """Take the last time entry of a closed segment away: it will be appended to."""
        if self.times and self.times[-1][1] == self.end_offset - self.base_offset:
            self.times.pop()

    def header(self, magic: bytes) -> EntryHeader:
        """Return the head that an index file should have."""
        mark = self.mark if magic == index.MAGIC else 0
        return EntryHeader(
            magic=magic, base_offset=self.base_offset, durable=self.durable, mark=mark
        )

    def store_indexes(self, directory: Directory, *, durable: bool) -> None:
        """Write both index files anew."""
        name = file_name(self.base_offset, IDX)
        header = self.header(index.MAGIC)
        store_entries(directory, name, header, index.ENTRY, self.offsets, durable=durable)
        name = file_name(self.base_offset, TDX)
        header = self.header(time_index.MAGIC)
        store_entries(directory, name, header, time_index.ENTRY, self.times, durable=durable)
        self.files_are_current = True


def quick_look(
    directory: Directory, file: File, base_offset: int, next_base: int
) -> Examined | None:
    """Return a closed segment by its indexes alone, when they say that it ends at `next_base`.

    Enough after a clean stop; None: the batches must be looked at.
    """
    found = Examined(base_offset=base_offset, size=file.size())
    offsets, times = _load(directory, found)
    if offsets is None or times is None or not (offsets.is_whole and times.is_whole):
        return None
    found.mark, found.durable = offsets.header.mark, offsets.header.durable
    found.offsets, found.times, found.files_are_current = offsets.entries, times.entries, True
    found.end_position, found.end_offset = found.size, next_base
    if not found.is_sealed or found.indexed_position >= found.size:
        return None
    found.max_timestamp_ms = found.times[-1][0]
    return found


def examine(
    directory: Directory, file: File, base_offset: int, *, durable: bool, interval_bytes: int
) -> Examined:
    """Walk over the batches from the last good index entry to where good ones end.

    `durable` is assumed when the index file does not tell. The indexes are completed in memory.
    """
    found = Examined(base_offset=base_offset, size=file.size(), durable=durable)
    offsets, times = _load(directory, found)
    if offsets is not None:
        found.mark, found.durable = offsets.header.mark, offsets.header.durable
    window = Window(file, found.size)
    start = _last_good_entry(window, found, offsets, times)
    found.scanned_from = base_offset + start[0]
    loaded = (len(found.offsets), len(found.times))
    visit = _Visitor(found, interval_bytes)
    end = scan(window, start[1], found.scanned_from, visit)
    found.end_position, found.end_offset = end.position, end.next_offset
    found.max_timestamp_ms = visit.max_timestamp_ms
    closing = (found.max_timestamp_ms, end.next_offset - base_offset)
    if times is not None and closing[1] and times.entries[len(found.times) :] == [closing]:
        found.times.append(closing)
        loaded = (loaded[0], len(found.times))
    found.files_are_current = (
        offsets is not None
        and times is not None
        and (offsets.is_whole and times.is_whole)
        and loaded == (len(found.offsets), len(found.times))
        and loaded == (len(offsets.entries), len(times.entries))
    )
    if end.position:
        found.first_timestamp_ms = BATCH_STRUCT.unpack(file.pread(HEADER_BYTES, 0))[8]
    found.bytes_read = window.bytes_read
    return found


def _load(
    directory: Directory, found: Examined
) -> tuple[LoadedEntries | None, LoadedEntries | None]:
    name = file_name(found.base_offset, IDX)
    offsets = load_entries(directory, name, found.header(index.MAGIC), index.ENTRY)
    name = file_name(found.base_offset, TDX)
    times = load_entries(directory, name, found.header(time_index.MAGIC), time_index.ENTRY)
    return offsets, times


def _last_good_entry(
    window: Window, found: Examined, offsets: LoadedEntries | None, times: LoadedEntries | None
) -> tuple[int, int]:
    """Keep the entries up to the last one that both indexes have and that names a good batch.

    Entries before a good one were durable before it, so they are good too. Returns its relative
    offset and position, (0, 0) when there is none.
    """
    if offsets is None or times is None:
        return 0, 0
    kept, kept_times = list(offsets.entries), times.entries
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


class _Visitor:
    """Adds what a walk over the batches sees to the examined segment."""

    def __init__(self, found: Examined, interval_bytes: int) -> None:
        self._found = found
        self._interval_bytes = interval_bytes
        self._indexed = found.indexed_position
        self._epoch = -1
        self.max_timestamp_ms = found.times[-1][0] if found.times else time_index.NO_TIMESTAMP

    def __call__(self, fields: Fields, position: int) -> None:
        if position - self._indexed >= self._interval_bytes:
            relative = fields[0] - self._found.base_offset
            self._found.offsets.append((relative, position))
            self._found.times.append((self.max_timestamp_ms, relative))
            self._indexed = position
        self.max_timestamp_ms = max(self.max_timestamp_ms, fields[8])
        if fields[2] != self._epoch:
            self._epoch = fields[2]
            self._found.epochs.append((fields[2], fields[0]))
