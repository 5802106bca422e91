"""What a test of behaviour plays in: a server, a topic, producers, consumers, maybe a proxy."""

import asyncio
import os
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from dlog.client.admin import Admin
from dlog.client.consumed import ConsumedRecord
from dlog.client.consumer import Consumer
from dlog.client.producer import Producer
from dlog.client.retry import RetryPolicy
from dlog.client.views import TopicView
from dlog.errors import UnknownTopicOrPartitionError
from dlog.transport import Address, ConnectionOptions
from tests.behaviour.servers import TestedServer
from tests.fakes.proxy import Proxy

PATIENCE_S = 60.0
"""Far beyond every deadline in these tests: what takes longer hangs."""
# Quick to notice, quick to return: what the harmed ones get.
POLICY = RetryPolicy(base_s=0.002, cap_s=0.1, deadline_s=40.0, lookup_timeout_s=0.5)
OPTIONS = ConnectionOptions(request_timeout_s=0.7, connect_timeout_s=0.7)
_SETTLING_TURNS = 200


class Scene:
    """A server and a topic; by way of `proxy` where there is one."""

    def __init__(self, server: TestedServer, topic: str, proxy: Proxy | None = None) -> None:
        self.server = server
        self.topic = topic
        self.proxy = proxy

    @property
    def addresses(self) -> list[Address]:
        """What clients are given."""
        if self.proxy is not None:
            return [self.proxy.address]
        return [Address.parse(self.server.bootstrap)]

    def _given(self, options: Mapping[str, Any]) -> dict[str, Any]:
        quick = {} if self.proxy is None else {"policy": POLICY, "connection": OPTIONS}
        return {"rng": random.Random(3), **quick, **options}

    def producer(self, **options: Any) -> Producer:
        """Return a producer, not started."""
        quick = {} if self.proxy is None else {"request_timeout_ms": 700}
        return Producer(self.addresses, **self._given({**quick, **options}))

    def consumer(self, *topics: str, **options: Any) -> Consumer:
        """Return a consumer of the topic, not started."""
        if "partitions" not in options:
            topics = topics or (self.topic,)
        return Consumer(self.addresses, topics, **self._given({"max_wait_ms": 100, **options}))

    def admin(self, **options: Any) -> Admin:
        """Return an admin client, not started."""
        return Admin(self.addresses, **self._given(options))

    async def create(
        self, partitions: int = 1, configs: Mapping[str, str] | None = None, topic: str = ""
    ) -> None:
        """Create the topic, and return when its partitions have leaders."""
        name = topic or self.topic
        async with self.admin() as admin:
            await admin.create_topic(name, partitions=partitions, configs=configs)
            # With Kafka the controller knows a topic before the nodes do.
            async with Consumer(self.addresses, rng=random.Random(4)) as reader:
                keys = [(name, number) for number in range(partitions)]
                await reader.start_offsets(keys)

    async def read(self, count: int, **options: Any) -> list[ConsumedRecord]:
        """Return the first `count` records of the topic and see that there is no other one."""
        async with self.consumer(**options) as reader:
            found = await read_count(reader, count)
            if options.get("start", "earliest") == "earliest":
                assert sum((await reader.end_offsets()).values()) == count
            return found


async def read_count(reader: Consumer, count: int) -> list[ConsumedRecord]:
    """Read until there are `count` records; there may not be more of them at hand."""
    found: list[ConsumedRecord] = []
    while len(found) < count:
        found += await reader.poll(timeout_ms=None)
    assert len(found) == count
    return found


def by_partition(records: Sequence[ConsumedRecord]) -> dict[int, list[ConsumedRecord]]:
    """Return the records of each partition in the order in which they came."""
    found: dict[int, list[ConsumedRecord]] = {}
    for record in records:
        found.setdefault(record.partition, []).append(record)
    return found


@asynccontextmanager
async def behind_proxy(server: TestedServer, topic: str) -> AsyncIterator[Scene]:
    """Give a scene with a proxy that does no harm yet; its clients must close all they opened."""
    async with Proxy(server.behind, server.proxy_port) as proxy:
        yield Scene(server, topic, proxy)
        proxy.heal()
        async with asyncio.timeout(PATIENCE_S):
            if not any(link.is_silent for link in proxy.links):
                await proxy.wait_ended()


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _own_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("dlog")]


Work = Callable[[Scene], Awaitable[None]]


def play(work: Callable[[], Awaitable[None]]) -> None:
    """Run a test to its end; no task, no socket and no thread of it may be left behind."""

    async def main() -> None:
        tasks, files = asyncio.all_tasks(), _descriptors()
        async with asyncio.timeout(PATIENCE_S):
            await work()
        for _ in range(_SETTLING_TURNS):  # the loop closes sockets a turn after their transports
            if _descriptors() <= files:
                break
            await asyncio.sleep(0)
        left = [task for task in asyncio.all_tasks() - tasks if not task.done()]
        assert not left, left
        assert _descriptors() <= files

    with nothing_left():
        asyncio.run(main())


@contextmanager
def nothing_left() -> Iterator[None]:
    """See that what a test opened is closed at its end, threads of the library too."""
    files = _descriptors()
    yield
    assert not _own_threads()
    assert _descriptors() <= files


async def until_it_has(ask: Callable[[], Awaitable[TopicView]], partitions: int) -> TopicView:
    """Ask until a topic has so many partitions; nodes learn of a change a moment later."""
    while True:
        try:
            view = await ask()
        except UnknownTopicOrPartitionError:
            continue
        if len(view.partitions) == partitions:
            return view
