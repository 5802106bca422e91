"""Offsets of one partition that one task reads, and the division of large ones over tasks.

Pure; planned on the driver, pickled to where the task runs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from pyspark.sql.datasource import InputPartition

from dlog.types import ZERO_TOPIC_ID


@dataclass(frozen=True, kw_only=True)
class OffsetRange(InputPartition):
    """What one task reads: offsets from `start_offset` up to `end_offset`, exclusive.

    Invariant: 0 <= start_offset <= end_offset.
    """

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    is_from_earliest: bool = False
    """The query asked for what there is: records that go before the task begins are no loss."""
    topic_id: UUID = ZERO_TOPIC_ID
    """Of the topic that was planned; zero where it is not known: any of that name is read."""

    def __len__(self) -> int:
        return self.end_offset - self.start_offset

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start_offset}, {self.end_offset})"


def split_ranges(
    ranges: Iterable[OffsetRange],
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[OffsetRange]:
    """Return the ranges as tasks: no empty ones, in order, none lost and none twice.

    As Spark's KafkaOffsetRangeCalculator: first no task with more than `max_records` offsets; if
    these are still fewer than `min_partitions`, large ones are cut up in proportion, so that there
    are about that many. Ranges too small for a second task stay whole, and do not count then.
    """
    tasks = [each for each in ranges if len(each) > 0]
    if max_records is not None:
        tasks = [part for each in tasks for part in _cut(each, -(-len(each) // max_records))]
    if min_partitions is None or len(tasks) >= min_partitions:
        return tasks
    total = sum(map(len, tasks))
    whole = [_part_count(len(each), total, min_partitions) == 1 for each in tasks]
    left = total - sum(len(each) for each, is_whole in zip(tasks, whole, strict=True) if is_whole)
    wanted = max(min_partitions - sum(whole), 1)
    return [
        part
        for each, is_whole in zip(tasks, whole, strict=True)
        for part in _cut(each, 1 if is_whole else _part_count(len(each), left, wanted))
    ]


def _part_count(size: int, total: int, wanted: int) -> int:
    """Return the share of `wanted` tasks that a range gets, rounded half up, at least one."""
    return max((2 * size * wanted + total) // (2 * total), 1)


def _cut(whole: OffsetRange, count: int) -> Sequence[OffsetRange]:
    """Return `whole` in at most `count` parts, nearly equal, none of them empty."""
    parts = []
    start = whole.start_offset
    count = min(count, len(whole))
    for index in range(count):
        # The last one takes what rounding left over.
        end = start + (whole.end_offset - start) // (count - index)
        if end > start:
            parts.append(replace(whole, start_offset=start, end_offset=end))
        start = end
    return parts
