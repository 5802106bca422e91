"""Where a consumer starts, how it moves, how much it gives, and how it waits."""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

import pytest

from dlog.client.consumed import ConsumedRecord
from dlog.client.retry import RetryPolicy
from dlog.client.starts import Start, Timestamp
from dlog.errors import UnknownTopicOrPartitionError
from dlog.types import PartitionId, TopicPartition
from tests.behaviour.scene import Scene, Work, by_partition, read_count
from tests.behaviour.shapes import STAMP_MS, numbered, numbers_of, rows

Check = Callable[[Work], None]
COUNT = 100
STEP_MS = 1_000
BATCH = 9
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)  # noqa: UP017

STARTS: dict[str, tuple[Start, int]] = {
    "earliest": ("earliest", 0),
    "latest": ("latest", COUNT),
    "an offset": (37, 37),
    "the end": (COUNT, COUNT),
    "ten before the end": (-10, COUNT - 10),
    "more before the end than there are": (-1_000, 0),
    "a time": (Timestamp(STAMP_MS + 50 * STEP_MS), 50),
    "a time between two records": (Timestamp(STAMP_MS + 50 * STEP_MS + 1), 51),
    "a time before all": (Timestamp(1), 0),
    "a time after all": (Timestamp(STAMP_MS + 10**9), COUNT),
    "a datetime": (_EPOCH + timedelta(milliseconds=STAMP_MS + 63 * STEP_MS), 63),
}


async def fill(scene: Scene, count: int = COUNT, *, first: int = 0, partition: int = 0) -> None:
    """Write numbers to a partition, a second between each, in batches of nine."""
    async with scene.producer() as producer:
        for start in range(first, first + count, BATCH):
            numbers = range(start, min(start + BATCH, first + count))
            records = [
                each._replace(timestamp_ms=STAMP_MS + number * STEP_MS)
                for number, each in zip(numbers, numbered(numbers), strict=True)
            ]
            await (await producer.send_many(scene.topic, records, partition=partition))


def test_it_starts_where_it_is_told(check: Check) -> None:
    async def work(scene: Scene) -> None:
        await scene.create()
        await fill(scene)
        for name, (start, first) in STARTS.items():
            async with scene.consumer(start=start) as reader:
                assert reader.position((scene.topic, 0)) == first, name
                read = await read_count(reader, COUNT - first)
                assert [each.offset for each in read] == list(range(first, COUNT)), name
                assert numbers_of(read) == list(range(first, COUNT)), name

    check(work)


def test_each_partition_may_start_elsewhere(check: Check) -> None:
    async def work(scene: Scene) -> None:
        await scene.create(partitions=3)
        for partition in range(3):
            await fill(scene, 30, partition=partition)
        keys = [TopicPartition(scene.topic, PartitionId(number)) for number in range(3)]
        starts: dict[TopicPartition, Start] = {keys[0]: "earliest", keys[1]: 7, keys[2]: -5}
        async with scene.consumer(partitions=keys, start=starts) as reader:
            read = by_partition(await read_count(reader, 30 + 23 + 5))
            assert {n: each[0].offset for n, each in read.items()} == {0: 0, 1: 7, 2: 25}
            assert await reader.lag() == dict.fromkeys(keys, 0)
            assert await reader.start_offsets() == dict.fromkeys(keys, 0)
            assert await reader.end_offsets() == dict.fromkeys(keys, 30)
            found = await reader.offsets_at({keys[1]: Timestamp(STAMP_MS + 4 * STEP_MS)})
            assert found == {keys[1]: 4}

    check(work)


def test_what_is_written_later_wakes_who_waits(check: Check) -> None:
    """A poll that waits gets the record at once, not when the node stops waiting."""

    async def work(scene: Scene) -> None:
        await scene.create(partitions=2)
        await fill(scene, 5)
        # Were it not woken, it would sleep for longer than the test may take.
        async with scene.consumer(start="latest", max_wait_ms=300_000) as reader:
            waiting = asyncio.ensure_future(reader.poll(timeout_ms=None))
            async with scene.producer() as producer:
                for partition, offset in ((0, 5), (1, 0), (0, 6)):
                    written = await producer.write(scene.topic, b"late", partition=partition)
                    assert written.offset == offset
                    (record,) = await waiting
                    assert (record.partition, record.offset) == (partition, offset)
                    waiting = asyncio.ensure_future(reader.poll(timeout_ms=None))
            waiting.cancel()

    check(work)


def test_nothing_new_is_no_error(check: Check) -> None:
    async def work(scene: Scene) -> None:
        await scene.create()
        async with scene.consumer() as reader:
            assert await reader.poll(timeout_ms=0) == []
            assert await reader.poll(timeout_ms=150) == []
            assert len(rows(await reader.poll_arrow(timeout_ms=0))) == 0
            await fill(scene, 1)
            assert numbers_of(await reader.poll(timeout_ms=None)) == [0]

    check(work)


