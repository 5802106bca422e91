"""The planning of micro-batches by itself, without a JVM: what Spark's calls are answered."""

import json
import pickle
import time
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)

from dlog.client.blocking import Admin
from dlog.spark.errors import DataLossError, SparkSourceError
from dlog.spark.reading.stream_reader import DlogStreamReader
from tests.spark.log import DAY_MS, Log
from tests.spark.planners import ALL, reader_of, spans

LAX = {"failOnDataLoss": "false", "fetchOffset.retryIntervalMs": "1"}


def test_a_batch_is_planned_alike_whenever_it_is_asked_for(
    log: Log, readers: list[DlogStreamReader]
) -> None:
    log.create(2)
    log.write(0, [b"x"] * 10)
    first = reader_of(log, readers)
    start = first.initialOffset()
    assert start == {log.topic: {"0": 0, "1": 0}} == first.initialOffset()
    end = first.latestOffset(start, ALL)
    assert end == {log.topic: {"0": 10, "1": 0}} == first.reportLatestOffset()
    wanted = [f"{log.topic}-0 [0, 10)"]
    assert spans(first.partitions(start, end)) == wanted  # type: ignore[arg-type]
    log.write(0, [b"x"] * 5)
    later = pickle.loads(pickle.dumps(first))
    readers.append(later)
    assert spans(later.partitions(start, end)) == wanted
    assert first.latestOffset(end, ALL) == {log.topic: {"0": 15, "1": 0}}
    assert first.partitions(end, end) == []


def test_the_present_end_is_that_of_the_first_question(
    log: Log, readers: list[DlogStreamReader], admin: Admin
) -> None:
    log.create(1)
    log.write(0, [b"x"] * 10)
    reader = reader_of(log, readers, maxOffsetsPerTrigger="4")
    default = reader.getDefaultReadLimit()
    reader.prepareForTriggerAvailableNow()
    offset, ends = reader.initialOffset(), list[Any]()
    while not ends or offset != ends[-1]:
        log.write(0, [b"late"])
        if len(ends) == 1:
            admin.create_partitions(log.topic, 2)
        ends.append(offset)
        offset = reader.latestOffset(offset, default)
    log_ends = [end[log.topic] for end in ends]
    assert log_ends == [{"0": 0}, {"0": 4}, {"0": 8}, {"0": 11}]


# The first batch again: Spark keeps its end, and asks anew where it begins

NOT_YET = {
    "startingTimestamp": str(20_001 * DAY_MS),
    "startingOffsetsByTimestampStrategy": "latest",
}


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({"startingOffsets": "latest"}, []),
        ({"startingOffsets": '{"TOPIC": {"0": -1, "1": -2}}'}, ["TOPIC-1 [0, 7)"]),
        ({"startingOffsets": '{"TOPIC": {"0": -1, "1": 4}}'}, ["TOPIC-1 [4, 7)"]),
        (NOT_YET, []),
    ],
)
def test_a_first_batch_that_begins_at_an_end_is_planned_again(
    log: Log, readers: list[DlogStreamReader], options: dict[str, str], first: list[str]
) -> None:
    log.create(2)
    log.write(0, [b"x"] * 10)
    log.write(1, [b"x"] * 7)
    options = {name: text.replace("TOPIC", log.topic) for name, text in options.items()}
    wanted = [each.replace("TOPIC", log.topic) for each in first]
    before = reader_of(log, readers, **options)
    start = before.initialOffset()
    log.write(0, [b"y"] * 3)
    end = before.latestOffset(start, ALL)
    assert end == {log.topic: {"0": 10, "1": 7}}
    assert spans(before.partitions(start, end)) == wanted  # type: ignore[arg-type]
    before.stop()
    log.write(0, [b"y"] * 5)
    after = reader_of(log, readers, **options)
    assert spans(after.partitions(after.initialOffset(), end)) == wanted
    later = after.latestOffset(end, ALL)
    assert spans(after.partitions(end, later)) == [f"{log.topic}-0 [10, 18)"]  # type: ignore[arg-type]


