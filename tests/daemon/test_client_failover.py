"""The client against a real `dlogd` behind a proxy that does harm.

What was acknowledged is there, once and in order; no call outlives its deadline; nothing is left.
"""

import asyncio
import os
import random
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from dlog.batch.records import Record, decode, encode
from dlog.client.admin import Admin
from dlog.client.cluster import partition_calls
from dlog.client.cluster.cluster import Cluster
from dlog.client.producing.producer_id import init_producer_id
from dlog.client.retry import RetryPolicy
from dlog.errors import ConnectFailedError, RequestTimedOutError
from dlog.transport import Address, ConnectionOptions
from tests.daemon.process import DaemonProcess, daemon
from tests.fakes.proxy import Direction, Proxy

PARTITIONS, PARTITION = 3, 0
RECORDS = 40
HARM_ROUNDS = int(os.environ.get("DLOG_HARM_ROUNDS", "3"))
VALUE = b"x" * 200
POLICY = RetryPolicy(base_s=0.001, cap_s=0.05, deadline_s=60.0, lookup_timeout_s=0.5)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Keep one port for the proxies of this file: the node advertises it."""
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        keeper.bind(("127.0.0.1", 0))
        yield keeper.getsockname()[1]


@pytest.fixture(scope="module")
def node(port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """Give one node that runs for all tests of this file."""
    folder: Path = tmp_path_factory.mktemp("node")
    with daemon(folder, f"advertised.address: 127.0.0.1:{port}\n") as process:
        process.start()
        yield process


def address_of(node: DaemonProcess) -> Address:
    return Address.parse(node.status()["listeners"][0])


@dataclass
class Scene:
    """A client, the proxy, the node, and what was acknowledged, by partition: record -> offset."""

    node: DaemonProcess
    proxy: Proxy
    cluster: Cluster
    topic: str
    acknowledged: dict[int, dict[int, int]] = field(default_factory=dict)
    producer: tuple[int, int] = (-1, -1)

    async def write(self, count: int, partition: int = PARTITION) -> None:
        """Append so many records, one after the other, each until it is acknowledged."""
        acknowledged = self.acknowledged.setdefault(partition, {})
        for _ in range(count):
            number = len(acknowledged)
            # Of now: retention deletes what is old.
            now_ms = time.time_ns() // 1_000_000
            record = Record(b"%d" % number, VALUE, (), timestamp_ms=now_ms)
            producer_id, producer_epoch = self.producer
            batch = encode(
                [record],
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=number,
            )
            produced = await self.cluster.run(
                lambda: self.cluster.leader(self.topic, partition),
                lambda node, batch=batch: partition_calls.produce(  # type: ignore[misc]
                    node, self.topic, partition, batch, timeout_ms=200
                ),
                topic=self.topic,
            )
            assert produced is not None
            acknowledged[number] = produced.base_offset

    async def read(self, count: int, partition: int = PARTITION) -> list[int]:
        """Return the numbers of all records in their order, at least `count`."""
        found: list[int] = []
        while len(found) < count:
            offset = len(found)
            fetched = await self.cluster.run(
                lambda: self.cluster.leader(self.topic, partition),
                lambda node, offset=offset: partition_calls.fetch(  # type: ignore[misc]
                    node, self.topic, partition, offset, max_wait_ms=50, partition_max_bytes=2000
                ),
                topic=self.topic,
            )
            found += numbers_in(fetched.records)
        return found


def numbers_in(records: memoryview) -> list[int]:
    """Return the keys of all whole batches."""
    found: list[int] = []
    position = 0
    while position + 12 <= len(records):
        end = position + 12 + int.from_bytes(records[position + 8 : position + 12], "big")
        if end > len(records):
            break
        found += [int(record.key or b"") for record in decode(records, position)]
        position = end
    return found


Work = Callable[[Scene], Awaitable[None]]


def check(
    node: DaemonProcess, port: int, topic: str, work: Work, policy: RetryPolicy = POLICY
) -> None:
    async def main() -> None:
        tasks_before, files_before = asyncio.all_tasks(), len(os.listdir("/proc/self/fd"))
        async with Proxy(address_of(node), port) as proxy:
            options = ConnectionOptions(request_timeout_s=0.5, connect_timeout_s=0.5)
            loop = asyncio.get_running_loop()
            cluster = Cluster(
                [proxy.address], loop=loop, rng=random.Random(3), options=options, policy=policy
            )
            try:
                async with asyncio.timeout(120):
                    await Admin(cluster).create_topic(topic, partitions=PARTITIONS)
                    scene = Scene(node, proxy, cluster, topic)
                    scene.producer = await init_producer_id(await cluster.any_node())
                    await work(scene)
            finally:
                await cluster.close()
        assert asyncio.all_tasks() == tasks_before
        assert len(os.listdir("/proc/self/fd")) == files_before

    asyncio.run(main())


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait less for lost answers than programs do."""
    monkeypatch.setattr(partition_calls, "ANSWER_SLACK_S", 0.3)


async def delay(scene: Scene) -> None:
    scene.proxy.delay_s = 0.005


async def drip(scene: Scene) -> None:
    scene.proxy.drip = (16, 0.001)


async def cut_an_answer(scene: Scene) -> None:
    scene.proxy.cut_after(Direction.TO_CLIENT, 9)


