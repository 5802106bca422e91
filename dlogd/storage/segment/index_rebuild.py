"""Rebuild of both indexes of a segment from its batches.

A sealed segment is known up to its end, and so is what of the active one was indexed before it was
opened. Damage between the batches stays what it was: reads find it, and no entry leads into it.
Blocks, run by the engine while nobody else changes the segment.
"""

from dataclasses import dataclass

from dlog.batch.header import BASE_OFFSET
from dlogd.storage.io.files import Directory, File
from dlogd.storage.segment.batch_scan import (
    Fields,
    ScanEnd,
    Window,
    find_batch,
    plausible_head,
    scan,
)
from dlogd.storage.segment.segment import Segment, SegmentState
from dlogd.storage.segment.segment_examination import Examined, Visitor
from dlogd.storage.segment.segment_names import file_name

CANDIDATES_MAX = 8
"""So many places behind a damaged batch are tried: each costs a scan to the segment's end."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a segment beside its indexes; taken on the event loop's thread."""

    directory: Directory
    base_offset: int
    durable: bool
    mark: int
    end_position: int
    """Entries are made of the batches before it."""
    end_offset: int | None
    """The offset there, unless nobody knows it."""
    max_timestamp_ms: int
    is_closed: bool


@dataclass(frozen=True, slots=True)
class Reindexed:
    """How many entries the files have now, and where the first damage is."""

    index_count: int
    times_count: int
    max_timestamp_ms: int
    damaged_position: int | None


def known_of(segment: Segment) -> Known:
    """Return what a running log knows of a segment whose indexes cannot be opened."""
    is_closed = segment.state is not SegmentState.OPEN
    # What was appended since the segment was opened has its entries in memory.
    pending = segment.index.first_in_memory()
    end = segment.tail.end if is_closed else segment.flushed_position
    return Known(
        directory=segment.directory,
        base_offset=segment.base_offset,
        durable=segment.durable,
        mark=segment.flushed_position,
        end_position=end if pending is None else min(end, pending[1]),
        end_offset=segment.end_offset if is_closed else None,
        max_timestamp_ms=segment.max_timestamp_ms,
        is_closed=is_closed,
    )


def reindex(known: Known, interval_bytes: int) -> Reindexed:
    """Scan the segment from position 0 and store both indexes anew. Blocks. Raises OSError."""
    found = Examined(known.base_offset, known.end_position, durable=known.durable, mark=known.mark)
    file = known.directory.open(file_name(known.base_offset), read_only=True)
    try:
        damaged_position = _scan(file, known, found, interval_bytes)
    finally:
        file.close()
    if known.is_closed and known.end_offset is not None:
        found.end_offset = known.end_offset
        if damaged_position is not None:
            found.max_timestamp_ms = max(found.max_timestamp_ms, known.max_timestamp_ms)
        found.close_times()
    found.store_indexes(known.directory, durable=True)
    return Reindexed(len(found.offsets), len(found.times), found.max_timestamp_ms, damaged_position)


def _scan(file: File, known: Known, found: Examined, interval_bytes: int) -> int | None:
    """Collect the entries; return the position of the first damage."""
    window = Window(file, known.end_position)
    visit = Visitor(found, interval_bytes)
    end = scan(window, 0, known.base_offset, visit)
    damaged_position = None
    if not _is_end(end, known):
        damaged_position = end.position
        rest = _find_rest(file, known, end)
        if rest is not None:
            # Indexed in any case: who asks for what is lost is not led beyond it.
            visit.indexed_position = -interval_bytes
            scan(window, rest.position, rest.next_offset, visit)
    found.end_offset, found.max_timestamp_ms = end.next_offset, visit.max_timestamp_ms
    return damaged_position


def _is_end(end: ScanEnd, known: Known) -> bool:
    return end.position == known.end_position and known.end_offset in (None, end.next_offset)


def _find_rest(file: File, known: Known, damaged: ScanEnd) -> ScanEnd | None:
    """Return the first place behind the damage from which good batches lead to the known end.

    Others could lie within a record: somebody may keep segments in records.
    """
    position = damaged.position
    for _ in range(CANDIDATES_MAX):
        found = find_batch(file, position + 1, known.end_position, damaged.next_offset)
        if found is None:
            return None
        position = found
        window = Window(file, known.end_position)
        fields = plausible_head(window, position)
        if fields is not None and _is_end(
            scan(window, position, fields[BASE_OFFSET], _ignore), known
        ):
            return ScanEnd(position, fields[BASE_OFFSET])
    return None


def _ignore(_: Fields, __: int) -> None:
    """Only the end counts."""