def test_a_first_batch_of_sparks_source_needs_the_beginning_that_it_wrote_down(
    log: Log, readers: list[DlogStreamReader]
) -> None:
    """It has records of what begins at an end, and the end of a log is elsewhere by now."""
    log.create(1)
    log.write(0, [b"x"] * 10)
    end = {log.topic: {"0": 8}}
    wanted = {"latest": [], json.dumps({log.topic: {"0": 5}}): [f"{log.topic}-0 [5, 8)"]}
    for starting, first in wanted.items():
        reader = reader_of(log, readers, startingOffsets=starting)
        assert spans(reader.partitions(reader.initialOffset(), end)) == first
        assert reader.latestOffset(end, ALL) == {log.topic: {"0": 10}}


@pytest.mark.parametrize(("starting", "first"), [("earliest", ["0 [0, 10)"]), ("latest", [])])
def test_partitions_added_since_are_not_in_the_first_batch(
    log: Log, readers: list[DlogStreamReader], admin: Admin, starting: str, first: list[str]
) -> None:
    log.create(1)
    log.write(0, [b"x"] * 10)
    wanted = [f"{log.topic}-{each}" for each in first]
    before = reader_of(log, readers, startingOffsets=starting)
    start = before.initialOffset()
    admin.create_partitions(log.topic, 2)
    log.write(1, [b"y"] * 4)
    end = before.latestOffset(start, ALL)
    assert end == {log.topic: {"0": 10}}
    assert spans(before.partitions(start, end)) == wanted  # type: ignore[arg-type]
    before.stop()
    admin.create_partitions(log.topic, 3)
    log.write(2, [b"y"] * 2)
    after = reader_of(log, readers, startingOffsets=starting)
    assert spans(after.partitions(after.initialOffset(), end)) == wanted
    later = after.latestOffset(end, ALL)
    added = [f"{log.topic}-1 [0, 4)", f"{log.topic}-2 [0, 2)"]
    assert spans(after.partitions(end, later)) == added  # type: ignore[arg-type]


def test_the_present_end_is_reached_after_a_first_batch_without_records(
    log: Log, readers: list[DlogStreamReader]
) -> None:
    """An end that is the start ends a query with `availableNow`, unless it is that of batch 0."""
    log.create(1)
    log.write(0, [b"x"] * 10)
    before = reader_of(log, readers, startingOffsets="latest")
    before.prepareForTriggerAvailableNow()
    start = before.initialOffset()
    log.write(0, [b"y"] * 3)
    first = before.latestOffset(start, ALL)
    assert first == start == {log.topic: {"0": 10}}
    log.write(0, [b"late"])
    assert before.latestOffset(first, ALL) == {log.topic: {"0": 13}}
    before.stop()
    # When the first batch was only planned, the one after it is not another first one.
    after = reader_of(log, readers, startingOffsets="latest")
    after.prepareForTriggerAvailableNow()
    end = {log.topic: {"0": 14}}
    assert after.partitions(end, end) == []  # as Spark does with the last end that it knows
    assert after.partitions(after.initialOffset(), end) == []
    log.write(0, [b"z"])
    assert after.latestOffset(end, ALL) == {log.topic: {"0": 15}}


