"""Where reads begin and end, of what a cluster says: partitions that options must name, times."""

from collections.abc import Iterable, Mapping
from typing import Any, cast

import pytest

from dlog.spark.errors import OptionError
from dlog.spark.options.options import parse_read_options
from dlog.spark.reading.bounds import Beginning, ending_offsets, starting_offsets
from dlog.spark.reading.lookup import Lookup
from dlog.types import PartitionId, TopicPartition

ZERO, ONE = (TopicPartition("t", PartitionId(number)) for number in (0, 1))
PARTITIONS = (ZERO, ONE)


class Cluster:
    """A topic of two partitions with offsets 10 to 19, one ms apart from 0 on."""

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return where they begin."""
        return dict.fromkeys(partitions, 10)

    def latest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return where they end."""
        return dict.fromkeys(partitions, 20)

    def at_timestamps(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]:
        """Return the first that is not older; None behind all."""
        return {key: 10 + time if time < 10 else None for key, time in timestamps_ms.items()}


class Busy(Cluster):
    """The same, but each question about its end finds a record more in partition 1, at 100 ms."""

    def __init__(self) -> None:
        self.count = 0

    def latest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return where they end, when one more was written."""
        self.count += 1
        return {key: 20 + self.count * (key == ONE) for key in partitions}

    def at_timestamps(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]:
        """Return the first that is not older, those that were written meanwhile among them."""
        found = super().at_timestamps(timestamps_ms)
        for key, time in timestamps_ms.items():
            if key == ONE and self.count and 10 <= time <= 100:
                found[key] = 20
        return found


def bounds(
    cluster: Cluster | None = None, **options: Any
) -> tuple[Beginning, dict[TopicPartition, int]]:
    """Return where a batch query begins and ends."""
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", **options}
    parsed = parse_read_options(given, is_streaming=False)
    lookup = cast(Lookup, cluster or Cluster())
    return (
        starting_offsets(lookup, parsed, PARTITIONS),
        ending_offsets(lookup, parsed, PARTITIONS),
    )


def test_words_and_offsets_and_times() -> None:
    begin, end = bounds()
    assert begin == Beginning({ZERO: 10, ONE: 10}, frozenset(), frozenset(PARTITIONS))
    assert end == {ZERO: 20, ONE: 20}
    begin, end = bounds(
        startingOffsets='{"t":{"0":-2,"1":13}}', endingOffsets='{"t":{"0":15,"1":-1}}'
    )
    assert begin == Beginning({ZERO: 10, ONE: 13}, frozenset(), frozenset({ZERO}))
    assert end == {ZERO: 15, ONE: 20}
    begin, end = bounds(startingTimestamp="3", endingOffsetsByTimestamp='{"t":{"0":5,"1":99}}')
    assert begin.offsets == {ZERO: 13, ONE: 13} and end == {ZERO: 15, ONE: 20}


def test_times_that_are_too_young_are_refused_or_the_end() -> None:
    times = {"startingOffsetsByTimestamp": '{"t":{"0":5,"1":99}}'}
    says = r"\[DLOG_NO_OFFSET_FOR_TIMESTAMP\].* t-1 and timestamp 99"
    with pytest.raises(OptionError, match=says):
        bounds(**times)
    begin, _ = bounds(**times, startingOffsetsByTimestampStrategy="latest")
    assert begin == Beginning({ZERO: 15, ONE: 20}, frozenset({ONE}))


def test_a_record_that_comes_while_its_time_is_looked_up() -> None:
    """It is not older than the time: what begins there begins with it, what ends there without."""
    young = {"startingTimestamp": "50", "startingOffsetsByTimestampStrategy": "latest"}
    begin, end = bounds(Busy(), **young, endingTimestamp="50")
    assert begin == Beginning({ZERO: 20, ONE: 20}, frozenset({ZERO}))
    assert end == {ZERO: 20, ONE: 20}
    begin, end = bounds(Busy(), **{**young, "startingTimestamp": "500"}, endingTimestamp="500")
    assert begin == Beginning({ZERO: 20, ONE: 21}, frozenset(PARTITIONS))
    assert end == {ZERO: 20, ONE: 22}


@pytest.mark.parametrize("end", ["starting", "ending"])
@pytest.mark.parametrize("named", ['{"t":{"0":5}}', '{"t":{"0":5,"1":5,"2":5}}', '{"u":{"0":5}}'])
def test_all_partitions_must_be_named_and_no_others(end: str, named: str) -> None:
    with pytest.raises(OptionError, match=r"\[KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED\].*t-1"):
        bounds(**{f"{end}Offsets": named})
    says = rf"\[KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED\].* of the {end[:-3]}.*t-1"
    with pytest.raises(OptionError, match=says):
        bounds(**{f"{end}OffsetsByTimestamp": named})
