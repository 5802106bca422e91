"""Facts about a segment for retention and tools, as a value."""

from dataclasses import dataclass

from dlogd.storage.segment.segment import Segment
from dlogd.storage.segment.time_index import NO_TIMESTAMP


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentInfo:
    """One segment as it was at one moment."""

    base_offset: int
    end_offset: int  # exclusive
    size_bytes: int
    max_timestamp_ms: int  # -1: no record has one
    is_known: bool = True
    """Whether `max_timestamp_ms` is that of the records; else the heads of batches claim it."""
    is_decoded: bool = True
    """Whether the records of all batches could be read for that."""
    written_ms: int = NO_TIMESTAMP
    """When the file was last written, by the wall clock; -1: nobody has looked."""


def describe(segment: Segment, end_offset: int) -> SegmentInfo:
    """Describe a segment that ends before `end_offset`."""
    known, end_position = segment.known_times, segment.end_position
    newest_ms = known.newest_ms(end_position, segment.max_timestamp_ms)
    return SegmentInfo(
        base_offset=segment.base_offset,
        end_offset=end_offset,
        size_bytes=end_position,
        max_timestamp_ms=segment.max_timestamp_ms if newest_ms is None else newest_ms,
        is_known=newest_ms is not None,
        is_decoded=known.is_whole,
        written_ms=known.written_ms if known.written_end == end_position else NO_TIMESTAMP,
    )
