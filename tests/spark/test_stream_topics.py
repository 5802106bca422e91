"""Topics that come and go while a streaming query runs: its planning, without a JVM."""

from collections.abc import Iterator

import pytest

from dlog.client.blocking import Admin
from dlog.spark.errors import DataLossError
from dlog.spark.options.offsets import JsonOffsets
from dlog.spark.reading.stream_reader import DlogStreamReader
from dlog.spark.source import DlogDataSource
from tests.spark.log import Log
from tests.spark.planners import ALL, reader_of, spans

LAX = {"failOnDataLoss": "false", "fetchOffset.retryIntervalMs": "1"}


@pytest.fixture
def other(log: Log, admin: Admin) -> Log:
    """Give a second topic, whose name has that of the first one within it."""
    return Log(log.bootstrap, admin, f"second-{log.topic}")


def batches(
    reader: DlogStreamReader, start: JsonOffsets
) -> Iterator[tuple[JsonOffsets, list[str]]]:
    """Yield where each batch ends and what it reads, until there is none, as Spark asks."""
    default = reader.getDefaultReadLimit()
    while (end := reader.latestOffset(start, default)) != start:
        yield end, spans(reader.partitions(start, end))  # type: ignore[arg-type]
        start = end


def test_topics_that_a_pattern_finds_later_are_read_from_their_beginning(
    log: Log, other: Log, readers: list[DlogStreamReader]
) -> None:
    log.create(1)
    log.write(0, [b"x"] * 10)
    reader = reader_of(log, readers, subscribePattern=f"{log.topic}$")
    start = reader.initialOffset()
    assert start == {log.topic: {"0": 0}}
    first = reader.latestOffset(start, ALL)
    other.create(2)
    other.write(1, [b"y"] * 4)
    log.write(0, [b"x"])
    later = reader.latestOffset(first, ALL)
    assert later == {log.topic: {"0": 11}, other.topic: {"0": 0, "1": 4}}
    assert spans(reader.partitions(first, later)) == [  # type: ignore[arg-type]
        f"{other.topic}-1 [0, 4)",
        f"{log.topic}-0 [10, 11)",
    ]


def test_internal_topics_are_read_by_name_alone(
    log: Log, readers: list[DlogStreamReader], admin: Admin
) -> None:
    """A pattern passes over them, as `Admin.listTopics` of Kafka does, by what nodes call so."""
    internal = Log(log.bootstrap, admin, "__consumer_offsets")
    log.create(1)
    internal.create(1)
    try:
        internal.write(0, [b"x"] * 3)
        found = {
            pattern: reader_of(log, readers, subscribePattern=pattern).initialOffset()
            for pattern in (f"^({log.topic}|__.*)$", "^__")
        }
        assert list(found.values()) == [{log.topic: {"0": 0}}, {}]
        for named in ({"subscribe": internal.topic}, {"assign": f'{{"{internal.topic}":[0]}}'}):
            source = DlogDataSource({"kafka.bootstrap.servers": log.bootstrap, **named})
            reader = source.reader(source.schema())
            assert len(list(reader.partitions())) == 1
    finally:
        admin.delete_topic(internal.topic)


def test_a_topic_made_anew_behind_a_batch_that_is_planned_again_is_seen(
    log: Log, readers: list[DlogStreamReader], admin: Admin
) -> None:
    """After a restart such a batch comes before the first question for an end."""
    log.create(1)
    log.write(0, [b"x"] * 10)
    before = reader_of(log, readers)
    first = before.latestOffset(before.initialOffset(), ALL)
    log.write(0, [b"x"] * 10)
    second = before.latestOffset(first, ALL)
    before.stop()
    strict, lax = (reader_of(log, readers, **more) for more in ({}, LAX))
    (task,), (passing,) = (each.partitions(first, second) for each in (strict, lax))
    admin.delete_topic(log.topic)
    log.create(1)
    log.write(0, [b"y"] * 30)
    with pytest.raises(DataLossError, match=r"PARTITIONS_DELETED.*deleted and created again"):
        list(strict.read(task))
    with pytest.raises(DataLossError, match=f"Topic {log.topic} has been deleted and created"):
        strict.latestOffset(second, ALL)
    assert list(lax.read(passing)) == []
    assert lax.latestOffset(second, ALL) == {log.topic: {"0": 0}}


def test_a_topic_that_goes_before_the_present_end_is_a_loss_or_passed_over(
    log: Log, other: Log, readers: list[DlogStreamReader], admin: Admin
) -> None:
    """With `availableNow`, whose end was asked for when the topic was still there."""
    for each in (log, other):
        each.create(1)
        each.write(0, [b"x"] * 6)
    both = {"subscribe": f"{log.topic},{other.topic}", "maxOffsetsPerTrigger": "6"}
    strict, lax = (reader_of(log, readers, **both, **more) for more in ({}, LAX))
    begun = []
    for reader in (strict, lax):
        reader.prepareForTriggerAvailableNow()
        going = batches(reader, reader.initialOffset())
        begun.append(going)
        assert next(going)[0] == {log.topic: {"0": 3}, other.topic: {"0": 3}}
    admin.delete_topic(other.topic)
    with pytest.raises(DataLossError, match=rf"PARTITIONS_DELETED\].*{other.topic}-0 have been"):
        list(begun[0])
    assert [read for _, read in begun[1]] == [[f"{log.topic}-0 [3, 6)"]]
