"""The producer against a real `dlogd`: every record shape, outcomes, memory, the end."""

import asyncio
from collections.abc import Iterator

import pyarrow
import pytest

from dlog.batch.records import Record
from dlog.client.cluster.cluster import Cluster
from dlog.client.consumer import Consumer
from dlog.client.futures import (
    BufferFullError,
    RefusedError,
    UnknownOutcomeError,
    Written,
    WrittenSpan,
)
from dlog.client.produce_options import CODECS
from dlog.client.producing import sender_tasks
from dlog.client.producing.partitioner import partition_for_key
from dlog.errors import DlogError, RecordTooLargeError, UnknownTopicOrPartitionError
from tests.daemon.process import DaemonProcess
from tests.daemon.producing import Scene, check, check_all_there, node_behind_port
from tests.fakes.proxy import Direction

Node = tuple[DaemonProcess, int]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Give one node that runs for all tests of this file."""
    with node_behind_port(tmp_path_factory.mktemp("node")) as running:
        yield running


SHAPES = [
    Record(None, None, (), 1, 0),
    Record(b"", b"", (), 2, 0),
    Record(b"key", b"value", (), 0, 0),
    Record(None, b"x" * 100_000, (("a", None), ("a", b""), ("ü", b"\0\xff")), 1_700_000_000_000, 0),
    Record(b"k" * 5000, None, (("h", b"v"),), 3, 0),
]


@pytest.mark.parametrize("compression", CODECS)
def test_records_of_every_shape_are_read_as_they_were_written(node: Node, compression: str) -> None:
    async def work(scene: Scene) -> None:
        async with scene.producer(compression=compression) as producer:
            for shape in SHAPES:
                given = (shape.value, shape.key, shape.headers, shape.timestamp_ms)
                await producer.send(scene.topic, *given)
            many = await producer.send_many(scene.topic, SHAPES)
            views = [memoryview(b"1"), bytearray(b"2")]
            last = await producer.send_many(scene.topic, views, timestamp_ms=9)
            assert await many == [WrittenSpan(0, len(SHAPES), range(len(SHAPES)), -1)]
            assert (await last)[0].base_offset == 2 * len(SHAPES)
        read = await scene.read()
        expected = [*SHAPES, *SHAPES, Record(None, b"1", (), 9), Record(None, b"2", (), 9)]
        assert read == [each._replace(offset=n) for n, each in enumerate(expected)]

    check(node, f"shapes-{compression}", work)


def test_records_go_where_their_keys_say_and_outcomes_tell(node: Node) -> None:
    async def work(scene: Scene) -> None:
        async with scene.producer() as producer:
            one = await producer.send(scene.topic, b"one", key=b"k7", timestamp_ms=5)
            assert one.partition == partition_for_key(b"k7", 5)
            assert one.outcome() is None
            written = await one
            assert written == Written(one.partition, 0, 5) == one.outcome() == await one
            assert (await producer.write(scene.topic, b"two", partition=4)).partition == 4
            keys = [b"k%d" % (n % 50) if n % 3 else None for n in range(3000)]
            values = [b"%d" % n for n in range(3000)]
            delivery = await producer.send_many(scene.topic, values, keys)
            spans = await delivery
            assert delivery.done()
            assert sorted(n for span in spans for n in span.indexes) == list(range(3000))
            logs = {each: await scene.read(each) for each in range(5)}
            for span in spans:
                for offset, index in enumerate(span.indexes, span.base_offset):
                    record = logs[span.partition][offset]
                    assert (record.key, record.value) == (keys[index], values[index])
                    key = keys[index]
                    assert key is None or partition_for_key(key, 5) == span.partition
            for log in logs.values():
                numbers = [int(r.value or b"") for r in log if r.key and r.value != b"one"]
                assert numbers == sorted(numbers)

    check(node, "keys", work, partition_count=5)


def test_what_was_read_as_arrow_is_sent_on_as_it_is(node: Node) -> None:
    async def work(scene: Scene) -> None:
        async with scene.producer() as producer:
            await (await producer.send_many(scene.topic, SHAPES))
            async with Consumer(scene.proxy.address, scene.topic) as consumer:
                read = await consumer.poll_arrow(timeout_ms=None)
                while read.num_rows < len(SHAPES):
                    read = pyarrow.concat_batches([read, await consumer.poll_arrow()])
            delivery = await producer.send_many(scene.topic, read, partition=0)
            assert (await delivery)[0].indexes == range(len(SHAPES))
        both = await scene.read()
        assert [each._replace(offset=0) for each in both[len(SHAPES) :]] == list(SHAPES)

    check(node, "arrow", work)


@pytest.mark.parametrize("idempotent", [True, False])
def test_many_writers_keep_the_order_of_each(node: Node, idempotent: bool) -> None:
    async def work(scene: Scene) -> None:
        async with scene.producer(idempotent=idempotent, batch_bytes=300) as producer:

            async def write(writer: int) -> None:
                for number in range(50):
                    await producer.write(scene.topic, b"%d" % number, key=b"%d" % writer)

            await asyncio.gather(*map(write, range(20)))
            assert producer.counters.records_written == 1000
            assert producer.counters.batches_sent < 1000  # they shared batches
        logs = [record for each in range(3) for record in await scene.read(each)]
        assert len(logs) == 1000
        for writer in range(20):
            mine = [int(r.value or b"") for r in logs if r.key == b"%d" % writer]
            assert mine == list(range(50))

    check(node, f"writers-{idempotent}", work, partition_count=3)


@pytest.mark.parametrize("acks", ["all", "leader", "none", None])
def test_acks(node: Node, acks: str | None) -> None:
    async def work(scene: Scene) -> None:
        async with scene.producer(acks=acks) as producer:
            deliveries = [await producer.send(scene.topic, b"%d" % n) for n in range(300)]
            offset = (await deliveries[-1]).offset
            assert offset == (-1 if acks == "none" else 299)
        while acks == "none" and len(await scene.read()) < 300:
            pass  # nobody says when they are there
        await check_all_there(scene, deliveries)

    check(node, f"acks-{acks}", work)


def test_options_that_make_no_sense_are_refused_at_once(node: Node) -> None:
    async def work(scene: Scene) -> None:
        for wrong in (
            {"acks": "most"},
            {"compression": "rar"},
            {"acks": "none", "idempotent": True},
            {"linger_ms": -1},
            {"memory_bytes": 10},
            {"batch_bytes": 10},
            {"delivery_timeout_ms": 0},
        ):
            with pytest.raises(ValueError):
                scene.producer(**wrong)

    check(node, "options", work)


def test_idempotence_is_not_dropped_in_silence(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    async def none(_cluster: Cluster, _topic: str | None = None) -> str:
        return "none"

    async def work(scene: Scene) -> None:
        monkeypatch.setattr(Cluster, "ack_default", none)
        with pytest.raises(ValueError, match="needs acks"):
            await scene.producer(idempotent=True).start()
        async with scene.producer() as producer:
            assert (await producer.write(scene.topic, b"x")).offset == -1

    check(node, "silence", work)


def test_memory_is_bounded_and_callers_wait_for_it(node: Node) -> None:
    async def work(scene: Scene) -> None:
        bounds = {"memory_bytes": 20_000, "batch_bytes": 5_000, "delivery_timeout_ms": 60_000}
        async with scene.producer(block_ms=60_000, **bounds) as producer:
            await producer.send(scene.topic, b"0")
            await producer.flush()
            scene.proxy.stall()
            sent = [await producer.send(scene.topic, b"")]

            async def write() -> None:
                for _ in range(400):
                    sent.append(  # noqa: PERF401
                        await producer.send(scene.topic, b"x" * 300)
                    )

            writers = [asyncio.ensure_future(write()) for _ in range(3)]
            while not producer.counters.memory_waits >= 3:
                await asyncio.sleep(0)
            stuck = len(sent)
            assert 20_000 * 0.6 < stuck * 300 < 20_000
            for _ in range(100):
                await asyncio.sleep(0)
            assert len(sent) == stuck
            with pytest.raises(RecordTooLargeError):
                await producer.send(scene.topic, b"x" * 20_000)
            writers[0].cancel()  # leaves the queue of those who wait
            scene.proxy.heal()
            await asyncio.gather(*writers[1:])
            offsets = [(await each).offset for each in sent]
            assert sorted(offsets) == list(range(1, len(sent) + 1))
        assert len(await scene.read()) == len(sent) + 1

    check(node, "memory", work)


def test_memory_that_stays_full_is_an_error(node: Node) -> None:
    async def work(scene: Scene) -> None:
        bounds = {"memory_bytes": 2_000, "batch_bytes": 1_000, "block_ms": 50}
        async with scene.producer(**bounds) as producer:
            await producer.write(scene.topic, b"0")
            scene.proxy.stall()
            count = 0
            with pytest.raises(BufferFullError):
                while True:
                    await producer.send(scene.topic, b"x" * 100)
                    count += 1
            with pytest.raises(BufferFullError):
                await producer.send_many(scene.topic, [b"x" * 100] * 100)
            scene.proxy.heal()
        assert producer.counters.records_written == count + 1

    check(node, "full", work)


def test_time_runs_out(node: Node) -> None:
    async def work(scene: Scene) -> None:
        async with scene.producer(delivery_timeout_ms=300) as producer:
            await producer.write(scene.topic, b"0")
            scene.proxy.swallow(Direction.TO_CLIENT)
            lost = await producer.send(scene.topic, b"1")
            with pytest.raises(UnknownOutcomeError, match="time-0: "):
                await lost
            scene.proxy.refuse()
            lost_count = producer.cluster.counters.connections_lost
            scene.proxy.cut()
            while producer.cluster.counters.connections_lost == lost_count:
                await asyncio.sleep(0)  # what is sent before it is noticed may arrive
            never = await producer.send(scene.topic, b"2")
            many = await producer.send_many(scene.topic, [b"3", b"4"])
            with pytest.raises(RefusedError, match="time-0: it could not be "):
                await never
            with pytest.raises(RefusedError):
                await many
            assert isinstance(never.outcome(), RefusedError)
            scene.proxy.heal()
            await scene.proxy.start()
            assert (await producer.write(scene.topic, b"5")).offset in (1, 2)
            counters = producer.counters
            assert (counters.records_unknown, counters.records_refused) == (1, 3)
        values = [record.value for record in await scene.read()]
        assert values in ([b"0", b"5"], [b"0", b"1", b"5"])

    check(node, "time", work)


def test_a_batch_that_is_too_large_is_split(node: Node) -> None:
    async def work(scene: Scene) -> None:
        async with scene.producer(linger_ms=1000) as producer:
            deliveries = [await producer.send(scene.topic, b"%d" % n) for n in range(300)]
            await check_all_there(scene, deliveries)
            assert producer.counters.batches_split >= 3
            large = await producer.send(scene.topic, b"x" * 3000)
            small = await producer.send_many(scene.topic, [b"%d" % n for n in range(300, 600)])
            with pytest.raises(RefusedError, match="split-0: ") as refused:
                await large
            assert isinstance(refused.value.__cause__, RecordTooLargeError)
            assert sum(len(span.indexes) for span in await small) == 300
        values = [int(record.value or b"") for record in await scene.read()]
        assert values == list(range(600))

    check(node, "split", work, configs={"max.message.bytes": "1500"})


def test_topics_that_are_not_there(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender_tasks, "NEW_TOPIC_PATIENCE_S", 0.05)

    async def work(scene: Scene) -> None:
        async with scene.producer() as producer:
            with pytest.raises(UnknownTopicOrPartitionError):
                await producer.send("nowhere", b"")
            with pytest.raises(UnknownTopicOrPartitionError):
                await producer.send_many("nowhere", [b""])
            with pytest.raises(ValueError, match="has partitions 0 to 0"):
                await producer.send(scene.topic, b"", partition=1)
            with pytest.raises(ValueError, match="1 keys for 2 values"):
                await producer.send_many(scene.topic, [b"", b""], [b""])
            with pytest.raises(TypeError):
                await producer.send(scene.topic, "text")  # type: ignore[arg-type]
        assert await scene.read() == []

    check(node, "there", work)


def test_the_end(node: Node) -> None:
    async def work(scene: Scene) -> None:
        producer = scene.producer(linger_ms=60_000)
        with pytest.raises(DlogError, match="not open"):
            await producer.send(scene.topic, b"")
        async with producer:
            await producer.send(scene.topic, b"0")
            await producer.flush()
            delivery = await producer.send(scene.topic, b"1")
        assert delivery.done()
        with pytest.raises(DlogError, match="not open"):
            await producer.send(scene.topic, b"")
        with pytest.raises(DlogError, match="not open"):
            await producer.send_many(scene.topic, [b""])
        await producer.close()
        assert [record.value for record in await scene.read()] == [b"0", b"1"]

    check(node, "end", work)


def test_the_end_in_a_hurry(node: Node) -> None:
    async def work(scene: Scene) -> None:
        producer = scene.producer(memory_bytes=2000, batch_bytes=1000)
        await producer.start()
        await producer.write(scene.topic, b"0")
        scene.proxy.stall()
        lost = await producer.send(scene.topic, b"1")
        waiting = asyncio.ensure_future(producer.send_many(scene.topic, [b"x" * 100] * 100))
        while not producer.counters.memory_waits:
            await asyncio.sleep(0)
        await producer.close(timeout_ms=20)
        with pytest.raises(UnknownOutcomeError, match="closed"):
            await lost
        with pytest.raises(DlogError, match="not open"):
            await waiting

    check(node, "hurry", work)