def test_limits_are_those_of_the_options(log: Log, readers: list[DlogStreamReader]) -> None:
    for options, limit in (
        ({}, ReadAllAvailable()),
        ({"maxOffsetsPerTrigger": "4"}, ReadMaxRows(4)),
        ({"maxBytesPerTrigger": "5"}, ReadMaxBytes(5)),
        ({"minOffsetsPerTrigger": "6"}, ReadMinRows(6)),
        ({"minOffsetsPerTrigger": "3", "maxOffsetsPerTrigger": "4"}, ReadMaxRows(4)),
    ):
        assert reader_of(log, readers, **options).getDefaultReadLimit() == limit
    log.create(1)
    log.write(0, [b"x"] * 10)
    reader = reader_of(log, readers, minOffsetsPerTrigger="3", maxOffsetsPerTrigger="4")
    default = reader.getDefaultReadLimit()
    offset, ends = reader.initialOffset(), list[Any]()
    for _ in range(4):
        offset = reader.latestOffset(offset, default)
        ends.append(offset[log.topic]["0"])
    assert ends == [4, 8, 8, 8]  # two are left: they wait
    assert reader.latestOffset(offset, ALL) == {log.topic: {"0": 10}}  # unless all is wanted


def test_a_new_life_of_a_topic_is_read_whole_and_nothing_twice(
    log: Log, readers: list[DlogStreamReader], admin: Admin
) -> None:
    log.create(1)
    log.write(0, [b"x"] * 10)
    strict, lax = reader_of(log, readers), reader_of(log, readers, **LAX)
    for each in (strict, lax):
        each.initialOffset()
    end = lax.latestOffset(lax.initialOffset(), ALL)
    admin.delete_topic(log.topic)
    log.create(1)
    log.write(0, [b"y"] * 20)  # more than before: the ends alone would not tell
    with pytest.raises(DataLossError, match=f"Topic {log.topic} has been deleted and created"):
        strict.latestOffset(end, ALL)
    anew = lax.latestOffset(end, ALL)
    assert anew == {log.topic: {"0": 0}}
    assert lax.partitions(end, anew) == []
    last = lax.latestOffset(anew, ALL)
    assert spans(lax.partitions(anew, last)) == [f"{log.topic}-0 [0, 20)"]  # type: ignore[arg-type]
    assert lax.latestOffset(last, ALL) == last


def test_a_new_life_of_a_topic_does_not_wait_for_more_records(
    log: Log, readers: list[DlogStreamReader], admin: Admin
) -> None:
    log.create(1)
    log.write(0, [b"x"] * 10)
    lax = reader_of(log, readers, **LAX, minOffsetsPerTrigger="100")
    limit = lax.getDefaultReadLimit()
    end = lax.latestOffset(lax.initialOffset(), limit)
    assert end == {log.topic: {"0": 10}}
    admin.delete_topic(log.topic)
    log.create(1)
    log.write(0, [b"y"] * 20)
    anew = lax.latestOffset(end, limit)
    assert anew == {log.topic: {"0": 0}}
    assert lax.latestOffset(anew, limit) == anew  # 20 are too few: they wait
    log.write(0, [b"y"] * 80)
    assert lax.latestOffset(anew, limit) == {log.topic: {"0": 100}}


def test_a_topic_made_anew_behind_the_plan_of_a_batch_is_not_read_as_the_old_one(
    log: Log, readers: list[DlogStreamReader], admin: Admin
) -> None:
    log.create(1)
    log.write(0, [b"x"] * 10)
    reader = reader_of(log, readers)
    begin = reader.initialOffset()
    (planned,) = reader.partitions(begin, reader.latestOffset(begin, ALL))
    admin.delete_topic(log.topic)
    log.create(1)
    log.write(0, [b"y"] * 20)
    with pytest.raises(DataLossError, match=r"PARTITIONS_DELETED.*deleted and created again"):
        list(reader.read(planned))


