"""Content of segment files, read offline; never written.

Works on a stopped node's files, and on a running node's, whose last segment may then end in a batch
that is just being written. Judges by the same code as recovery
(`dlogd.storage.segment.batch_scan`). Used by `dlogctl.commands.segment` only.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from dlog.batch.header import (
    BASE_OFFSET,
    BATCH_STRUCT,
    LEADER_EPOCH,
    BatchHeader,
    follows_on,
    size_of,
)
from dlog.batch.record_times import head_limit, newest_of
from dlogd.storage.io.files import Directory, File
from dlogd.storage.segment import time_index
from dlogd.storage.segment.batch_scan import (
    Window,
    find_batch,
    find_data_end,
    has_good_crc,
    has_lost_sector,
    plausible_head,
)
from dlogd.storage.segment.index_files import LoadedEntries, load_entries
from dlogd.storage.segment.segment_indexes import INDEX_KINDS
from dlogd.storage.segment.segment_names import IDX, LOG, TDX, file_name, parse_name
from dlogd.storage.segment.sparse_index import EntryHeader

PROBLEMS_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlace:
    """One batch of a segment and where it stands."""

    position: int
    header: BatchHeader
    good_crc: bool


@dataclass(slots=True, kw_only=True)
class SegmentReport:
    """What a check found in one segment."""

    path: str
    base_offset: int
    next_offset: int
    batches: int = 0
    records: int = 0
    data_bytes: int = 0
    file_bytes: int = 0
    tail: str = "ends with the file"
    remarks: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def complain(self, problem: str) -> None:
        """Add a problem, unless there are too many to read."""
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)


def segment_bases(directory: Directory) -> list[int]:
    """Return the base offsets of the segments in a partition's directory, in order."""
    parsed = (parse_name(name) for name in directory.names())
    return [found[0] for found in parsed if found is not None and found[1] == LOG]


def iter_batches(file: File, start: int = 0) -> Iterator[BatchPlace]:
    """Yield each batch from position `start` until something is no batch."""
    window = Window(file, file.size())
    position = start
    while (fields := plausible_head(window, position)) is not None:
        header = BatchHeader(fields[BASE_OFFSET], size_of(fields), *fields[LEADER_EPOCH:])
        good = has_good_crc(window, position, fields)
        yield BatchPlace(position=position, header=header, good_crc=good)
        position += header.batch_bytes


def _load(directory: Directory, base_offset: int, suffix: str) -> LoadedEntries:
    (kind,) = [kind for kind in INDEX_KINDS if kind.suffix == suffix]
    header = EntryHeader(magic=kind.magic, base_offset=base_offset, durable=True)
    loaded = load_entries(directory, file_name(base_offset, suffix), header, kind.entry)
    if loaded is None:
        raise ValueError("the file is missing or has no header of this segment")
    return loaded


def iter_entries(directory: Directory, base_offset: int, suffix: str) -> list[tuple[int, int]]:
    """Return the entries of an index file: (offset, position) or (timestamp, offset).

    Raises ValueError when the file is not an index of this segment.
    """
    loaded = _load(directory, base_offset, suffix)
    if suffix == IDX:
        return [(base_offset + relative, position) for relative, position in loaded.entries]
    return [(timestamp_ms, base_offset + relative) for timestamp_ms, relative in loaded.entries]


def check_segment(directory: Directory, base_offset: int, next_base: int | None) -> SegmentReport:
    """Check one segment: every CRC, the row of offsets, what follows the data, both indexes.

    `next_base` is where the next segment begins; None for the last one.
    """
    file = directory.open(file_name(base_offset), read_only=True)
    try:
        report = SegmentReport(
            path=file.path,
            base_offset=base_offset,
            next_offset=base_offset,
            file_bytes=file.size(),
        )
        _Walk(directory, report).run(file)
        _check_tail(file, report, is_last=next_base is None)
    finally:
        file.close()
    if next_base is not None and report.next_offset != next_base:
        report.complain(f"ends before offset {report.next_offset}, the next begins at {next_base}")
    return report


