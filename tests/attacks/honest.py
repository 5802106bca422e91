"""Honest clients beside an attack, and how long each of their requests takes."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from dlog.batch.records import Record, encode
from dlog.client.cluster.cluster import Cluster
from dlog.client.cluster.partition_calls import produce
from dlog.transport import Address
from tests.attacks.scene import TOPIC, Victims

PAUSE_S = 0.005
ANSWER_S = 30.0
"""A request without an answer counts for this time."""


class Times:
    """How long requests took, in seconds."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.failures = 0

    def quantile_ms(self, part: float) -> float:
        """Return the time that `part` of the requests did not take longer than."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(len(ordered) * part))] * 1000

    @property
    def p50_ms(self) -> float:
        """The median."""
        return self.quantile_ms(0.5)

    @property
    def p99_ms(self) -> float:
        """The time of 99 in a hundred."""
        return self.quantile_ms(0.99)

    @property
    def max_ms(self) -> float:
        """The longest."""
        return self.quantile_ms(1.0)


async def timed(call: Callable[[], Awaitable[object]], seconds: float) -> Times:
    """Call again and again with a short pause for `seconds`; at least once."""
    times = Times()
    ends = time.monotonic() + seconds
    while not times.seconds or time.monotonic() < ends:
        started = time.monotonic()
        try:
            async with asyncio.timeout(ANSWER_S):
                await call()
        except (OSError, TimeoutError):
            times.failures += 1
        times.seconds.append(time.monotonic() - started)
        await asyncio.sleep(PAUSE_S)
    return times


@asynccontextmanager
async def appender(victims: Victims) -> AsyncIterator[Callable[[float], Awaitable[Times]]]:
    """Give a function that appends single records with acks=1 for some seconds, and its times."""
    loop = asyncio.get_running_loop()
    cluster = Cluster([Address(*victims.address)], loop=loop, rng=random.Random(1))

    async def append() -> None:
        node = await cluster.leader(TOPIC, 0)
        batch = encode([Record(value=bytes(100), timestamp_ms=int(time.time() * 1000))])
        await produce(node, TOPIC, 0, batch, acks=1)

    async def work(seconds: float) -> Times:
        return await timed(append, seconds)

    try:
        await work(0.5)  # connects and warms up
        yield work
    finally:
        with suppress(OSError):
            await cluster.close()
