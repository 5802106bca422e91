"""The producer behind a proxy that does harm: all is there once and in order, nothing is left."""

import asyncio
import random
import signal
from collections.abc import Callable, Iterator

import pytest

from dlog.client.futures import Delivery, UnknownOutcomeError, Written
from dlog.client.producer import Producer
from tests.daemon.process import DaemonProcess
from tests.daemon.producing import Scene, address_of, check, check_all_there, node_behind_port
from tests.fakes.proxy import Direction, Proxy

Node = tuple[DaemonProcess, int]
STEP = 150  # records between two harms
PAUSE = 10  # records between two looks at the loop


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Give one node that runs for all tests of this file."""
    with node_behind_port(tmp_path_factory.mktemp("node")) as running:
        yield running


async def send(producer: Producer, scene: Scene, deliveries: list[Delivery], count: int) -> None:
    """Send the next `count` numbers; some go out while the others are still being sent."""
    for _ in range(count):
        deliveries.append(await producer.send(scene.topic, b"%d" % len(deliveries)))
        if len(deliveries) % PAUSE == 0:
            deliveries[-1].batch.hurry()
            await asyncio.sleep(0)


HARMS: dict[str, Callable[[Proxy], None]] = {
    "cut": lambda proxy: proxy.cut(),
    "reset": lambda proxy: proxy.cut(reset=True),
    "request cut": lambda proxy: proxy.cut_after(Direction.TO_SERVER, 37),
    "request reset": lambda proxy: proxy.cut_after(Direction.TO_SERVER, 333, reset=True),
    "answer cut": lambda proxy: proxy.cut_after(Direction.TO_CLIENT, 7),
    "answer lost": lambda proxy: proxy.cut_after(Direction.TO_CLIENT, 0),
    "black hole": lambda proxy: proxy.swallow(),
    "answers swallowed": lambda proxy: proxy.swallow(Direction.TO_CLIENT),
    "half open": lambda proxy: proxy.half_open(),
    "stall": lambda proxy: proxy.stall(),
    "delay": lambda proxy: setattr(proxy, "delay_s", 0.02),
    "drip": lambda proxy: setattr(proxy, "drip", (3, 0.001)),
    "reorder": lambda proxy: (proxy.hold(2), proxy.cut())[-1],
}
# These break nothing by themselves, but what goes through next; some show by silence alone.
LATER = (
    *("request cut", "request reset", "answer cut", "answer lost"),
    *("black hole", "answers swallowed", "half open", "stall"),
)
SLOW = ("delay", "drip")


@pytest.mark.parametrize("harm", HARMS)
def test_every_record_is_there_once_and_in_order(node: Node, harm: str) -> None:
    async def work(scene: Scene) -> None:
        deliveries: list[Delivery] = []
        async with scene.producer(batch_bytes=400) as producer:
            await send(producer, scene, deliveries, STEP)
            for _ in range(3):
                told = producer.cluster.counters
                before = told.timeouts + told.transport_errors
                HARMS[harm](scene.proxy)
                await send(producer, scene, deliveries, STEP)
                if harm in LATER:
                    while told.timeouts + told.transport_errors == before:
                        await asyncio.sleep(0.001)
                scene.proxy.heal()
                await asyncio.gather(*(each.wait() for each in deliveries[-1:]))
            await producer.flush()
            counters = producer.counters
            assert counters.records_written == len(deliveries)
            assert bool(told.connections_lost) is (harm not in SLOW)
            if harm in LATER:
                assert counters.batches_retried
        await check_all_there(scene, deliveries)

    check(node, harm.replace(" ", "-"), work)


def test_everything_at_random(node: Node) -> None:
    """Beside it, three harms a moment; several partitions and writers."""

    async def work(scene: Scene) -> None:
        rng = random.Random(11)
        async with scene.producer(batch_bytes=600, compression="lz4") as producer:

            async def write(partition: int) -> list[Written]:
                deliveries: list[Delivery] = []
                # Until some harm was felt: where nothing was on the wire it does none.
                while len(deliveries) < 1500 or producer.counters.batches_retried <= 3:
                    number = len(deliveries)
                    value = b"%d" % number
                    deliveries.append(await producer.send(scene.topic, value, partition=partition))
                    if number % 25 == 0:
                        deliveries[-1].batch.hurry()
                        await asyncio.sleep(rng.uniform(0, 0.01))
                return [await delivery for delivery in deliveries]

            async def harm() -> None:
                while True:
                    HARMS[rng.choice(list(HARMS))](scene.proxy)
                    await asyncio.sleep(rng.uniform(0, 0.05))
                    scene.proxy.heal()
                    await asyncio.sleep(rng.uniform(0, 0.1))

            harming = asyncio.ensure_future(harm())
            try:
                outcomes = await asyncio.gather(*map(write, range(3)))
            finally:
                harming.cancel()
            scene.proxy.heal()
        for partition, written in enumerate(outcomes):
            log = await scene.read(partition)
            assert [int(record.value or b"") for record in log] == list(range(len(written)))
            assert all(each.offset in (n, -1) for n, each in enumerate(written))

    check(node, "random", work, partition_count=3)


def test_a_node_that_is_killed(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What was acknowledged outlives kill -9, and nothing is written twice."""
    with node_behind_port(tmp_path_factory.mktemp("killed")) as node:

        async def work(scene: Scene) -> None:
            deliveries: list[Delivery] = []
            loop = asyncio.get_running_loop()
            async with scene.producer(batch_bytes=400) as producer:
                for _ in range(4):
                    await send(producer, scene, deliveries, STEP)
                    scene.node.signal(signal.SIGKILL)
                    await send(producer, scene, deliveries, STEP)
                    await loop.run_in_executor(None, scene.node.wait)
                    await loop.run_in_executor(None, scene.node.start)
                    scene.proxy.upstream = address_of(scene.node)
                    await send(producer, scene, deliveries, STEP)
                    await producer.flush()
                assert producer.counters.batches_retried
            await check_all_there(scene, deliveries)

        check(node, "killed", work)


def test_an_idempotent_producer_outlives_its_state_on_the_node(node: Node) -> None:
    """A gap that stays, after a batch was lost for good, starts another epoch (KIP-360)."""

    async def work(scene: Scene) -> None:
        async with scene.producer(delivery_timeout_ms=1_500) as producer:
            await producer.write(scene.topic, b"0")
            scene.proxy.swallow(Direction.TO_SERVER)
            lost = await producer.send(scene.topic, b"lost")
            with pytest.raises(UnknownOutcomeError):
                await lost
            scene.proxy.heal()
            scene.proxy.cut()
            for number in range(1, 20):
                await producer.write(scene.topic, b"%d" % number)
            assert producer.counters.epochs_begun == 1
        values = [record.value for record in await scene.read()]
        assert values == [b"%d" % number for number in range(20)]

    check(node, "state", work)
