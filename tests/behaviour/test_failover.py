"""Whatever the network does: nothing is missing, nothing twice, all in order, none hangs."""

import asyncio

import pytest

from dlog.client.admin import Admin
from dlog.client.cluster.counters import ClientCounters
from dlog.client.consumer import Consumer
from dlog.client.futures import Delivery
from dlog.client.producer import Producer
from tests.behaviour.harms import BREAKS, SLOWS, heal
from tests.behaviour.scene import Scene, behind_proxy, play
from tests.behaviour.servers import TestedServer

STEP = 120  # records between two harms
ROUNDS = 2
PARTITIONS = 2


def _pain(told: ClientCounters) -> int:
    failed = told.metadata_failures + told.connections_failed + told.connections_lost
    return failed + told.timeouts + told.transport_errors


def pain_of(admin: Admin) -> int:
    """Return how often an admin client felt a harm."""
    return _pain(admin._cluster.counters)


class Traffic:
    """A producer and a consumer of the same partitions, and what went through them."""

    def __init__(self, scene: Scene, producer: Producer, reader: Consumer) -> None:
        self.scene = scene
        self.producer = producer
        self.reader = reader
        self.deliveries: list[Delivery] = []
        self.seen: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}

    async def send(self, count: int) -> None:
        """Send the next numbers, to the partitions in turn; some go out meanwhile."""
        for _ in range(count):
            number, partition = divmod(len(self.deliveries), PARTITIONS)
            self.deliveries.append(
                await self.producer.send(self.scene.topic, b"%d" % number, partition=partition)
            )
            if len(self.deliveries) % 15 == 0:
                self.deliveries[-1].batch.hurry()
                await asyncio.sleep(0)

    async def take(self, timeout_ms: float = 20) -> None:
        """Read what is there."""
        for record in await self.reader.poll(timeout_ms=timeout_ms):
            self.seen[record.partition].append(int(record.value or b""))

    @property
    def pain(self) -> int:
        """How often producer and consumer felt a harm."""
        counters = (self.producer.cluster.counters, self.reader.client_counters)
        return self.reader.counters.fetch_failures + sum(map(_pain, counters))

    async def finish(self) -> None:
        """Write and read everything, and see that it is all there, once and in order."""
        await self.producer.flush()
        for number, delivery in enumerate(self.deliveries):
            # -1: written before, and the node remembers no more than that.
            assert (await delivery).offset in (number // PARTITIONS, -1)
        while sum(map(len, self.seen.values())) < len(self.deliveries):
            await self.take(timeout_ms=1_000)
        count = len(self.deliveries) // PARTITIONS
        assert self.seen == {number: list(range(count)) for number in range(PARTITIONS)}
        assert list((await self.reader.end_offsets()).values()) == [count] * PARTITIONS


@pytest.mark.parametrize("harm", BREAKS)
def test_every_record_once_and_in_order(server: TestedServer, topic_name: str, harm: str) -> None:
    async def work() -> None:
        async with behind_proxy(server, topic_name) as scene:
            proxy = scene.proxy
            assert proxy is not None
            await scene.create(partitions=PARTITIONS)
            async with (
                scene.producer(batch_bytes=400, linger_ms=1) as producer,
                scene.consumer(max_wait_ms=50) as reader,
                scene.admin() as admin,
            ):
                traffic = Traffic(scene, producer, reader)
                for _ in range(ROUNDS):
                    await traffic.send(STEP)
                    await traffic.take()
                    before = traffic.pain, pain_of(admin)
                    BREAKS[harm](proxy)
                    await traffic.send(STEP)
                    asked = asyncio.ensure_future(admin.describe_topic(topic_name))
                    # A harm that hits one answer may hit anybody's.
                    while (traffic.pain, pain_of(admin)) == before:
                        await traffic.take()
                    await heal(proxy)
                    assert len((await asked).partitions) == PARTITIONS
                    await traffic.take()
                await traffic.finish()

    play(work)


@pytest.mark.parametrize("harm", SLOWS)
def test_slow_is_not_broken(server: TestedServer, topic_name: str, harm: str) -> None:
    async def work() -> None:
        async with behind_proxy(server, topic_name) as scene:
            proxy = scene.proxy
            assert proxy is not None
            await scene.create(partitions=PARTITIONS)
            SLOWS[harm](proxy)
            patient = {"connection": None, "policy": None}
            async with (
                scene.producer(request_timeout_ms=30_000, batch_bytes=2_000, **patient) as producer,
                scene.consumer(**patient) as reader,
            ):
                traffic = Traffic(scene, producer, reader)
                for _ in range(ROUNDS):
                    await traffic.send(STEP)
                    await traffic.take()
                await traffic.finish()
                assert traffic.pain == 0
                assert producer.counters.batches_retried == 0

    play(work)


def test_a_server_that_is_killed_and_returns(server: TestedServer, topic_name: str) -> None:
    """What was acknowledged outlives kill -9; what was not is written once."""

    async def work() -> None:
        async with behind_proxy(server, topic_name) as scene:
            proxy = scene.proxy
            assert proxy is not None
            await scene.create(partitions=PARTITIONS)
            async with (
                scene.producer(batch_bytes=400, linger_ms=1) as producer,
                scene.consumer(max_wait_ms=50) as reader,
            ):
                traffic = Traffic(scene, producer, reader)
                for _ in range(ROUNDS):
                    await traffic.send(STEP)
                    await traffic.deliveries[-1].wait()
                    sent = producer.counters.batches_sent
                    await traffic.send(STEP)
                    while producer.counters.batches_sent == sent:
                        await asyncio.sleep(0)
                    server.kill()  # with requests on the wire
                    await traffic.send(STEP)
                    await asyncio.to_thread(server.restart)
                    proxy.upstream = server.behind
                    await traffic.send(STEP)
                    await traffic.take()
                await traffic.finish()
                assert producer.cluster.counters.connections_lost >= ROUNDS

    play(work)
