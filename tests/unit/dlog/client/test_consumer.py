"""The consumer against fake nodes that hold logs: what it reads, from where, and in which order."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from dlog.client.consumed import ConsumedRecord
from dlog.client.consumer import Consumer
from dlog.client.retry import RetryPolicy
from dlog.client.starts import Start, Timestamp
from dlog.errors import DlogError, UnknownTopicOrPartitionError
from dlog.offset_specs import Isolation
from dlog.wire.apis import ApiKey
from tests.fakes.batches import ABORT, COMMIT, batch, marker
from tests.fakes.log_consumers import FIRST, SECOND, THIRD, consumer, offsets, read, run
from tests.fakes.log_nodes import LogNodes


def test_all_partitions_are_read_in_order() -> None:
    async def work(servers: LogNodes) -> None:
        async with consumer(servers) as reader:
            records = await read(reader, 27)
            for partition in range(3):
                assert offsets(records, partition) == list(range(9))
            assert records[0] == ConsumedRecord(
                b"k0", b"v0", (), 1000, 0, "t", records[0].partition
            )
            assert [reader.position(key) for key in reader.assignment] == [9, 9, 9]
            assert await reader.lag() == dict.fromkeys(reader.assignment, 0)
            servers.logs[1].append(batch(9))
            servers.notify()
            assert offsets(await read(reader, 3), 1) == [9, 10, 11]
            assert reader.counters.records == 30
            assert reader.client_counters.connections_opened == 2

    run(work, partitions=3, nodes=2)


@pytest.mark.parametrize(
    ("start", "first"),
    [
        ("earliest", 0),
        ("latest", 9),
        (4, 4),
        (9, 9),
        (-2, 7),
        (-99, 0),
        (Timestamp(1005), 5),
        (Timestamp(9999), 9),
        (datetime(1970, 1, 1, 0, 0, 1, 6000, tzinfo=UTC), 6),
    ],
)
def test_where_reading_begins(start: Start, first: int) -> None:
    async def work(servers: LogNodes) -> None:
        async with consumer(servers, start=start) as reader:
            assert reader.position(FIRST) == first
            servers.logs[0].append(batch(9))
            servers.notify()
            assert offsets(await read(reader, 12 - first)) == list(range(first, 12))

    run(work)


def test_named_partitions_each_from_its_own_start() -> None:
    async def work(servers: LogNodes) -> None:
        starts = {FIRST: 5, THIRD: "latest"}
        async with consumer(servers, partitions=[FIRST, ("t", 2)], start=starts) as reader:
            assert reader.assignment == (FIRST, THIRD)
            assert offsets(await read(reader, 4)) == [5, 6, 7, 8]
            assert await reader.start_offsets() == {FIRST: 0, THIRD: 0}
            assert await reader.end_offsets([SECOND]) == {SECOND: 9}
            assert await reader.offsets_at({SECOND: Timestamp(1003)}) == {SECOND: 3}
            by_tuple = {(SECOND.topic, int(SECOND.partition)): Timestamp(1003)}
            assert await reader.offsets_at(by_tuple) == {SECOND: 3}

    run(work, partitions=3)


def test_a_poll_keeps_to_its_limits_and_loses_nothing() -> None:
    async def work(servers: LogNodes) -> None:
        async with consumer(servers) as reader:
            assert offsets(await reader.poll(1, timeout_ms=None)) == [0]
            assert offsets(await reader.poll(4)) == [1, 2, 3, 4]
            assert offsets(await reader.poll(max_bytes=1)) == [5]
            assert offsets(await reader.poll(max_bytes=5)) == [6, 7]
            assert (await reader.poll_arrow(1)).column("offset").to_pylist() == [8]
            assert await reader.poll(timeout_ms=0) == []
            assert (await reader.poll_arrow(timeout_ms=0)).num_rows == 0
            for wrong in ((0, None), (1, 0)):
                with pytest.raises(ValueError, match="one record at least"):
                    await reader.poll(*wrong)

    run(work)


def test_leaving_an_iteration_loses_nothing() -> None:
    async def work(servers: LogNodes) -> None:
        async with consumer(servers) as reader:
            seen = []
            async for record in reader:
                seen.append(record.offset)
                assert reader.position(FIRST) == record.offset + 1
                if record.offset == 1:
                    break
            assert offsets(await reader.poll(1)) == [2]
            async for record in reader:
                seen.append(record.offset)
                if record.offset == 4:
                    break
            assert (await reader.poll_arrow()).column("offset").to_pylist()[0] == 5
            assert seen == [0, 1, 3, 4]

    run(work)


def test_a_seek_within_an_iteration_takes_effect_at_once() -> None:
    async def work(servers: LogNodes) -> None:
        async with consumer(servers) as reader:
            seen = []
            async for record in reader:
                seen.append(record.offset)
                if len(seen) == 2:
                    await reader.seek(FIRST, 7)
                if record.offset == 8:
                    break
            assert seen == [0, 1, 7, 8]
            await reader.seek(("t", 0), "earliest")
            assert offsets(await read(reader, 9)) == list(range(9))
            with pytest.raises(ValueError, match="t-5 is not assigned"):
                await reader.seek(("t", 5), 0)

    run(work)


def test_columns_hold_what_records_hold() -> None:
    async def work(servers: LogNodes) -> None:
        async with consumer(servers) as reader:
            rows: list[dict[str, Any]] = []
            while len(rows) < 18:
                rows += (await reader.poll_arrow()).to_pylist()
            for partition in range(2):
                mine = [row for row in rows if row["partition"] == partition]
                assert [row["offset"] for row in mine] == list(range(9))
                assert [row["key"] for row in mine] == [b"k%d" % n for n in range(9)]
                assert {row["topic"] for row in mine} == {"t"}
                assert mine[3]["timestamp"] == datetime(1970, 1, 1, 0, 0, 1, 3000, tzinfo=UTC)
            assert reader.counters.records == 18

    run(work, partitions=2)


def test_paused_partitions_wait_and_go_on_where_they_were() -> None:
    async def work(servers: LogNodes) -> None:
        async with consumer(servers) as reader:
            seen = {0: [], 1: []}  # type: dict[int, list[int]]
            async for record in reader:
                seen[record.partition].append(record.offset)
                reader.pause(FIRST)
                break
            assert reader.paused == (FIRST,)
            paused_at = reader.position(FIRST)
            assert paused_at == len(seen[0])
            for record in await read(reader, 9 - len(seen[1])):
                seen[record.partition].append(record.offset)
            assert len(seen[0]) == paused_at
            assert await reader.poll(timeout_ms=0) == []
            reader.resume()
            for record in await read(reader, 9 - paused_at):
                seen[record.partition].append(record.offset)
            assert seen == {0: list(range(9)), 1: list(range(9))}

    run(work, partitions=2)


def test_partitions_take_turns() -> None:
    async def work(servers: LogNodes) -> None:
        async with consumer(servers) as reader:
            turns = [(await reader.poll(3))[0].partition for _ in range(3)]
            assert sorted(turns) == [0, 1, 2]

    run(work, partitions=3)


def test_another_assignment_keeps_what_stays() -> None:
    async def work(servers: LogNodes) -> None:
        async with consumer(servers, partitions=[FIRST, SECOND]) as reader:
            await reader.poll(2)
            before = {key: reader.position(key) for key in (FIRST, SECOND)}
            assert sum(before.values()) == 2
            await reader.assign([SECOND, THIRD], "latest")
            assert reader.assignment == (SECOND, THIRD)
            records = await read(reader, 9 - before[SECOND])
            assert offsets(records, 1) == list(range(before[SECOND], 9))
            assert offsets(records, 0) == []
            with pytest.raises(UnknownTopicOrPartitionError, match="t-9 does not exist"):
                await reader.assign([("t", 9)])
            assert reader.assignment == (SECOND, THIRD)
            await reader.assign([])
            assert await reader.poll(timeout_ms=0) == []

    run(work, partitions=3)


def test_an_assignment_ends_the_look_out_for_new_partitions() -> None:
    """Else it would bring back, from the beginning, what is not to be read any more."""

    async def work(servers: LogNodes) -> None:
        policy = RetryPolicy(base_s=0.001, cap_s=0.01, deadline_s=5.0, metadata_age_s_max=0.02)
        async with consumer(servers, start="latest", policy=policy) as reader:
            assert reader.assignment == (FIRST, SECOND)
            await reader.assign([FIRST])
            before = servers.seen.count(ApiKey.METADATA)
            assert await reader.poll(timeout_ms=200) == []
            assert reader.assignment == (FIRST,)
            assert servers.seen.count(ApiKey.METADATA) <= before + 1

    run(work, partitions=2)


def test_new_partitions_of_a_topic_are_read_from_their_beginning() -> None:
    async def work(servers: LogNodes) -> None:
        policy = RetryPolicy(base_s=0.001, cap_s=0.01, deadline_s=5.0, metadata_age_s_max=0.05)
        hidden = servers.logs.pop()
        async with consumer(servers, start="latest", policy=policy) as reader:
            assert reader.assignment == (FIRST,)
            servers.logs.append(hidden)
            assert offsets(await read(reader, 9), 1) == list(range(9))
            assert reader.assignment == (FIRST, SECOND)

    run(work, partitions=2)


@pytest.mark.parametrize("version_max", [12, 13, 15, 20])
def test_every_version_of_fetch(version_max: int) -> None:
    async def work(servers: LogNodes) -> None:
        servers.versions[ApiKey.FETCH] = (4, version_max)
        async with consumer(servers) as reader:
            assert offsets(await read(reader, 9)) == list(range(9))
        (topic, _), *_ = servers.requests[0].topics
        assert topic == ("t" if version_max == 12 else servers.topic_id)

    run(work)


def test_transactions_are_read_as_the_isolation_level_says() -> None:
    async def work(servers: LogNodes) -> None:
        log = servers.logs[0]
        log.append(batch(9, producer_id=7, transactional=True))
        log.append(marker(12, 7, ABORT))
        log.append(batch(13, producer_id=7, transactional=True))
        log.append(marker(16, 7, COMMIT))
        log.append(batch(17, producer_id=8, transactional=True))
        log.aborted = [(7, 9)]
        everything = [*range(12), 13, 14, 15, 17, 18, 19]
        async with consumer(servers, isolation=Isolation.READ_UNCOMMITTED) as reader:
            assert offsets(await read(reader, 18)) == everything
        log.last_stable = 17
        async with consumer(servers) as reader:
            assert offsets(await read(reader, 12)) == [*range(9), 13, 14, 15]
            assert reader.position(FIRST) == 17
            assert await reader.end_offsets() == {FIRST: 17}
            assert await reader.lag() == {FIRST: 0}
            assert {request.isolation_level for request in servers.requests[-2:]} == {1}
            log.last_stable = None
            servers.notify()
            assert offsets(await read(reader, 3)) == [17, 18, 19]

    run(work)


def test_what_is_at_hand_stays_within_its_bound() -> None:
    async def work(servers: LogNodes) -> None:
        log = servers.logs[0]
        for number in range(3, 100):
            log.append(batch(3 * number))
        size = len(batch(9))
        async with consumer(servers, max_prefetch_bytes=10 * size) as reader:
            records = await read(reader, 300, max_records=7)
            assert offsets(records) == list(range(300))
            assert max(request.max_bytes for request in servers.requests) <= 10 * size
            assert min(request.max_bytes for request in servers.requests) >= 2 * size
            assert 10 <= reader.counters.fetches <= 50

    run(work)


def test_a_batch_larger_than_the_bound_is_read() -> None:
    async def work(servers: LogNodes) -> None:
        servers.logs[0].append(batch(9, 500))
        async with consumer(servers, max_prefetch_bytes=300) as reader:
            assert offsets(await read(reader, 509)) == list(range(509))

    run(work)


def test_cancelling_a_poll_loses_nothing() -> None:
    async def work(servers: LogNodes) -> None:
        async with consumer(servers, start="latest") as reader:
            for _ in range(3):
                task = asyncio.get_running_loop().create_task(reader.poll(timeout_ms=None))
                await asyncio.sleep(0)
                servers.logs[0].append(batch(servers.logs[0].end))
                servers.notify()
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            assert offsets(await read(reader, 9)) == list(range(9, 18))

    run(work)


def test_a_consumer_says_what_it_cannot_do() -> None:
    async def work(servers: LogNodes) -> None:
        reader = consumer(servers)
        with pytest.raises(DlogError, match="not started"):
            await reader.poll()
        with pytest.raises(UnknownTopicOrPartitionError):
            async with consumer(servers, topics=["missing"]):
                pass
        with pytest.raises(ValueError, match="not a start"):
            consumer(servers, start="first")
        with pytest.raises(ValueError, match="no bootstrap"):
            Consumer("", "t")
        async with reader:
            await reader.poll()
            with pytest.raises(DlogError, match="started once"):
                await reader.start()
        with pytest.raises(DlogError, match="closed"):
            await reader.poll()
        await reader.close()

    run(work)


def test_a_consumer_that_cannot_start_leaves_nothing_behind() -> None:
    """Not even when it is not used in `async with` (`run` sees to it)."""

    async def work(servers: LogNodes) -> None:
        reader = consumer(servers, topics=["missing"])
        with pytest.raises(UnknownTopicOrPartitionError):
            await reader.start()
        with pytest.raises(DlogError, match="closed"):
            await reader.poll()

    run(work)