def test_a_poll_gives_no_more_than_it_may(check: Check) -> None:
    async def work(scene: Scene) -> None:
        await scene.create(partitions=2)
        await fill(scene)
        await fill(scene, partition=1)
        async with scene.consumer() as reader:
            found: list[ConsumedRecord] = []
            while len(found) < COUNT:
                some = await reader.poll(7, timeout_ms=None)
                assert 1 <= len(some) <= 7
                found += some
            while len(found) < 2 * COUNT:
                # Values of two bytes: the last one may exceed the bound.
                some = await reader.poll(max_bytes=11, timeout_ms=None)
                assert sum(len(each.value or b"") for each in some[:-1]) <= 11
                found += some
            for records in by_partition(found).values():
                assert numbers_of(records) == list(range(COUNT))
            await reader.seek((scene.topic, 0), "earliest")
            by_arrow: list[ConsumedRecord] = []
            while len(by_arrow) < COUNT:
                batch = await reader.poll_arrow(7, timeout_ms=None)
                assert 1 <= batch.num_rows <= 7
                by_arrow += rows(batch)
            assert numbers_of(by_arrow) == list(range(COUNT))

    check(work)


def test_it_holds_no_more_than_it_may(check: Check) -> None:
    """What lies ahead is fetched up to a bound, over all partitions together."""
    partitions, bound = 6, 20_000

    async def work(scene: Scene) -> None:
        await scene.create(partitions=partitions)
        async with scene.producer(batch_bytes=3_000) as producer:
            for number in range(partitions * 200):
                await producer.send(
                    scene.topic, b"%d" % (number // partitions), partition=number % partitions,
                    key=b"x" * 100,
                )  # fmt: skip
        async with scene.consumer(max_prefetch_bytes=bound, max_partition_bytes=4_000) as reader:
            read: list[ConsumedRecord] = []
            while len(read) < partitions * 200:
                read += await reader.poll(20, timeout_ms=None)
                held = [each.buffered_bytes for each in reader._reading.fetcher.cursors.values()]
                # One batch more than fits may come.
                assert sum(held) <= bound + 3_000
            for records in by_partition(read).values():
                assert numbers_of(records) == list(range(200))

    check(work)


def test_seek_pause_and_resume(check: Check) -> None:
    async def work(scene: Scene) -> None:
        await scene.create(partitions=2)
        await fill(scene)
        await fill(scene, partition=1)
        first, second = (scene.topic, 0), (scene.topic, 1)
        async with scene.consumer() as reader:
            reader.pause(first)
            assert [key.partition for key in reader.paused] == [0]
            read = await read_count(reader, COUNT)
            assert {each.partition for each in read} == {1}
            assert await reader.poll(timeout_ms=150) == []
            assert reader.position(first) == 0

            await reader.seek(first, 90)
            await reader.seek(second, -1)
            reader.resume(first)
            read = await read_count(reader, 11)
            found = {n: numbers_of(each) for n, each in by_partition(read).items()}
            assert found == {0: list(range(90, 100)), 1: [99]}

            # Back again, between two polls, with records at hand.
            await reader.seek(first, "earliest")
            some = await reader.poll(5, timeout_ms=None)
            assert numbers_of(some) == list(range(5))
            await reader.seek(first, Timestamp(STAMP_MS + 42 * STEP_MS))
            assert numbers_of(await reader.poll(1, timeout_ms=None)) == [42]
            assert reader.position(first) == 43
            await reader.seek(first, 3)
            assert numbers_of(await read_count(reader, 97)) == list(range(3, 100))

            reader.pause()
            await fill(scene, 3, first=COUNT)
            assert await reader.poll(timeout_ms=150) == []
            reader.resume()
            assert numbers_of(await read_count(reader, 3)) == [100, 101, 102]

    check(work)


def test_an_iteration_may_be_left_and_gone_on_with(check: Check) -> None:
    async def work(scene: Scene) -> None:
        await scene.create()
        await fill(scene)
        async with scene.consumer() as reader:
            found = []
            for wanted in (1, 2, 10, 40, COUNT):
                async for record in reader:
                    found.append(record)
                    assert reader.position((scene.topic, 0)) == record.offset + 1
                    if len(found) == wanted:
                        break
                if wanted == 10:
                    found += await reader.poll(5)
                    found += rows(await reader.poll_arrow(5, timeout_ms=None))
            assert numbers_of(found) == list(range(COUNT))

    check(work)


def test_an_assignment_may_change(check: Check) -> None:
    async def work(scene: Scene) -> None:
        await scene.create(partitions=3)
        for partition in range(3):
            await fill(scene, 20, partition=partition)
        async with scene.consumer(partitions=[(scene.topic, 0)]) as reader:
            assert len(await read_count(reader, 20)) == 20
            await reader.assign([(scene.topic, 0), (scene.topic, 2)], start=15)
            read = await read_count(reader, 5)
            assert {each.partition for each in read} == {2}
            await reader.assign([(scene.topic, 1)])
            read = await read_count(reader, 20)
            assert {each.partition for each in read} == {1}
            with pytest.raises(UnknownTopicOrPartitionError):
                await reader.assign([(scene.topic, 9)])
            assert [each.partition for each in reader.assignment] == [1]

    check(work)


def test_what_is_not_there_cannot_be_read(check: Check) -> None:
    """And a consumer that could not start has left nothing behind (`check` sees to that)."""

    async def work(scene: Scene) -> None:
        policy = RetryPolicy(deadline_s=0.2)
        with pytest.raises(UnknownTopicOrPartitionError):
            await scene.consumer("no-such-topic", policy=policy).start()
        with pytest.raises(UnknownTopicOrPartitionError):
            async with scene.consumer("no-such-topic", policy=policy):
                pass

    check(work)
