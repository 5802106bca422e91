"""Loss of records in a range: the checks of Spark's Kafka source, by their names.

Pure: what the cluster says is passed in. Gaps inside a log (compaction, markers of transactions)
are no loss; offsets before the log's start are, when the query has not read them.
"""

import logging
from collections.abc import Callable, Iterable

from dlog.spark.errors import DataLossError
from dlog.spark.options.offsets import PartitionOffsets, describe_partitions
from dlog.spark.reading.ranges import OffsetRange
from dlog.types import TopicPartition

OnLoss = Callable[[str, str], None]
"""Takes an error class and what happened; raises, or lets the query go on with what is left."""

CURE = (
    "Some data may have been lost because they are not available any more: they were deleted by "
    "retention, or the topic was deleted before all of it was processed. If the query shall go on "
    "in such cases with what is there, set the source option failOnDataLoss to false."
)
_log = logging.getLogger("dlog.spark")


def fail_on_loss(error_class: str, message: str) -> None:
    """End the query: `failOnDataLoss=true`."""
    raise DataLossError(f"KAFKA_DATA_LOSS.{error_class}", message, CURE)


def warn_of_loss(error_class: str, message: str) -> None:
    """Say it and go on: `failOnDataLoss=false`."""
    _log.warning("Data may be lost class=KAFKA_DATA_LOSS.%s reason=%s", error_class, message)


def on_loss(fail_on_data_loss: bool) -> OnLoss:
    """Return what to do about a loss."""
    return fail_on_loss if fail_on_data_loss else warn_of_loss


def plan_stream(
    start: PartitionOffsets,
    end: PartitionOffsets,
    earliest: PartitionOffsets,
    latest: PartitionOffsets,
    lose: OnLoss,
) -> list[OffsetRange]:
    """Return what a micro-batch from `start` to `end` reads, without what is gone.

    `earliest` and `latest` are of the partitions that exist; of those with nothing to read they
    may be missing. The same arguments give the same ranges: a batch may be planned again.
    """
    begins = {**start, **added_partitions(start, end, earliest, lose)}
    report_deleted((key for key in start if key not in end), lose)
    report_deleted(
        (key for key in end if key in start and start[key] < end[key] and key not in earliest),
        lose,
    )
    ranges = []
    for key, until in sorted(end.items()):
        if key not in begins:
            continue
        if until < begins[key]:
            report_change(key, begins[key], until, lose)
        elif begins[key] < until and key in earliest:
            ranges.append(clip(key, begins[key], until, earliest[key], latest.get(key), lose))
    return ranges


def added_partitions(
    start: PartitionOffsets, end: PartitionOffsets, earliest: PartitionOffsets, lose: OnLoss
) -> dict[TopicPartition, int]:
    """Return where partitions begin that the query has not read before: at 0, or it is a loss."""
    added = sorted(key for key in end if key not in start)
    missing = [key for key in added if key not in earliest]
    if missing:
        lose(
            "INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS",
            f"Cannot find initial offsets for partitions {describe_partitions(missing)}. "
            "They may have been deleted.",
        )
    for key in added:
        if earliest.get(key, 0) != 0:
            lose(
                "ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO",
                f"Added partition {key} starts from {earliest[key]} instead of 0.",
            )
    return {key: min(earliest[key], end[key]) for key in added if key in earliest}


def report_deleted(partitions: Iterable[TopicPartition], lose: OnLoss) -> None:
    """Say that partitions are gone of which something was still to be read."""
    gone = list(partitions)
    if gone:
        lose("PARTITIONS_DELETED", f"Partitions {describe_partitions(gone)} have been deleted.")


def report_recreated(topic: str, lose: OnLoss) -> None:
    """Say that a topic is another one than that which the query was reading."""
    lose(
        "PARTITIONS_DELETED",
        f"Topic {topic} has been deleted and created again: what the query had not read of it "
        "is gone, the new one is read from its beginning.",
    )


def report_change(key: TopicPartition, before: int, now: int, lose: OnLoss) -> None:
    """Say that a partition ends before where the query has read."""
    lose(
        "PARTITION_OFFSET_CHANGED",
        f"Partition {key} offset was changed from {before} to {now}. The start offset was set "
        "too high and this is the first batch, or the topic was created again or lost records.",
    )


def clip(
    key: TopicPartition, start: int, end: int, earliest: int, latest: int | None, lose: OnLoss
) -> OffsetRange:
    """Return the part of [start, end) that is there; the rest is a loss."""
    if start < earliest:
        _unreadable(key, start, min(earliest, end), f"the log starts at {earliest}", lose)
    if latest is not None and latest < end:
        _unreadable(key, max(latest, start), end, f"the log ends at {latest}", lose)
        end = max(start, latest)
    return OffsetRange(
        topic=key.topic,
        partition=key.partition,
        start_offset=min(max(start, earliest), end),
        end_offset=end,
    )


def _unreadable(key: TopicPartition, start: int, end: int, why: str, lose: OnLoss) -> None:
    lose(
        "COULD_NOT_READ_OFFSET_RANGE",
        f"Could not read records in offset [{start}, {end}) for topic partition {key}: {why}.",
    )
