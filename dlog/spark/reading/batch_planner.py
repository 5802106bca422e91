"""Planner of a batch query: what it reads of each partition. Runs on the driver's host."""

from dataclasses import replace

from dlog.spark.errors import OptionError
from dlog.spark.options.offsets import Latest
from dlog.spark.options.options import ReadOptions
from dlog.spark.reading.bounds import ending_offsets, existing, starting_offsets
from dlog.spark.reading.lookup import Lookup
from dlog.spark.reading.loss import clip, on_loss, report_deleted
from dlog.spark.reading.ranges import OffsetRange
from dlog.types import ZERO_TOPIC_ID, TopicPartition


def plan_batch(lookup: Lookup, options: ReadOptions) -> list[OffsetRange]:
    """Return what a batch query reads of each partition, empty ranges included.

    Raises DataLossError where that is not there (or leaves it out), OptionError where an option
    does not fit what the cluster has.
    """
    lose = on_loss(options.fail_on_data_loss)
    assigned = existing(lookup, options)
    partitions = assigned.partitions
    beginning = starting_offsets(lookup, options, partitions)
    start, whole = beginning.offsets, beginning.whole
    end = ending_offsets(lookup, options, partitions)
    # Not asked for again: what goes between two questions is no loss to who reads what there is.
    earliest = {key: start[key] for key in whole}
    earliest.update(lookup.earliest(key for key in partitions if key not in whole))
    latest = end
    if not isinstance(options.ending, Latest):
        latest = lookup.latest(
            partitions,
            end,
            attempt_count=options.attempt_count,
            retry_interval_s=options.retry_interval_s,
        )
    there = [key for key in partitions if all(key in each for each in (start, end, earliest))]
    report_deleted((key for key in partitions if key not in there), lose)
    ranges = []
    for key in there:
        if start[key] > end[key]:
            raise _reversed(key, start[key], end[key])
        found = clip(key, start[key], end[key], earliest[key], latest.get(key), lose)
        topic_id = assigned.topic_ids.get(key.topic, ZERO_TOPIC_ID)
        ranges.append(replace(found, is_from_earliest=key in whole, topic_id=topic_id))
    return ranges


def _reversed(key: TopicPartition, start: int, end: int) -> OptionError:
    return OptionError(
        "RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
        f"The resolved start offset {start} is greater than the resolved end offset {end} for "
        f"topic {key.topic} partition {key.partition}.",
        "The start is behind the end of the log, or a timestamp and an offset do not fit.",
    )
