"""Planning of Spark reads: no record is lost, and none comes twice, however ranges are cut."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.spark.errors import OptionError
from dlog.spark.options.offsets import from_json, parse_offsets, parse_partitions, to_json
from dlog.spark.reading.limits import backlog, limit_bytes, limit_offsets
from dlog.spark.reading.ranges import OffsetRange, split_ranges
from dlog.types import PartitionId, TopicPartition

OFFSETS = st.integers(0, 2**62)
PARTITIONS = st.builds(
    TopicPartition, st.text('ab-.é"', min_size=1, max_size=4), st.integers(0, 12).map(PartitionId)
)
RANGES = st.lists(
    st.tuples(st.integers(0, 2**40), st.integers(0, 5000) | st.integers(0, 2**40)), max_size=12
).map(
    lambda pairs: [
        OffsetRange(topic="t", partition=index, start_offset=first, end_offset=first + size)
        for index, (first, size) in enumerate(pairs)
    ]
)
STARTS_AND_ENDS = st.dictionaries(
    PARTITIONS, st.tuples(st.integers(0, 2**40), st.integers(-50, 50) | st.integers(0, 2**40))
).map(
    lambda found: (
        {key: first for key, (first, _) in found.items()},
        {key: max(first + size, 0) for key, (first, size) in found.items()},
    )
)


def covered(ranges: list[OffsetRange]) -> dict[int, list[tuple[int, int]]]:
    """Return of each partition the ranges, in order, neighbours joined."""
    joined: dict[int, list[tuple[int, int]]] = {}
    for each in ranges:
        parts = joined.setdefault(each.partition, [])
        if parts and parts[-1][1] == each.start_offset:
            parts[-1] = (parts[-1][0], each.end_offset)
        else:
            parts.append((each.start_offset, each.end_offset))
    return joined


@given(RANGES, st.none() | st.integers(1, 64), st.none() | st.integers(2**32, 2**41))
def test_tasks_cover_every_range_once_and_none_is_empty(
    ranges: list[OffsetRange], min_partitions: int | None, max_records: int | None
) -> None:
    tasks = split_ranges(ranges, min_partitions=min_partitions, max_records=max_records)
    assert all(len(task) > 0 for task in tasks)
    assert covered(tasks) == covered([each for each in ranges if len(each)])
    if max_records is not None:
        assert all(len(task) <= max_records for task in tasks)


@given(st.integers(1, 5000), st.integers(1, 700), st.integers(1, 64))
def test_small_limits_of_records_are_kept(size: int, max_records: int, min_partitions: int) -> None:
    whole = OffsetRange(topic="t", partition=0, start_offset=3, end_offset=3 + size)
    tasks = split_ranges([whole], min_partitions=min_partitions, max_records=max_records)
    assert all(0 < len(task) <= max_records for task in tasks)
    assert covered(tasks) == {0: [(3, 3 + size)]}


def test_wishes_beyond_all_measure_give_a_task_for_each_offset() -> None:
    whole = OffsetRange(topic="t", partition=0, start_offset=3, end_offset=103)
    started_s = time.monotonic()
    tasks = split_ranges([whole], min_partitions=2**31 - 1)
    assert [(each.start_offset, each.end_offset) for each in tasks] == [
        (offset, offset + 1) for offset in range(3, 103)
    ]
    assert time.monotonic() - started_s < 5


@given(RANGES, st.integers(1, 64))
def test_there_are_about_as_many_tasks_as_wanted(
    ranges: list[OffsetRange], min_partitions: int
) -> None:
    filled = [each for each in ranges if len(each) > 0]
    tasks = split_ranges(ranges, min_partitions=min_partitions)
    if len(filled) >= min_partitions:
        assert tasks == filled
    else:
        # Each share is rounded: half a task of each range, and those too small for a second one.
        assert len(tasks) <= min_partitions + len(filled)


@given(STARTS_AND_ENDS, st.integers(1, 2**41))
def test_a_limited_batch_moves_on_and_stays_behind_the_ends(
    both: tuple[dict[TopicPartition, int], dict[TopicPartition, int]], most: int
) -> None:
    start, latest = both
    ends = limit_offsets(most, start, latest)
    sizes = backlog(start, latest)
    assert ends.keys() == latest.keys()
    for key, end in ends.items():
        if key in sizes:
            assert start[key] < end <= latest[key]
        else:
            assert end == latest[key]
    taken = sum(ends[key] - start[key] for key in sizes)
    assert taken <= most + sum(1 for key in sizes if ends[key] - start[key] == 1)
    if sum(sizes.values()) <= most:
        assert ends == latest


@given(STARTS_AND_ENDS, st.integers(1, 2**41), st.integers(0, 2000))
def test_batches_under_a_limit_come_to_the_end(
    both: tuple[dict[TopicPartition, int], dict[TopicPartition, int]], most: int, size: int
) -> None:
    start, latest = both
    means = {key: float(size + number) for number, key in enumerate(latest)}
    for limit in ("offsets", "bytes"):
        position = dict(start)
        for _ in range(60):
            position = (
                limit_offsets(most, position, latest)
                if limit == "offsets"
                else limit_bytes(most, position, latest, means)
            )
            most *= 2
        assert position == latest


@given(st.dictionaries(PARTITIONS, OFFSETS))
def test_offsets_survive_a_checkpoint_and_are_always_written_alike(
    offsets: dict[TopicPartition, int],
) -> None:
    written = json.dumps(to_json(offsets))
    assert from_json(json.loads(written)) == offsets
    assert json.dumps(to_json(dict(reversed(offsets.items())))) == written
    assert parse_offsets("startingOffsets", written) == offsets


@pytest.mark.parametrize(
    "offsets",
    [17, None, [1], {"logOffset": 3}, {"t": {"0": "x"}}, {"t": {"0": -1}}, {"t": {"0": -7}}],
)
def test_what_is_no_offset_of_ours_in_a_checkpoint_is_told(offsets: Any) -> None:
    with pytest.raises(OptionError, match=r"\[DLOG_CHECKPOINT\] .* a new checkpointLocation"):
        from_json(offsets)


@given(st.dictionaries(PARTITIONS, OFFSETS))
def test_assigned_partitions_are_read_as_they_are_written(
    offsets: dict[TopicPartition, int],
) -> None:
    lists: dict[str, list[int]] = {}
    for key in offsets:
        lists.setdefault(key.topic, []).append(key.partition)
    assert parse_partitions("assign", json.dumps(lists)) == tuple(sorted(offsets))
