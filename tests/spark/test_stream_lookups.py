"""What a streaming query asks of a cluster of which parts are silent, or lag."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from dlog.client.admin import Admin
from dlog.client.cluster.cluster import Cluster
from dlog.client.cluster.offset_lookup import OffsetLookup
from dlog.errors import UnknownTopicOrPartitionError
from dlog.spark.reading.stream_planner import MEAN_BYTES
from dlog.spark.reading.stream_reader import DlogStreamReader
from tests.spark.log import Log
from tests.spark.planners import ALL, reader_of, spans


def test_a_size_that_nobody_tells_holds_no_batch_up(
    log: Log, readers: list[DlogStreamReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create(1)
    log.write(0, [b"x" * 100] * 50)

    async def never(*_: object) -> None:
        await asyncio.sleep(1000)

    real = Admin.describe_log_dirs
    monkeypatch.setattr(Admin, "describe_log_dirs", never)
    monkeypatch.setattr("dlog.spark.reading.lookup.SIZES_PATIENCE_S", 0.05)
    reader = reader_of(log, readers, maxBytesPerTrigger=str(int(MEAN_BYTES) * 10))
    default, start = reader.getDefaultReadLimit(), reader.initialOffset()
    assert reader.latestOffset(start, default) == {log.topic: {"0": 10}}
    # Once it was known it is known: what is small all goes at once.
    for method, patience_s in ((real, 60), (never, 0.05)):
        monkeypatch.setattr(Admin, "describe_log_dirs", method)
        monkeypatch.setattr("dlog.spark.reading.lookup.SIZES_PATIENCE_S", patience_s)
        assert reader.latestOffset(start, default) == {log.topic: {"0": 50}}


def test_a_node_that_lags_is_not_believed_while_another_one_knows_more(
    log: Log, readers: list[DlogStreamReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An isolated node tells of fewer partitions: nothing is given up, and nothing read again."""
    log.create(2)
    for partition in range(2):
        log.write(partition, [b"x"] * 10)
    reader = reader_of(log, readers, failOnDataLoss="true")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    real, asked = Cluster.refresh, list[bool]()

    async def refresh(cluster: Cluster, topics: Any = (), *, elsewhere: bool = False) -> Any:
        asked.append(elsewhere)
        view = await real(cluster, topics)
        if elsewhere:
            return view
        lagging = {
            name: replace(topic, partitions=topic.partitions[:1])
            for name, topic in view.topics.items()
        }
        return replace(view, topics=lagging)

    monkeypatch.setattr(Cluster, "refresh", refresh)
    log.write(1, [b"y"] * 5)
    later = reader.latestOffset(end, ALL)
    assert later == {log.topic: {"0": 10, "1": 15}} and asked == [False, True]
    assert spans(reader.partitions(end, later)) == [f"{log.topic}-1 [10, 15)"]  # type: ignore[arg-type]


def test_what_a_leader_does_not_know_yet_is_not_gone_for_a_node_that_lags(
    log: Log, readers: list[DlogStreamReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a query ends for a loss that there is none of, or passes over what is there."""
    log.create(1)
    log.write(0, [b"x"] * 10)
    reader = reader_of(log, readers)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    find, refresh, answers = OffsetLookup.find, Cluster.refresh, list[bool]()

    async def not_yet(finder: OffsetLookup, *arguments: Any) -> Any:
        answers.append(True)
        if len(answers) == 1:
            raise UnknownTopicOrPartitionError(f"{log.topic}-0")
        return await find(finder, *arguments)

    async def lagging(cluster: Cluster, topics: Any = (), *, elsewhere: bool = False) -> Any:
        view = await refresh(cluster, topics)
        return view if elsewhere else replace(view, topics={})

    monkeypatch.setattr(OffsetLookup, "find", not_yet)
    monkeypatch.setattr(Cluster, "refresh", lagging)
    assert spans(reader.partitions(reader.initialOffset(), end)) == [f"{log.topic}-0 [0, 10)"]


@pytest.mark.parametrize(("given", "questions"), [("0", 1), ("1", 1), ("3", 3)])
def test_an_end_before_what_is_known_is_asked_for_as_often_as_by_sparks_source(
    log: Log,
    readers: list[DlogStreamReader],
    monkeypatch: pytest.MonkeyPatch,
    given: str,
    questions: int,
) -> None:
    """Its `fetchOffset.numRetries` are all attempts, not those behind the first one."""
    log.create(1)
    log.write(0, [b"x"] * 10)
    often = {"fetchOffset.numRetries": given, "fetchOffset.retryIntervalMs": "1"}
    reader = reader_of(log, readers, failOnDataLoss="false", **often)
    reader.latestOffset(reader.initialOffset(), ALL)
    find, asked = OffsetLookup.find, list[Any]()

    async def count(finder: OffsetLookup, wanted: Any) -> Any:
        asked.append(wanted)
        return await find(finder, wanted)

    monkeypatch.setattr(OffsetLookup, "find", count)
    reader.latestOffset({log.topic: {"0": 99}}, ALL)
    assert len(asked) == questions
