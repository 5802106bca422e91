"""Gaps: records that a reader cannot get, and the reason; reported, never skipped silently.

Pure; `dlog.client.consuming.fetcher` finds gaps, `dlog.client.consumer` hands them to the caller.
"""

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from dlog.errors import DlogError
from dlog.types import TopicPartition


class GapReason(Enum):
    """Why records are not there."""

    RETENTION = "retention"
    """They were deleted before they were read: by age, by size, or by somebody's order."""
    TRUNCATED = "truncated"
    """The log was cut back: what was read from `resume_offset` on is not in it (any more)."""
    RECREATED = "recreated"
    """The topic was deleted and created again; what comes is another log."""
    MISSING = "missing"
    """The log has a hole that no compaction explains."""


class Gap(NamedTuple):
    """A place where reading cannot go on as asked for."""

    topic_partition: TopicPartition
    reason: GapReason
    offset: int
    """The next offset that was wanted."""
    resume_offset: int
    """Where the next record is, or will be; below `offset` when the log was cut back."""

    @property
    def lost_count(self) -> int:
        """Offsets passed over: at most so many records are missing. 0 when reading goes back."""
        return max(0, self.resume_offset - self.offset)

    def __str__(self) -> str:
        where = f"{self.topic_partition} at offset {self.offset}"
        if self.reason is GapReason.RETENTION:
            return f"{where}: the log begins at {self.resume_offset} now, older records are deleted"
        if self.reason is GapReason.TRUNCATED:
            return f"{where}: the log was cut back to {self.resume_offset}"
        if self.reason is GapReason.RECREATED:
            return f"{where}: the topic was deleted and created again"
        return f"{where}: there is nothing before offset {self.resume_offset}"


class GapError(DlogError):
    """Reading met a gap and nobody was to be told; seek to `gap.resume_offset` to go on."""

    def __init__(self, gap: Gap) -> None:
        super().__init__(str(gap))
        self.gap = gap


OnGap = Callable[[Gap], None]
"""Called with each gap before the records behind it; what it raises, `poll` raises."""
