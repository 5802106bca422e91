"""Checks of data loss: each case is told by its name, and nothing else is."""

import pytest

from dlog.spark.errors import DataLossError
from dlog.spark.reading.limits import BatchGate
from dlog.spark.reading.loss import clip, fail_on_loss, plan_stream
from dlog.spark.reading.ranges import OffsetRange
from dlog.types import PartitionId, TopicPartition

A, B = (TopicPartition("t", PartitionId(number)) for number in (0, 1))
Offsets = dict[TopicPartition, int]


def plan(
    start: Offsets, end: Offsets, earliest: Offsets | None = None, latest: Offsets | None = None
) -> tuple[list[OffsetRange], list[str]]:
    """Return the ranges, and the classes of losses."""
    losses: list[str] = []
    earliest = dict.fromkeys(end, 0) if earliest is None else earliest
    ranges = plan_stream(
        start, end, earliest, end if latest is None else latest, lambda each, _: losses.append(each)
    )
    return ranges, losses


def span(key: TopicPartition, start: int, end: int) -> OffsetRange:
    return OffsetRange(topic=key.topic, partition=key.partition, start_offset=start, end_offset=end)


def test_nothing_is_said_where_nothing_is_lost() -> None:
    assert plan({A: 3, B: 5}, {A: 9, B: 5}) == ([span(A, 3, 9)], [])
    assert plan({A: 3}, {A: 3}, earliest={}) == ([], [])  # nothing to read: nothing was asked
    assert plan({A: 3}, {A: 9}, earliest={A: 3}) == ([span(A, 3, 9)], [])
    assert plan({A: 3}, {A: 3, B: 4}) == ([span(B, 0, 4)], [])  # an added partition
    assert plan({}, {}) == ([], [])
    assert plan({A: 3}, {A: 9}, latest={}) == ([span(A, 3, 9)], [])


def test_each_loss_has_its_name_and_the_rest_is_read() -> None:
    assert plan({A: 3, B: 1}, {A: 9}) == ([span(A, 3, 9)], ["PARTITIONS_DELETED"])
    assert plan({A: 3, B: 1}, {A: 9, B: 2}, earliest={A: 0}) == (
        [span(A, 3, 9)],
        ["PARTITIONS_DELETED"],
    )
    assert plan({A: 3}, {A: 2}) == ([], ["PARTITION_OFFSET_CHANGED"])
    assert plan({A: 3}, {A: 9}, earliest={A: 5}) == (
        [span(A, 5, 9)],
        ["COULD_NOT_READ_OFFSET_RANGE"],
    )
    assert plan({A: 3}, {A: 9}, earliest={A: 50}) == (
        [span(A, 9, 9)],
        ["COULD_NOT_READ_OFFSET_RANGE"],
    )
    assert plan({A: 3}, {A: 9}, latest={A: 7}) == (
        [span(A, 3, 7)],
        ["COULD_NOT_READ_OFFSET_RANGE"],
    )
    assert plan({A: 3}, {A: 3, B: 9}, earliest={A: 0, B: 4}) == (
        [span(B, 4, 9)],
        ["ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO"],
    )
    assert plan({A: 3}, {A: 3, B: 9}, earliest={A: 0}) == (
        [],
        ["INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS"],
    )


def test_a_loss_says_what_where_and_what_to_do() -> None:
    with pytest.raises(DataLossError) as error:
        clip(A, 3, 9, 5, None, fail_on_loss)
    text = str(error.value)
    assert text.startswith("[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] Could not read records ")
    assert "[3, 5) for topic partition t-0: the log starts at 5." in text
    assert "set the source option failOnDataLoss to false" in text


def test_a_small_batch_waits_but_the_first_one_and_not_for_ever() -> None:
    gate = BatchGate(10, 60.0)
    assert gate.is_open(1, 0.0)
    assert not gate.is_open(9, 1.0)
    assert gate.is_open(10, 2.0)
    assert not gate.is_open(9, 61.0)
    assert gate.is_open(0, 62.0)
