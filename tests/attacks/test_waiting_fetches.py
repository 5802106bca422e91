"""Crowds of Fetch requests that wait for data: hostile pipelines and honest consumers that tail.

The honest one appends to the partition that all of them wait for.
"""

import asyncio
import socket
import struct
from contextlib import AbstractAsyncContextManager

from dlog.wire import fetch, fetch_client
from tests.attacks.honest import appender
from tests.attacks.load import Result, Stage, beside, source_of
from tests.attacks.scene import TOPIC, Scene, Victims

VERSION = 4
ENDLESS_MS = 290_000
NEVER_BYTES = 2**31 - 1
MEMORY_BYTES_MAX = 96 << 20
STALL_S_MAX = 0.05
WIDE_MS = 5_000.0
"""A short form asserts no more of the time of an append than that nothing hangs."""
TAIL = struct.Struct(">ihqqi")
"""Partition, error, high watermark, last stable offset, count of aborted transactions."""


def frame(offset: int, *, min_bytes: int, max_wait_ms: int, count: int = 1) -> bytes:
    """Return a Fetch of the topic's only partition, named `count` times."""
    request = fetch.FetchRequest(
        replica_id=-1,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=NEVER_BYTES,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[(TOPIC, [(0, -1, offset, -1, -1, 1 << 20)] * count)],
        forgotten=[],
        rack_id="",
    )
    return fetch_client.encode_request(VERSION, 7, "attack", request)


async def park(stage: Stage, address: tuple[str, int], connections: int, requests: int) -> None:
    """Send a row of Fetches on each connection that never have enough; read nothing."""
    loop = asyncio.get_running_loop()
    data = frame(0, min_bytes=NEVER_BYTES, max_wait_ms=ENDLESS_MS) * requests
    socks = []
    for _ in range(connections):
        sock = socket.socket()
        sock.setblocking(False)
        await loop.sock_connect(sock, address)
        socks.append(sock)
    sending = [asyncio.ensure_future(loop.sock_sendall(sock, data)) for sock in socks]
    await asyncio.wait(sending, timeout=2.0)  # a node that reads no more is what it should be
    stage.ready()
    await stage.ended.wait()
    for each in sending:
        each.cancel()
    for sock in socks:
        sock.close()


class Tail(asyncio.Protocol):
    """A consumer at the end of the partition: it asks again behind each answer."""

    def __init__(self, min_bytes: int) -> None:
        self._min_bytes = min_bytes
        self._transport: asyncio.WriteTransport | None = None
        self._data = bytearray()
        self._at = 4 + 4 + 4 + 4 + 2 + len(TOPIC) + 4  # of the partition in an answer
        self.answers = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the first time, from the log's beginning."""
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        self._ask(0)

    def _ask(self, offset: int) -> None:
        assert self._transport is not None
        self._transport.write(frame(offset, min_bytes=self._min_bytes, max_wait_ms=ENDLESS_MS))

    def data_received(self, data: bytes) -> None:
        """Ask from the high watermark when an answer is whole."""
        self._data += data
        if len(self._data) < 4 + int.from_bytes(self._data[:4], "big"):
            return
        _, error, watermark, _, _ = TAIL.unpack_from(self._data, self._at)
        assert error == 0
        self._data.clear()
        self.answers += 1
        self._ask(watermark)


async def tail(stage: Stage, address: tuple[str, int], count: int, min_bytes: int) -> list[int]:
    """Keep honest consumers at the end; return how many answers each of them had."""
    loop = asyncio.get_running_loop()
    tails: list[Tail] = []
    for number in range(count):
        _, made = await loop.create_connection(
            lambda: Tail(min_bytes), *address, local_addr=source_of(number)
        )
        tails.append(made)
    stage.ready()
    await stage.ended.wait()
    await asyncio.sleep(1.0)  # what was appended last is on its way
    return [each.answers for each in tails]


async def measure(
    scene: Scene,
    victims: Victims,
    load: AbstractAsyncContextManager[Result],
    *,
    parked: int,
    times: float,
) -> Result:
    """Append without and with the load; bound what the load may cost; return its result."""
    seconds = scene.pick(short=2.0, long=20.0)
    async with appender(victims) as append:
        before = await append(seconds)
        memory = victims.memory_bytes()
        victims.mark()
        async with load as result:
            async with asyncio.timeout(60):
                while await victims.metric("dlog_server_parked_fetches") < parked:
                    await asyncio.sleep(0.2)
            async with victims.stalls() as stalls:
                during = await append(seconds)
            grown = victims.memory_bytes() - memory
        await append(0.5)
    scene.bound("appends that failed", during.failures, at_most=0)
    scene.bound("leases and leaders lost", victims.harms(), at_most=0)
    scene.bound("memory", grown / 2**20, "MiB", at_most=MEMORY_BYTES_MAX / 2**20)
    scene.bound("append p50", during.p50_ms, "ms", is_timing=True)
    scene.bound(
        f"append p99 ({before.p99_ms:.3g} ms without)",
        during.p99_ms,
        "ms",
        at_most=before.p99_ms * times,
        short=WIDE_MS,
        is_timing=True,
    )
    scene.bound("loop stall", stalls[0], "s", at_most=STALL_S_MAX, is_timing=True)
    return result


def test_pipelined_fetches_that_never_have_enough(scene: Scene) -> None:
    connections, requests = scene.pick(short=(10, 200), long=(20, 1000))

    async def work() -> None:
        async with scene.victims() as victims:
            load = beside(park, victims.address, connections, requests)
            await measure(scene, victims, load, parked=connections, times=3)

    scene.run(work)


def test_consumers_that_tail_one_partition(scene: Scene) -> None:
    count = scene.pick(short=300, long=10_000)

    async def work() -> None:
        limits = {"connections.max": "20000", "connections.per_ip.max": "20000"}
        async with scene.victims(overrides=limits) as victims:
            load = beside(tail, victims.address, count, 1)
            result = await measure(scene, victims, load, parked=count // 2, times=5)
        scene.bound("consumers without an answer", result.value.count(0), at_most=0)

    scene.run(work)


def test_consumers_that_want_a_megabyte_of_one_partition(scene: Scene) -> None:
    count = scene.pick(short=300, long=1_500)

    async def work() -> None:
        async with scene.victims() as victims:
            load = beside(tail, victims.address, count, 1 << 20)
            await measure(scene, victims, load, parked=count, times=3)

    scene.run(work)
