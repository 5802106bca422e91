"""What a task takes for lost: what retention took, logs cut back, topics gone or made anew."""

import asyncio
import itertools
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructType

from dlog.client import range_reader
from dlog.spark.errors import DataLossError
from dlog.spark.options.options import parse_read_options
from dlog.spark.reading import task
from dlog.spark.reading.batch_reader import DlogBatchReader
from dlog.spark.reading.ranges import OffsetRange
from dlog.wire.apis import ApiKey
from tests.fakes.batches import batch
from tests.fakes.log_nodes import LogNodes
from tests.fakes.spark_tasks import OFFSETS, play, read, settings
from tests.fakes.spark_tasks import nothing_left as nothing_left

ONLY_OFFSETS = StructType().add("offset", LongType())


@pytest.mark.parametrize(("start", "end", "left"), [(0, 9, [6, 7, 8]), (0, 5, []), (2, 7, [6])])
def test_retention_was_faster(start: int, end: int, left: list[int]) -> None:
    async def work(servers: LogNodes) -> None:
        servers.logs[0].trim(6)
        lost = rf"COULD_NOT_READ_OFFSET_RANGE.*t-0 \[{start}, {min(6, end)}\).*failOnDataLoss"
        with pytest.raises(DataLossError, match=lost):
            await read(servers, start, end)
        assert await read(servers, start, end, fail=False) == left
        assert len(task._idle) == 1

    play(work)


def test_a_log_that_was_cut_back() -> None:
    async def work(servers: LogNodes) -> None:
        servers.logs[0].cut(6)
        with pytest.raises(DataLossError, match=r"t-0 \[8, 9\).* cut back to 6"):
            await read(servers, 8, 9)
        assert await read(servers, 8, 9, fail=False) == []

    play(work)


def test_a_topic_that_is_gone() -> None:
    async def work(servers: LogNodes) -> None:
        assert await read(servers, 0, 3) == [0, 1, 2]
        servers.exists = False
        with pytest.raises(DataLossError, match=r"t-0 \[0, 9\)"):
            await read(servers, 0, 9, deadline_s=1.0)
        assert await read(servers, 0, 9, deadline_s=1.0, fail=False) == []

    play(work)


def test_a_topic_made_anew_between_two_tasks_is_no_loss() -> None:
    async def work(servers: LogNodes) -> None:
        assert await read(servers, 0, 9) == list(range(9))
        servers.recreate()
        servers.logs[0].append(batch(0, 5))
        # This process believes in the old topic still; the query, planned by now, does not.
        assert await read(servers, 0, 5) == list(range(5))

    play(work)


def test_a_topic_made_anew_between_the_plan_and_its_task_is_loss() -> None:
    async def work(servers: LogNodes) -> None:
        old = servers.topic_id
        assert await read(servers, 0, 9, topic_id=old) == list(range(9))
        servers.recreate()
        for number in range(5):
            servers.logs[0].append(batch(3 * number))
        with pytest.raises(DataLossError, match=r"t-0 \[0, 9\).*deleted and created again"):
            await read(servers, 0, 9, topic_id=old)
        assert await read(servers, 0, 9, topic_id=old, fail=False) == []
        # Who has planned the new one reads it, whatever this process knew, and so does who knows
        # of no ids.
        assert await read(servers, 0, 9, topic_id=servers.topic_id) == list(range(9))
        assert await read(servers, 0, 9) == list(range(9))

    play(work)


@pytest.mark.parametrize("starting", ["earliest", '{"t": {"0": 0, "1": 0}}'])
def test_a_topic_made_anew_behind_the_plan_of_a_batch_query_is_loss(
    starting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_reader, "UNKNOWN_TOPIC_PATIENCE_S", 0.2)

    async def work(servers: LogNodes) -> None:
        options = {
            "kafka.bootstrap.servers": ",".join(map(str, servers.bootstrap)),
            "subscribe": "t",
            "startingOffsets": starting,
        }

        def offsets(reader: DlogBatchReader, ranges: list[OffsetRange]) -> list[int]:
            batches = itertools.chain.from_iterable(map(reader.read, ranges))
            return [each for batch in batches for each in batch.column("offset").to_pylist()]

        def reader_of(**extra: str) -> DlogBatchReader:
            given = {key.lower(): value for key, value in {**options, **extra}.items()}
            return DlogBatchReader(parse_read_options(given, is_streaming=False), ONLY_OFFSETS)

        def run() -> None:
            reader = reader_of()
            planned = reader.partitions()
            assert offsets(reader, planned) == [*range(9), *range(9)]
            servers.recreate()
            for log in servers.logs:
                for number in range(5):
                    log.append(batch(3 * number))
            with pytest.raises(DataLossError, match=r"t-0 \[0, 9\).*deleted and created again"):
                offsets(reader, planned)
            assert offsets(reader_of(failOnDataLoss="false"), planned) == []
            assert offsets(reader, reader.partitions()) == [*range(15), *range(15)]

        await asyncio.to_thread(run)

    play(work)