def test_a_new_life_of_a_topic_is_seen_between_the_batches_up_to_the_present_end(
    log: Log, readers: list[DlogStreamReader], admin: Admin
) -> None:
    other = Log(log.bootstrap, admin, f"{log.topic}-other")
    for each in (log, other):
        each.create(1)
        each.write(0, [b"x"] * 10)
    both = {"subscribe": f"{log.topic},{other.topic}", "maxOffsetsPerTrigger": "8"}
    strict, lax = reader_of(log, readers, **both), reader_of(log, readers, **both, **LAX)
    for reader in (strict, lax):
        reader.prepareForTriggerAvailableNow()
        end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
        assert end == {log.topic: {"0": 4}, other.topic: {"0": 4}}
    admin.delete_topic(log.topic)
    log.create(1)
    log.write(0, [b"y"] * 20)
    other.write(0, [b"late"])
    with pytest.raises(DataLossError, match=f"Topic {log.topic} has been deleted and created"):
        strict.latestOffset(end, strict.getDefaultReadLimit())
    assert lax.latestOffset(end, ALL) == {log.topic: {"0": 0}, other.topic: {"0": 10}}
    log.write(0, [b"late"])
    begun = {log.topic: {"0": 0}, other.topic: {"0": 10}}
    assert lax.latestOffset(begun, ALL) == {log.topic: {"0": 20}, other.topic: {"0": 10}}


def test_a_new_life_of_a_topic_of_which_nothing_was_read_is_not_the_end(
    log: Log, readers: list[DlogStreamReader], admin: Admin
) -> None:
    log.create(1)
    lax = reader_of(log, readers, **LAX)
    lax.prepareForTriggerAvailableNow()
    start = lax.initialOffset()
    assert lax.latestOffset(start, ALL) == start == {log.topic: {"0": 0}}
    admin.delete_topic(log.topic)
    log.create(1)
    log.write(0, [b"y"] * 20)
    assert lax.latestOffset(start, ALL) == {log.topic: {"0": 20}}


def test_a_life_of_a_topic_that_began_while_no_query_ran_is_known_by_its_ends_alone(
    log: Log, readers: list[DlogStreamReader], admin: Admin
) -> None:
    """As with Spark's Kafka source: a checkpoint has offsets, and no ids of topics."""
    log.create(1)
    log.write(0, [b"x"] * 10)
    before = reader_of(log, readers)
    start = before.initialOffset()
    end = before.latestOffset(start, ALL)
    before.stop()
    admin.delete_topic(log.topic)
    log.create(1)
    log.write(0, [b"y"] * 4)
    strict = reader_of(log, readers, **{"fetchOffset.retryIntervalMs": "1"})
    shorter = {log.topic: {"0": 4}}
    with pytest.raises(DataLossError, match=r"PARTITION_OFFSET_CHANGED.*from 10 to 4"):
        strict.latestOffset(end, ALL)
    with pytest.raises(DataLossError, match=r"PARTITION_OFFSET_CHANGED.*from 10 to 4"):
        strict.partitions(end, shorter)  # of a checkpoint that has it
    with pytest.raises(DataLossError, match=r"COULD_NOT_READ_OFFSET_RANGE.*\[4, 10\).*ends at 4"):
        strict.partitions(start, end)
    lax = reader_of(log, readers, **LAX)
    lax.prepareForTriggerAvailableNow()
    # A batch that was not done before gives what there is of it.
    assert spans(lax.partitions(start, end)) == [f"{log.topic}-0 [0, 4)"]  # type: ignore[arg-type]
    assert lax.latestOffset(end, ALL) == shorter
    assert lax.partitions(end, shorter) == []
    assert lax.latestOffset(shorter, ALL) == shorter  # it ends
    log.write(0, [b"y"] * 20)
    later = reader_of(log, readers, **LAX)
    longer = later.latestOffset(shorter, ALL)
    assert spans(later.partitions(shorter, longer)) == [f"{log.topic}-0 [4, 24)"]  # type: ignore[arg-type]
    assert spans(later.partitions(end, longer)) == [f"{log.topic}-0 [10, 24)"]  # type: ignore[arg-type]


