"""What the tests of the producer share: a node behind a proxy, topics, and reading them back."""

import asyncio
import os
import random
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlog.batch.decoding import decode_records
from dlog.batch.records import Record
from dlog.client.admin import Admin
from dlog.client.cluster import partition_calls
from dlog.client.cluster.cluster import Cluster
from dlog.client.futures import Delivery, Written
from dlog.client.producer import Producer
from dlog.client.retry import RetryPolicy
from dlog.transport import Address, ConnectionOptions
from tests.daemon.process import DaemonProcess, daemon
from tests.fakes.proxy import Proxy

POLICY = RetryPolicy(base_s=0.001, cap_s=0.05, deadline_s=60.0, lookup_timeout_s=0.5)
OPTIONS = ConnectionOptions(request_timeout_s=0.5, connect_timeout_s=0.5)


@contextmanager
def node_behind_port(folder: Path) -> Iterator[tuple[DaemonProcess, int]]:
    """Give a running node that advertises a port which is kept for proxies."""
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        keeper.bind(("127.0.0.1", 0))
        port: int = keeper.getsockname()[1]
        with daemon(folder, f"advertised.address: 127.0.0.1:{port}\n") as process:
            process.start()
            yield process, port


def address_of(node: DaemonProcess) -> Address:
    """Return where the node itself listens."""
    return Address.parse(node.status()["listeners"][0])


@dataclass
class Scene:
    """A node, the proxy in front of it, and a topic."""

    node: DaemonProcess
    proxy: Proxy
    topic: str

    def producer(self, **options: Any) -> Producer:
        """Return a producer that is quick to notice and quick to return."""
        given = {"policy": POLICY, "connection": OPTIONS, "request_timeout_ms": 500}
        given |= {"rng": random.Random(3), "linger_ms": 1.0} | options
        return Producer([self.proxy.address], **given)

    async def read(self, partition: int = 0, start: int = 0) -> list[Record]:
        """Return all records of a partition, by ways that nobody harms."""
        loop = asyncio.get_running_loop()
        cluster = Cluster([self.proxy.address], loop=loop, rng=random.Random(1))
        found: list[Record] = []
        try:
            while True:
                offset = start + len(found)
                node = await cluster.leader(self.topic, partition)
                fetched = await partition_calls.fetch(
                    node, self.topic, partition, offset, max_wait_ms=0
                )
                found += decode_records(fetched.records, offset)
                if start + len(found) >= fetched.high_watermark:
                    return found
        finally:
            await cluster.close()


Work = Callable[[Scene], Awaitable[None]]


def check(
    node: tuple[DaemonProcess, int],
    topic: str,
    work: Work,
    *,
    partition_count: int = 1,
    configs: dict[str, str] | None = None,
) -> None:
    """Run `work` in a scene of its own; nothing may be left behind: no task, no descriptor."""
    process, port = node

    async def main() -> None:
        tasks, files = asyncio.all_tasks(), len(os.listdir("/proc/self/fd"))
        async with Proxy(address_of(process), port) as proxy:
            scene = Scene(process, proxy, topic)
            loop = asyncio.get_running_loop()
            cluster = Cluster([proxy.address], loop=loop, rng=random.Random(1))
            try:
                await Admin(cluster).create_topic(
                    topic,
                    partitions=partition_count,
                    configs={"retention.ms": "-1", **(configs or {})},
                )
            finally:
                await cluster.close()
            async with asyncio.timeout(120):
                await work(scene)
            proxy.heal()
            async with asyncio.timeout(30):
                if not any(link.is_silent for link in proxy.links):
                    await proxy.wait_ended()  # the producer has closed all that it opened
        left = [task for task in asyncio.all_tasks() - tasks if not task.done()]
        assert not left, left
        assert len(os.listdir("/proc/self/fd")) <= files

    asyncio.run(main())


async def check_all_there(scene: Scene, deliveries: list[Delivery]) -> None:
    """Check that records 0, 1, 2 ... are there once, in order, where their outcomes say."""
    written = [await delivery for delivery in deliveries]
    records = await scene.read()
    assert [record.value for record in records] == [b"%d" % n for n in range(len(deliveries))]
    for number, each in enumerate(written):
        assert isinstance(each, Written)
        assert each.offset in (number, -1)