@pytest.mark.parametrize("starting", ["earliest", '{"t": {"0": -2, "1": 0}}'])
def test_what_goes_before_a_task_begins_is_no_loss_to_who_reads_what_there_is(
    starting: str,
) -> None:
    async def work(servers: LogNodes) -> None:
        options = {
            "kafka.bootstrap.servers": ",".join(map(str, servers.bootstrap)),
            "subscribe": "t",
            "startingoffsets": starting,
        }

        def run() -> None:
            options_read = parse_read_options(options, is_streaming=False)
            reader = DlogBatchReader(options_read, ONLY_OFFSETS)
            first, second = reader.partitions()
            servers.logs[0].trim(6)
            found = [
                each for one in reader.read(first) for each in one.column("offset").to_pylist()
            ]
            assert found == [6, 7, 8]
            # Of the other one an offset may have been named.
            assert second.is_from_earliest is (starting == "earliest")

        await asyncio.to_thread(run)

    play(work)


def test_a_process_that_knows_the_former_topic_only_asks_again() -> None:
    async def work(servers: LogNodes) -> None:
        assert await read(servers, 0, 9, topic_id=servers.topic_id) == list(range(9))
        servers.recreate()
        servers.logs[0].append(batch(0, 5))
        assert await read(servers, 0, 5, topic_id=servers.topic_id) == list(range(5))

    play(work)


@pytest.mark.parametrize("lag", ["partition", "topic", "former"])
def test_what_a_node_that_lags_does_not_know_is_no_loss(lag: str) -> None:
    """It answers first, and again each time; the leader, which has all, is another node."""

    async def work(servers: LogNodes) -> None:
        former = servers.topic_id
        servers.recreate()
        for number in range(3):
            servers.logs[1].append(batch(3 * number))
        real = servers._answer

        def answer(api: int, request: Any, module: Any, node: int) -> Any:
            if api != ApiKey.METADATA or node != 0:
                return real(api, request, module, node)
            kept = servers.logs, servers.exists, servers.topic_id
            if lag == "partition":
                servers.logs = servers.logs[:1]
            elif lag == "topic":
                servers.exists = False
            else:
                servers.topic_id = former
            try:
                return real(api, request, module, node)
            finally:
                servers.logs, servers.exists, servers.topic_id = kept

        servers._answer = answer  # type: ignore[method-assign]
        given = replace(settings(servers), bootstrap=str(servers.addresses[0]))
        wanted = OffsetRange(
            topic="t", partition=1, start_offset=0, end_offset=9, topic_id=servers.topic_id
        )

        def run(fail: bool) -> list[int]:
            task.close_idle()  # of each question the first one goes to the node that lags
            rows = task.read_range(given, wanted, OFFSETS, fail_on_data_loss=fail)
            return [each for some in rows for each in some.column("offset").to_pylist()]

        for fail in (False, True):
            assert await asyncio.to_thread(run, fail) == list(range(9))

    play(work, nodes=2)


def test_a_topic_made_anew_within_a_task_is_loss() -> None:
    async def work(servers: LogNodes) -> None:
        given = settings(servers, partition_bytes_max=len(batch(0)))
        wanted = OffsetRange(topic="t", partition=0, start_offset=0, end_offset=90)
        loop = asyncio.get_running_loop()
        anew = asyncio.Event()

        def run(fail: bool) -> list[int]:
            rows = task.read_range(given, wanted, OFFSETS, fail_on_data_loss=fail)
            found: list[int] = next(rows).column("offset").to_pylist()
            asyncio.run_coroutine_threadsafe(recreate(), loop).result()
            for each in rows:
                found += each.column("offset").to_pylist()
            return found

        async def recreate() -> None:
            servers.recreate()
            for number in range(30):
                servers.logs[0].append(batch(3 * number))
            anew.set()

        for number in range(3, 30):
            servers.logs[0].append(batch(3 * number))
        with pytest.raises(DataLossError, match="deleted and created again"):
            await asyncio.to_thread(run, True)
        found = await asyncio.to_thread(run, False)
        # Nothing of the new log is mixed with the old one.
        assert found == list(range(len(found))) and len(found) < 90

    play(work)
