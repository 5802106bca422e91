"""Bounds of a read: options for beginnings and ends, turned into offsets.

Called by the planners of batches and streams, with a `Lookup` to ask.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dlog.offset_specs import EARLIEST, LATEST
from dlog.spark.errors import OptionError, SparkSourceError
from dlog.spark.options.offsets import (
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Earliest,
    Latest,
    describe_partitions,
)
from dlog.spark.options.options import ReadOptions
from dlog.spark.reading.lookup import Assigned, Lookup
from dlog.types import TopicPartition

Offsets = dict[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where a read begins."""

    offsets: Offsets
    passing: frozenset[TopicPartition] = frozenset()
    """Of these it is the log's end: where that is now, nobody can be told later."""
    whole: frozenset[TopicPartition] = frozenset()
    """Of these it is the log's beginning: what goes before it is read was never promised."""


def existing(lookup: Lookup, options: ReadOptions) -> Assigned:
    """Return the partitions of a query; raise when some that it names do not exist."""
    assigned = lookup.assigned(options.subscription)
    if assigned.missing:
        names = ", ".join(map(str, assigned.missing))
        raise SparkSourceError(
            "DLOG_UNKNOWN_TOPIC_OR_PARTITION",
            f"The cluster at {options.settings.bootstrap} has no {names}.",
            "Check the option that names it, and kafka.bootstrap.servers.",
        )
    return assigned


def starting_offsets(
    lookup: Lookup, options: ReadOptions, partitions: Sequence[TopicPartition]
) -> Beginning:
    """Return where each partition begins; raises OptionError where the option does not fit."""
    bound = options.starting
    if isinstance(bound, AtTimestamp | AtTimestamps):
        times = _timestamps(bound, partitions, "start")
        found = lookup.at_timestamps(times)
        young = [key for key, offset in found.items() if offset is None]
        if young and options.no_match == "error":
            (first, *_) = sorted(young)
            raise OptionError(
                "DLOG_NO_OFFSET_FOR_TIMESTAMP",
                f"No offset matched from request of topic-partition {first} and timestamp "
                f"{times[first]}.",
                "Set startingOffsetsByTimestampStrategy to latest to begin with what comes next.",
            )
        return Beginning(*_completed(lookup, times, found))
    offsets = _offsets(lookup, options, bound, partitions)
    if isinstance(bound, Latest):
        return Beginning(offsets, passing=frozenset(offsets))
    if isinstance(bound, Earliest):
        return Beginning(offsets, whole=frozenset(offsets))
    said = bound.offsets
    return Beginning(
        offsets,
        passing=frozenset(key for key in offsets if said.get(key) == LATEST),
        whole=frozenset(key for key in offsets if said.get(key) == EARLIEST),
    )


def ending_offsets(
    lookup: Lookup, options: ReadOptions, partitions: Sequence[TopicPartition]
) -> Offsets:
    """Return where each partition of a batch ends; raises OptionError where it does not fit."""
    bound = options.ending
    if isinstance(bound, AtTimestamp | AtTimestamps):
        times = _timestamps(bound, partitions, "end")
        offsets, _ = _completed(lookup, times, lookup.at_timestamps(times))
        return offsets
    return _offsets(lookup, options, bound, partitions)


def _offsets(
    lookup: Lookup,
    options: ReadOptions,
    bound: Earliest | Latest | AtOffsets,
    partitions: Sequence[TopicPartition],
) -> Offsets:
    if isinstance(bound, Earliest):
        return lookup.earliest(partitions)
    if isinstance(bound, Latest):
        return lookup.latest(partitions)
    if bound.offsets.keys() != frozenset(partitions):
        raise OptionError(
            "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED",
            "If startingOffsets or endingOffsets contain specific offsets, they must name all "
            f"partitions. {_compared(bound.offsets, partitions)}",
            "Use -1 for latest, -2 for earliest.",
        )
    first = lookup.earliest(key for key, offset in bound.offsets.items() if offset == EARLIEST)
    last = lookup.latest(key for key, offset in bound.offsets.items() if offset == LATEST)
    said = {key: offset for key, offset in bound.offsets.items() if offset >= 0}
    return {**said, **first, **last}


def _timestamps(
    bound: AtTimestamp | AtTimestamps, partitions: Sequence[TopicPartition], end: str
) -> Mapping[TopicPartition, int]:
    if isinstance(bound, AtTimestamp):
        return dict.fromkeys(partitions, bound.timestamp_ms)
    if bound.timestamps_ms.keys() != frozenset(partitions):
        raise OptionError(
            "KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED",
            f"The timestamps of the {end} must name all partitions. "
            f"{_compared(bound.timestamps_ms, partitions)}",
            "",
        )
    return bound.timestamps_ms


def _compared(said: Iterable[TopicPartition], partitions: Iterable[TopicPartition]) -> str:
    return f"Specified: {describe_partitions(said)}. Assigned: {describe_partitions(partitions)}."


def _completed(
    lookup: Lookup,
    times: Mapping[TopicPartition, int],
    found: Mapping[TopicPartition, int | None],
) -> tuple[Offsets, frozenset[TopicPartition]]:
    """Return the offsets that were found, the ends where no record is that young, and of which.

    One that is may be written between the two questions: the times are asked for again behind them.
    """
    ends = lookup.latest(key for key, offset in found.items() if offset is None)
    again = lookup.at_timestamps({key: times[key] for key in ends}) if ends else {}
    offsets = {key: offset for key, offset in {**found, **again}.items() if offset is not None}
    return {**ends, **offsets}, frozenset(ends.keys() - offsets)
