"""Every shape of record by every way there and back: byte for byte, in order, where it belongs."""

import asyncio
import itertools
import random
from collections.abc import Callable

import pytest

from dlog.client import blocking
from dlog.client.consumed import ConsumedRecord
from dlog.client.futures import RefusedError, Written, WrittenSpan
from dlog.client.produce_options import Acks
from dlog.client.producing.partitioner import partition_for_key
from dlog.errors import RecordTooLargeError
from tests.behaviour.scene import Scene, Work, by_partition, nothing_left, read_count
from tests.behaviour.servers import TestedServer
from tests.behaviour.shapes import CODECS, STAMP_MS, check_same, numbered, numbers_of, rows, shapes

Check = Callable[[Work], None]


@pytest.mark.parametrize("codec", CODECS)
def test_every_shape_of_record_comes_back(check: Check, codec: str) -> None:
    async def work(scene: Scene) -> None:
        await scene.create()
        written = shapes()
        # Many batches, some of one record that is larger than a batch.
        async with scene.producer(compression=codec, batch_bytes=30_000) as producer:
            sent = [
                await producer.send(
                    scene.topic, each.value, each.key, each.headers, each.timestamp_ms
                )
                for each in written
            ]
            for offset, (delivery, each) in enumerate(zip(sent, written, strict=True)):
                assert await delivery == Written(0, offset, each.timestamp_ms)
            assert producer.counters.batches_sent > 5
        read = await scene.read(len(written))
        check_same(read, written)
        async with scene.consumer() as reader:
            by_arrow: list[ConsumedRecord] = []
            while len(by_arrow) < len(written):
                by_arrow += rows(await reader.poll_arrow(timeout_ms=None))
        assert by_arrow == read

    check(work)


@pytest.mark.parametrize("codec", CODECS)
def test_many_at_once(check: Check, codec: str) -> None:
    async def work(scene: Scene) -> None:
        await scene.create(partitions=3)
        written = shapes(large=False)
        values = [each.value for each in written]
        keys = [each.key for each in written]
        async with scene.producer(compression=codec, batch_bytes=20_000) as producer:
            whole = await (await producer.send_many(scene.topic, written, partition=0))
            bare = await (
                await producer.send_many(
                    scene.topic, values, keys, timestamp_ms=STAMP_MS, partition=1
                )
            )
        for partition, spans in enumerate((whole, bare)):
            assert all(isinstance(span, WrittenSpan) for span in spans)
            assert {span.partition for span in spans} == {partition}
            offsets = [span.base_offset + n for span in spans for n, _ in enumerate(span.indexes)]
            assert offsets == list(range(len(written)))
        read = by_partition(await scene.read(2 * len(written)))
        check_same(read[0], written)
        check_same(read[1], [each._replace(headers=(), timestamp_ms=STAMP_MS) for each in written])

    check(work)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_the_blocking_twins_do_the_same(server: TestedServer, topic_name: str, codec: str) -> None:
    written = shapes()
    with nothing_left():
        with blocking.Admin(server.bootstrap) as admin:
            admin.create_topic(topic_name, partitions=1)
        with blocking.Producer(server.bootstrap, compression=codec) as producer:
            sent = [
                producer.send(topic_name, each.value, each.key, each.headers, each.timestamp_ms)
                for each in written
            ]
            assert [each.result(30).offset for each in sent] == list(range(len(written)))
        with blocking.Consumer(server.bootstrap, topic_name, max_wait_ms=50) as reader:
            check_same(list(itertools.islice(reader, len(written))), written)
            reader.seek((topic_name, 0), "earliest")
            by_arrow: list[ConsumedRecord] = []
            while len(by_arrow) < len(written):
                by_arrow += rows(reader.poll_arrow(timeout_ms=None))
            check_same(by_arrow, written)


def test_order_within_each_partition(check: Check) -> None:
    """Writers beside each other, batches of all sizes: each partition has its own order."""
    partitions, count = 4, 800

    async def work(scene: Scene) -> None:
        await scene.create(partitions=partitions)
        async with scene.producer(batch_bytes=700, linger_ms=1) as producer:

            async def write(partition: int) -> None:
                for number in range(count):
                    delivery = await producer.send(scene.topic, b"%d" % number, partition=partition)
                    if number % (13 + partition) == 0:
                        delivery.batch.hurry()
                        await asyncio.sleep(0)

            await asyncio.gather(*map(write, range(partitions)))
            await producer.flush()
            assert producer.counters.records_written == partitions * count
        read = by_partition(await scene.read(partitions * count))
        for partition in range(partitions):
            assert numbers_of(read[partition]) == list(range(count))
            assert [each.offset for each in read[partition]] == list(range(count))

    check(work)