async def cut_a_request(scene: Scene) -> None:
    scene.proxy.cut_after(Direction.TO_SERVER, 150)


async def reset_after_the_request(scene: Scene) -> None:
    scene.proxy.cut_after(Direction.TO_CLIENT, 1, reset=True)


async def reset(scene: Scene) -> None:
    scene.proxy.cut(reset=True)


async def lose_answers(scene: Scene) -> None:
    scene.proxy.swallow(Direction.TO_CLIENT)
    asyncio.get_running_loop().call_later(0.7, scene.proxy.heal)


async def black_hole(scene: Scene) -> None:
    scene.proxy.swallow()
    asyncio.get_running_loop().call_later(0.7, scene.proxy.heal)


async def half_open(scene: Scene) -> None:
    scene.proxy.half_open()


async def refuse_for_a_while(scene: Scene) -> None:
    scene.proxy.refuse()
    scene.proxy.cut()
    call = asyncio.ensure_future(scene.write(1))
    while not scene.cluster.counters.connections_failed:
        await asyncio.sleep(0.001)
    await scene.proxy.start()
    await call


async def reorder(scene: Scene) -> None:
    scene.proxy.hold(2)
    scene.proxy.cut()
    other = Cluster([scene.proxy.address], loop=asyncio.get_running_loop(), rng=random.Random(4))
    await asyncio.gather(other.rediscover(), scene.write(1))
    await other.close()


async def kill(scene: Scene) -> None:
    scene.node.signal(signal.SIGKILL)
    scene.node.wait()
    scene.node.start()
    scene.proxy.upstream = address_of(scene.node)


HARMS = [
    delay,
    drip,
    cut_an_answer,
    cut_a_request,
    reset_after_the_request,
    reset,
    lose_answers,
    black_hole,
    half_open,
    refuse_for_a_while,
    reorder,
    kill,
]


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
def test_what_was_acknowledged_is_there_once(harm: Work, node: DaemonProcess, port: int) -> None:
    async def work(scene: Scene) -> None:
        await scene.write(RECORDS // 2)
        await harm(scene)
        await scene.write(RECORDS // 2)
        written = len(scene.acknowledged[PARTITION])
        if harm in (delay, drip, cut_an_answer):
            await harm(scene)
        found = await scene.read(written)
        assert found == list(range(written))
        assert scene.acknowledged[PARTITION] == {number: number for number in range(written)}
        counters = scene.cluster.counters
        if harm not in (delay, drip):
            assert counters.retries >= 1
            assert counters.connections_opened >= 2

    check(node, port, harm.__name__.replace("_", "-"), work)


@pytest.mark.parametrize("harm", [black_hole, half_open, drip], ids=lambda harm: harm.__name__)
def test_no_call_outlives_its_deadline(harm: Work, node: DaemonProcess, port: int) -> None:
    async def work(scene: Scene) -> None:
        await scene.write(1)
        await harm(scene)
        scene.proxy.drip = (1, 0.2)
        scene.cluster.policy = replace(POLICY, deadline_s=0.4)
        async with asyncio.timeout(30):
            with pytest.raises((ConnectFailedError, RequestTimedOutError)):
                await scene.write(1)
        scene.proxy.heal()
        scene.proxy.cut()
        scene.cluster.policy = POLICY
        await scene.write(1)  # the same record: the call that ended may have written it
        assert await scene.read(2) == [0, 1]

    check(node, port, f"late-{harm.__name__.replace('_', '-')}", work)


def hurt(proxy: Proxy, rng: random.Random) -> None:
    """Do some harm, or undo all."""
    loop = asyncio.get_running_loop()
    harms: list[Callable[[], object]] = [
        lambda: proxy.cut_after(rng.choice(list(Direction)), rng.randint(1, 2000)),
        lambda: proxy.cut_after(Direction.TO_CLIENT, rng.randint(1, 90), reset=True),
        lambda: proxy.cut(reset=rng.random() < 0.5),
        lambda: proxy.swallow(rng.choice(list(Direction))),
        proxy.stall,
        proxy.half_open,
        lambda: setattr(proxy, "delay_s", rng.uniform(0.0, 0.05)),
        lambda: setattr(proxy, "drip", (rng.randint(1, 50), 0.001)),
        lambda: proxy.hold(2),
    ]
    rng.choice(harms)()
    loop.call_later(rng.uniform(0.0, 0.3), proxy.heal)


@pytest.mark.parametrize("seed", range(1, HARM_ROUNDS + 1))
def test_many_harms_at_any_time(seed: int, node: DaemonProcess, port: int) -> None:
    async def work(scene: Scene) -> None:
        rng = random.Random(seed)
        writers = [asyncio.ensure_future(scene.write(300, n)) for n in range(PARTITIONS)]
        while not all(writer.done() for writer in writers):
            hurt(scene.proxy, rng)
            await asyncio.wait(writers, timeout=rng.uniform(0.0, 0.4))
        await asyncio.gather(*writers)
        scene.proxy.heal()
        for partition in range(PARTITIONS):
            numbers = list(range(300))
            assert await scene.read(300, partition) == numbers
            assert scene.acknowledged[partition] == {number: number for number in numbers}

    check(node, port, f"harms-{seed}", work)