@pytest.mark.parametrize("starting", ["earliest", '{"TOPIC":{"0":-2}}'])
def test_what_retention_takes_before_the_first_batch_is_no_loss(
    log: Log, readers: list[DlogStreamReader], starting: str
) -> None:
    log.create(1)
    for _ in range(2):
        log.write(0, [b"x"] * 10)
    reader = reader_of(log, readers, startingOffsets=starting.replace("TOPIC", log.topic))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    log.trim(0, 10)
    assert spans(reader.partitions(start, end)) == [f"{log.topic}-0 [10, 20)"]  # type: ignore[arg-type]
    restarted = reader_of(log, readers)
    with pytest.raises(DataLossError, match=r"COULD_NOT_READ_OFFSET_RANGE.*\[0, 10\)"):
        restarted.partitions(start, end)


def test_what_retention_takes_behind_a_first_batch_without_records_is_a_loss(
    log: Log, readers: list[DlogStreamReader]
) -> None:
    log.create(1)
    strict, lax = reader_of(log, readers), reader_of(log, readers, **LAX)
    start = {log.topic: {"0": 0}}
    for each in (strict, lax):
        assert each.latestOffset(each.initialOffset(), ALL) == start
        assert each.partitions(start, start) == []
    for _ in range(2):
        log.write(0, [b"x"] * 10)
    log.trim(0, 10)
    for each in (strict, lax):
        assert each.latestOffset(start, ALL) == {log.topic: {"0": 20}}
    with pytest.raises(DataLossError, match=r"COULD_NOT_READ_OFFSET_RANGE.*\[0, 10\)"):
        strict.partitions(start, {log.topic: {"0": 20}})
    wanted = [f"{log.topic}-0 [10, 20)"]
    assert spans(lax.partitions(start, {log.topic: {"0": 20}})) == wanted  # type: ignore[arg-type]


def test_an_end_that_goes_back_is_a_loss(log: Log, readers: list[DlogStreamReader]) -> None:
    log.create(1)
    log.write(0, [b"x"] * 10)
    ahead = {log.topic: {"0": 15}}
    strict = reader_of(log, readers, **{"fetchOffset.retryIntervalMs": "1"})
    with pytest.raises(DataLossError, match=r"PARTITION_OFFSET_CHANGED.*from 15 to 10"):
        strict.latestOffset(ahead, ALL)
    lax = reader_of(log, readers, **LAX)
    assert lax.partitions(ahead, lax.latestOffset(ahead, ALL)) == []


def test_partitions_of_a_topic_that_is_gone_are_named(
    log: Log, readers: list[DlogStreamReader], admin: Admin
) -> None:
    log.create(2)
    log.write(0, [b"x"] * 10)
    start, end = {log.topic: {"0": 0, "1": 0}}, {log.topic: {"0": 10, "1": 0}}
    strict, lax = reader_of(log, readers), reader_of(log, readers, **LAX)
    admin.delete_topic(log.topic)
    assert lax.latestOffset(end, ALL) == {}
    began = time.monotonic()
    assert lax.latestOffset(end, ALL) == {}
    assert time.monotonic() - began < 1.5  # known to be missing: not waited for again
    with pytest.raises(DataLossError, match=f"PARTITIONS_DELETED.*{log.topic}-0, {log.topic}-1"):
        strict.latestOffset(end, ALL)
    with pytest.raises(DataLossError, match=f"PARTITIONS_DELETED.*{log.topic}-0, {log.topic}-1"):
        strict.partitions(end, {})
    with pytest.raises(DataLossError, match=f"PARTITIONS_DELETED. Partitions {log.topic}-0 have"):
        strict.partitions(start, end)
    assert lax.partitions(start, end) == []


def test_a_cluster_that_does_not_answer_is_given_up_in_time(
    log: Log, readers: list[DlogStreamReader]
) -> None:
    nowhere = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.default.api.timeout.ms": "200"}
    reader = reader_of(log, readers, **nowhere)
    with pytest.raises(SparkSourceError, match="DLOG_CLUSTER_UNREACHABLE") as error:
        reader.initialOffset()
    assert "127.0.0.1:1" in str(error.value)
