"""Offsets of one partition that one task reads, and the division of large ones over tasks.

Pure; planned on the driver, pickled to where the task runs.
"""

from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition


@dataclass(frozen=True, kw_only=True)
class OffsetRange(InputPartition):
    """What one task reads: offsets from `start_offset` up to `end_offset`, exclusive.

    Invariant: 0 <= start_offset <= end_offset.
    """

    topic: str
    partition: int
    start_offset: int
    end_offset: int

    def __len__(self) -> int:
        return self.end_offset - self.start_offset