class _Walk:
    """Walks over the good batches and looks at each index entry when its place comes."""

    def __init__(self, directory: Directory, report: SegmentReport) -> None:
        self._report = report
        # Position -> offset, and offset -> the largest timestamp below it.
        self._positions = {b: a for a, b in self._entries(directory, IDX)}
        self._has_true_times = False
        self._times = {b: a for a, b in self._entries(directory, TDX)}
        self._max_timestamp_ms = time_index.NO_TIMESTAMP

    def _entries(self, directory: Directory, suffix: str) -> list[tuple[int, int]]:
        try:
            found = iter_entries(directory, self._report.base_offset, suffix)
            loaded = _load(directory, self._report.base_offset, suffix)
            self._has_true_times = loaded.header.is_true
            if loaded.is_wrong:
                self._report.complain(
                    f"{suffix}: the checksum of its entries is wrong; nothing to do, dlogd rebuilds"
                    " it from the segment before use"
                )
            return found
        except ValueError as error:
            self._report.remarks.append(f"no {suffix}: {error}; the next start rebuilds it")
            return []

    def run(self, file: File) -> None:
        """Walk until something is not the batch that must come."""
        report = self._report
        for place in iter_batches(file):
            header = place.header
            if not follows_on(header, report.next_offset) or not place.good_crc:
                break
            self._check_entries(place.position)
            self._max_timestamp_ms = max(self._max_timestamp_ms, self._newest_ms(file, place))
            report.next_offset = header.next_offset
            report.batches += 1
            report.records += header.record_count
            report.data_bytes = place.position + header.batch_bytes
        self._check_entries(report.data_bytes)
        for position, offset in self._positions.items():
            if position < report.data_bytes:
                report.complain(f"index: no batch begins at position {position} (offset {offset})")
        for offset in self._times:
            if offset < report.next_offset:
                report.complain(f"time index: no batch begins with offset {offset}")

    def _newest_ms(self, file: File, place: BatchPlace) -> int:
        """Return the largest timestamp of a batch as the time index has counted it."""
        if not self._has_true_times:
            return place.header.max_timestamp_ms
        batch = memoryview(file.pread(place.header.batch_bytes, place.position))
        fields = BATCH_STRUCT.unpack_from(batch)
        newest_ms = newest_of(batch, fields)
        return head_limit(fields) if newest_ms is None else newest_ms

    def _check_entries(self, position: int) -> None:
        report = self._report
        offset = report.next_offset
        if self._positions.pop(position, offset) != offset:
            report.complain(f"index: the batch at position {position} has offset {offset}")
        timestamp_ms = self._times.pop(offset, self._max_timestamp_ms)
        if timestamp_ms != self._max_timestamp_ms:
            report.complain(
                f"time index: the largest timestamp below {offset} is {self._max_timestamp_ms}, "
                f"not {timestamp_ms}"
            )


def _check_tail(file: File, report: SegmentReport, *, is_last: bool) -> None:
    """Say what follows the last good batch."""
    start = report.data_bytes
    data_end = find_data_end(file, start, report.file_bytes)
    if start == report.file_bytes:
        return
    if data_end == start:
        report.tail = f"{report.file_bytes - start} preallocated bytes"
        if not is_last:
            report.complain(f"a closed segment has {report.file_bytes - start} bytes of zeros")
        return
    following = find_batch(file, start + 1, report.file_bytes, report.next_offset)
    if following is not None and not has_lost_sector(file, start, following, report.next_offset):
        report.tail = f"damaged from position {start} on"
        report.complain(
            f"damaged at position {start} (offset {report.next_offset}): a good batch follows at "
            f"{following}"
        )
    elif is_last:
        report.tail = f"torn: {data_end - start} bytes of a write that was never acknowledged"
    else:
        report.tail = f"damaged from position {start} on"
        report.complain(f"no good batch at position {start} (offset {report.next_offset})")
