"""Retention plan of a log: segments that are too old or too large. Pure.

Whole segments only, from the oldest on, as in Kafka: by time when the newest record of a segment is
older than the limit, by size while the rest is still at least the limit. A segment of which the
newest record is not known is not dropped by time (`dlogd.storage.log.retention_check`). The active
segment goes too when all of it is due; the log rolls first. `dlogd.storage.background_tasks`
carries plans out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dlog.types import Offset
from dlogd.storage.segment.segment_info import SegmentInfo

NO_LIMIT = -1
NEVER_MS = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPlan:
    """Drop everything below `trim_to`; with `roll`, start a new segment first."""

    trim_to: Offset
    roll: bool
    segment_count: int
    size_bytes: int
    reason: str  # `time`, `size` or both, for the log line


def plan_retention(
    segments: Sequence[SegmentInfo],
    *,
    retention_ms: int,
    retention_bytes: int,
    end_limit: Offset,
    timestamp_ms: int,
) -> RetentionPlan | None:
    """Return what to drop of `segments` (ascending, the active one last); None for nothing.

    Nothing at or beyond `end_limit`, the high watermark, is dropped.
    """
    by_time = _expired(segments, retention_ms, timestamp_ms)
    by_size = _surplus(segments, retention_bytes)
    count = max(by_time, by_size)
    while count and segments[count - 1].end_offset > end_limit:
        count -= 1
    # An active segment without records is not worth a roll.
    if count == len(segments) and count and segments[-1].size_bytes == 0:
        count -= 1
    if count == 0:
        return None
    reasons = [name for name, due in (("time", by_time), ("size", by_size)) if due]
    return RetentionPlan(
        trim_to=Offset(segments[count - 1].end_offset),
        roll=count == len(segments),
        segment_count=count,
        size_bytes=sum(segment.size_bytes for segment in segments[:count]),
        reason=" and ".join(reasons),
    )


def _expired(segments: Sequence[SegmentInfo], retention_ms: int, timestamp_ms: int) -> int:
    """Return how many segments from the first on are older than `retention_ms`."""
    if retention_ms == NO_LIMIT:
        return 0
    oldest_kept_ms = timestamp_ms - retention_ms
    count = 0
    for segment in segments:
        newest_ms = _newest_ms(segment)
        if newest_ms < 0 or newest_ms >= oldest_kept_ms:
            break
        count += 1
    return count


def _newest_ms(segment: SegmentInfo) -> int:
    """Return what counts as the newest timestamp of a segment; -1: it is not known.

    Records without a timestamp count with the last write of their file, as in Kafka. The timestamps
    of later records say nothing about them: a record may arrive long after its timestamp.
    """
    written_ms = segment.written_ms
    if not segment.is_known or (written_ms < 0 and not segment.is_decoded):
        return NEVER_MS
    if segment.max_timestamp_ms < 0 and segment.is_decoded:
        return written_ms
    return (
        segment.max_timestamp_ms
        if segment.is_decoded
        else max(segment.max_timestamp_ms, written_ms)
    )


def _surplus(segments: Sequence[SegmentInfo], retention_bytes: int) -> int:
    """Return how many segments from the first on can go with `retention_bytes` still left."""
    if retention_bytes == NO_LIMIT:
        return 0
    surplus = sum(segment.size_bytes for segment in segments) - retention_bytes
    count = 0
    for segment in segments:
        surplus -= segment.size_bytes
        if surplus < 0:
            break
        count += 1
    return count