def test_keys_have_their_partitions(check: Check) -> None:
    partitions = 5
    keys = [b"", b"\x00", "ключ".encode(), *(b"key-%d" % number for number in range(300))]

    async def work(scene: Scene) -> None:
        await scene.create(partitions=partitions)
        async with scene.producer() as producer:
            singly = [await producer.send(scene.topic, b"one", key) for key in keys]
            await (await producer.send_many(scene.topic, [b"many"] * len(keys), keys))
            for key, delivery in zip(keys, singly, strict=True):
                assert (await delivery).partition == partition_for_key(key, partitions)
        read = await scene.read(2 * len(keys))
        assert {each.partition for each in read} == set(range(partitions))
        for record in read:
            assert record.key is not None
            assert record.partition == partition_for_key(record.key, partitions)

    check(work)


def test_records_without_a_key_stay_together_and_still_spread(check: Check) -> None:
    partitions, count = 4, 4_000

    async def work(scene: Scene) -> None:
        await scene.create(partitions=partitions)
        async with scene.producer(batch_bytes=5_000, linger_ms=50) as producer:
            sent = [await producer.send(scene.topic, b"x" * 100) for _ in range(count)]
            placed = [(await each).partition for each in sent]
            changes = sum(a != b for a, b in itertools.pairwise(placed))
            # One partition until a batch is full, then another one.
            assert changes <= producer.counters.batches_sent
            assert producer.counters.batches_sent < count / 20
        read = by_partition(await scene.read(count))
        assert {number: len(records) for number, records in read.items()} == {
            number: placed.count(number) for number in range(partitions)
        }

    check(work)


@pytest.mark.parametrize("acks", ["none", "leader", "all"])
def test_every_kind_of_acknowledgement(check: Check, acks: Acks) -> None:
    async def work(scene: Scene) -> None:
        await scene.create()
        async with scene.producer(acks=acks, batch_bytes=500) as producer:
            for number in range(300):
                last = await producer.send(scene.topic, b"%d" % number)
            assert (await last).offset == (-1 if acks == "none" else 299)
        assert numbers_of(await scene.read(300)) == list(range(300))

    check(work)


def test_the_leader_may_stamp_the_time(check: Check) -> None:
    async def work(scene: Scene) -> None:
        await scene.create(configs={"message.timestamp.type": "LogAppendTime"})
        async with scene.producer() as producer:
            written = await producer.write(scene.topic, b"v", timestamp_ms=STAMP_MS)
        (record,) = await scene.read(1)
        assert record.timestamp_ms == written.timestamp_ms > STAMP_MS + 1_800_000

    check(work)


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_what_is_too_large_is_refused_and_what_is_not_is_split(check: Check, codec: str) -> None:
    async def work(scene: Scene) -> None:
        await scene.create(configs={"max.message.bytes": "10000"})
        rng = random.Random(9)
        async with scene.producer(compression=codec) as producer:
            # Together they are too large, each for itself is not, but for one.
            values = [rng.randbytes(3_000 + n) for n in range(20)]
            sent = [await producer.send(scene.topic, value) for value in values[:10]]
            refused = await producer.send(scene.topic, rng.randbytes(60_000))
            sent += [await producer.send(scene.topic, value) for value in values[10:]]
            with pytest.raises(RefusedError) as caught:
                await refused
            assert isinstance(caught.value.__cause__, RecordTooLargeError)
            offsets = [(await each).offset for each in sent]
            assert offsets == list(range(len(values)))
        assert [each.value for each in await scene.read(len(values))] == values

    check(work)


def test_a_topic_may_take_larger_records(check: Check) -> None:
    async def work(scene: Scene) -> None:
        await scene.create(configs={"max.message.bytes": "8000000"})
        values = [bytes([number]) * 3_000_000 for number in range(3)]
        async with scene.producer() as producer:
            for value in values:
                await producer.write(scene.topic, value)
        read = await scene.read(3, max_prefetch_bytes=1_000_000, max_partition_bytes=100_000)
        assert [each.value for each in read] == values

    check(work)


def test_two_producers_in_one_partition(check: Check) -> None:
    """Each keeps its order; between each other there is none."""

    async def work(scene: Scene) -> None:
        await scene.create()
        async with scene.producer(batch_bytes=300) as a, scene.producer(batch_bytes=300) as b:
            for record in numbered(range(500)):
                await a.send(scene.topic, record.value, b"a")
                await b.send(scene.topic, record.value, b"b")
        async with scene.consumer() as reader:
            read = await read_count(reader, 1_000)
        for key in (b"a", b"b"):
            assert numbers_of(each for each in read if each.key == key) == list(range(500))

    check(work)
