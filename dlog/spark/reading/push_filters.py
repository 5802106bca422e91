"""Filters of a query that narrow its ranges: `pushFilters=true`.

Pure, but for `FilteredBatchReader`, which asks the cluster where a time is. Topic, partition and
offset are clipped exactly, so Spark need not look again; by time only what is before is left out,
for timestamps need not rise: Spark filters that too. Spark refuses a reader with `pushFilters`
unless `spark.sql.python.filterPushdown.enabled` is set, so it is one of its own.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from dlog.spark.options.offsets import OFFSET_MAX
from dlog.spark.reading.batch_reader import DlogBatchReader
from dlog.spark.reading.ranges import OffsetRange
from dlog.types import PartitionId, TopicPartition

if TYPE_CHECKING:
    from dlog.spark.reading.lookup import Lookup

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)  # noqa: UP017
_NEVER_NULL = ("topic", "partition", "offset", "timestamp")
_BOUNDS = (GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual, EqualTo, EqualNullSafe)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What filters keep: these topics (None: all), and numbers from low to high, inclusive."""

    topics: tuple[str, ...] | None = None
    partitions: tuple[int, ...] | None = None
    partition_low: int = 0
    partition_high: int = OFFSET_MAX
    offset_low: int = 0
    offset_high: int = OFFSET_MAX
    timestamp_ms: int = 0

    def has(self, topic: str, partition: int) -> bool:
        """Return whether anything of a partition is kept."""
        return (
            (self.topics is None or topic in self.topics)
            and (self.partitions is None or partition in self.partitions)
            and self.partition_low <= partition <= self.partition_high
        )

    def clip(self, wanted: OffsetRange) -> OffsetRange:
        """Return the part of a range that is kept; an empty one where nothing is."""
        start = max(wanted.start_offset, self.offset_low)
        end = min(wanted.end_offset, self.offset_high + 1)
        if not self.has(wanted.topic, wanted.partition) or start >= end:
            return replace(wanted, end_offset=wanted.start_offset)
        return replace(wanted, start_offset=start, end_offset=end)


def keep(kept: Kept, wanted: Filter) -> tuple[Kept, bool]:
    """Return what a further filter leaves, and whether it need not be looked at again."""
    attribute: tuple[str, ...] = getattr(wanted, "attribute", ())
    column = attribute[0] if len(attribute) == 1 else ""
    if isinstance(wanted, IsNotNull):
        return kept, column in _NEVER_NULL
    if column == "topic":
        return _keep_topics(kept, wanted)
    if column == "partition":
        return _keep_partitions(kept, wanted)
    if column == "offset":
        return _keep_offsets(kept, wanted)
    if column == "timestamp":
        return _keep_times(kept, wanted), False
    return kept, False


def _keep_topics(kept: Kept, wanted: Filter) -> tuple[Kept, bool]:
    if isinstance(wanted, EqualTo | EqualNullSafe) and isinstance(wanted.value, str):
        values: tuple[str, ...] = (wanted.value,)
    elif isinstance(wanted, In) and all(isinstance(each, str) for each in wanted.value):
        values = tuple(wanted.value)
    else:
        return kept, False
    topics = values if kept.topics is None else tuple(t for t in kept.topics if t in values)
    return replace(kept, topics=topics), True


def _keep_partitions(kept: Kept, wanted: Filter) -> tuple[Kept, bool]:
    if isinstance(wanted, In) and _are_numbers(wanted.value):
        values = tuple(wanted.value)
        before = kept.partitions
        both = values if before is None else tuple(p for p in before if p in values)
        return replace(kept, partitions=both), True
    found = _bounds(wanted)
    if found is None:
        return kept, False
    low = max(kept.partition_low, found[0])
    return replace(kept, partition_low=low, partition_high=min(kept.partition_high, found[1])), True


def _keep_offsets(kept: Kept, wanted: Filter) -> tuple[Kept, bool]:
    is_exact = True
    found = _bounds(wanted)
    if isinstance(wanted, In) and wanted.value and _are_numbers(wanted.value):
        found, is_exact = (min(wanted.value), max(wanted.value)), False
    if found is None:
        return kept, False
    low, high = max(kept.offset_low, found[0]), min(kept.offset_high, found[1])
    return replace(kept, offset_low=low, offset_high=high), is_exact


def _keep_times(kept: Kept, wanted: Filter) -> Kept:
    """Return what is not older; the rest of a filter on time stays with Spark."""
    if not isinstance(wanted, GreaterThan | GreaterThanOrEqual | EqualTo | EqualNullSafe):
        return kept
    if not isinstance(wanted.value, datetime) or wanted.value.tzinfo is None:
        return kept
    timestamp_ms = (wanted.value - _EPOCH) // timedelta(milliseconds=1)
    return replace(kept, timestamp_ms=max(kept.timestamp_ms, timestamp_ms))


def _bounds(wanted: Filter) -> tuple[int, int] | None:
    """Return the least and the greatest whole number that a comparison keeps."""
    if not isinstance(wanted, _BOUNDS) or not _are_numbers([wanted.value]):
        return None
    value = int(wanted.value)
    if isinstance(wanted, GreaterThan | GreaterThanOrEqual):
        return value + isinstance(wanted, GreaterThan), OFFSET_MAX
    if isinstance(wanted, LessThan | LessThanOrEqual):
        return 0, value - isinstance(wanted, LessThan)
    return value, value


def _are_numbers(values: Iterable[object]) -> bool:
    return all(isinstance(each, int) and not isinstance(each, bool) for each in values)


class FilteredBatchReader(DlogBatchReader):
    """A batch reader that leaves out what the query does not want."""

    kept = Kept()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take in what can be left out; yield the filters that Spark has to apply."""
        for each in filters:
            self.kept, is_done = keep(self.kept, each)
            if not is_done:
                yield each

    def narrow(self, lookup: "Lookup", ranges: list[OffsetRange]) -> list[OffsetRange]:
        """Return the parts of ranges that are wanted; asks where a time is, if one is named."""
        wanted = [found for found in map(self.kept.clip, ranges) if len(found)]
        if not self.kept.timestamp_ms or not wanted:
            return wanted
        keys = [TopicPartition(each.topic, PartitionId(each.partition)) for each in wanted]
        # After the ends were asked for: what is written meanwhile is not in the ranges anyway.
        found = lookup.at_timestamps(dict.fromkeys(keys, self.kept.timestamp_ms))
        late = []
        for key, each in zip(keys, wanted, strict=True):
            offset = found[key]
            low = each.end_offset if offset is None else offset
            late.append(replace(self.kept, offset_low=max(self.kept.offset_low, low)).clip(each))
        return [each for each in late if len(each)]
