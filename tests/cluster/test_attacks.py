"""Garbage, slow peers and very many connections on the listeners that are for nodes only.

Whoever can reach them must not be able to disturb the cluster with that: nobody loses a lease, no
other node comes to lead, memory and descriptors stay bounded, and other nodes still get in.
"""

import asyncio
import os
import random
import resource
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

from dlogctl.sandbox.layout import HOST
from tests.cluster.nodes import Cluster, Node, cluster_of, cpu_s
from tests.cluster.running import make_topics, run
from tests.fakes.process_memory import anonymous_bytes

CROWD = 1_100
SECONDS = 6.0
MEMORY_BYTES_MAX = 96 << 20
"""How much more a node may hold under attack."""
PORTS = ("raft", "internal")

Attack = Callable[[int], Awaitable[None]]


def port_of(node: Node, name: str) -> int:
    """Return one of the listeners that are for nodes."""
    return node.raft_port if name == "raft" else node.internal_port


def sockets(node: Node) -> int:
    """Return how many sockets a node has open. Not files: new topics have some of their own."""
    assert node.process is not None
    count = 0
    for each in Path(f"/proc/{node.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            count += os.readlink(each).startswith("socket:")
    return count


@asynccontextmanager
async def unharmed(cluster: Cluster) -> AsyncIterator[None]:
    """Fail when the cluster has changed its leaders or lost leases meanwhile."""
    marks = [len(each.log) for each in cluster.nodes]
    memory = [anonymous_bytes(each.process) for each in cluster.nodes]
    begun = {each.node_id: sockets(each) for each in cluster.nodes}
    yield
    await cluster.until_well()
    for node, mark, before in zip(cluster.nodes, marks, memory, strict=True):
        said = node.log[mark:]
        for event in ("Became leader of the metadata quorum", "Lease ended", "Gave up a node"):
            assert event not in said, said[-3000:]
        assert anonymous_bytes(node.process) - before < MEMORY_BYTES_MAX
    async with asyncio.timeout(60):
        while any(sockets(each) > begun[each.node_id] + 8 for each in cluster.nodes):
            await asyncio.sleep(0.1)
    cluster.expect_no_complaints()


async def send(port: int, data: bytes, *, patience_s: float = 3.0) -> None:
    """Send bytes and wait until the node closes, or for a while."""
    try:
        reader, writer = await asyncio.open_connection(HOST, port)
    except OSError:
        return
    try:
        writer.write(data)
        async with asyncio.timeout(patience_s):
            await writer.drain()
            await reader.read()
    except (OSError, TimeoutError):
        pass
    finally:
        writer.transport.abort()


async def garbage(port: int) -> None:
    """Send random bytes, huge lengths, half a hello, a long zero frame: again and again."""
    rng = random.Random(port)
    end_s = time.monotonic() + SECONDS
    while time.monotonic() < end_s:
        bodies = [
            rng.randbytes(rng.randint(1, 2000)),
            struct.pack(">I", 0xFFFFFFFF) + rng.randbytes(100),
            struct.pack(">I", 60) + b"dlograft" + rng.randbytes(rng.randint(0, 60)),
            struct.pack(">I", 500) + b"dlograft\x00\x01" + rng.randbytes(490),
            struct.pack(">i", -5) + bytes(100),
            bytes(1 << 20),
            struct.pack(">Ihhi", 200, rng.randint(-10, 1000), rng.randint(-1, 20), 1) + bytes(192),
        ]
        await asyncio.gather(*(send(port, each, patience_s=0.5) for each in bodies))


async def slow(port: int) -> None:
    """Hold many connections, each with a byte now and then."""
    opened = [await asyncio.open_connection(HOST, port) for _ in range(50)]
    end_s = time.monotonic() + SECONDS
    frame = struct.pack(">I", 60) + b"dlograft" + bytes(52)
    try:
        for position in range(len(frame)):
            for _, writer in opened:
                writer.write(frame[position : position + 1])
            if time.monotonic() > end_s:
                break
            await asyncio.sleep(SECONDS / 20)
    finally:
        for _, writer in opened:
            writer.transport.abort()


@asynccontextmanager
async def crowd(port: int) -> AsyncIterator[None]:
    """Hold very many connections that say nothing."""
    opened = await asyncio.gather(
        *(asyncio.open_connection(HOST, port) for _ in range(CROWD)), return_exceptions=True
    )
    writers = [each[1] for each in opened if not isinstance(each, BaseException)]
    assert len(writers) > CROWD // 2
    try:
        yield
    finally:
        for writer in writers:
            writer.transport.abort()


@pytest.fixture(autouse=True)
def many_descriptors() -> None:
    """Let this process and the nodes hold a crowd."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 16_384)), hard))


@pytest.mark.parametrize("name", PORTS)
def test_garbage_and_slow_peers(tmp_path: Path, name: str) -> None:
    async def work() -> None:
        async with cluster_of(tmp_path) as cluster:
            await make_topics(cluster, "before")
            async with unharmed(cluster):
                attacks = [
                    attack(port_of(node, name))
                    for attack in (garbage, slow)
                    for node in cluster.nodes
                ]
                assert all(each.process for each in cluster.nodes)
                before = [cpu_s(each.process.pid) for each in cluster.nodes if each.process]
                await asyncio.gather(*attacks, make_topics(cluster, "during"))
                after = [cpu_s(each.process.pid) for each in cluster.nodes if each.process]
                print("cpu", [round(b - a, 2) for a, b in zip(before, after, strict=True)])
            await make_topics(cluster, "after")
            await cluster.until_equal()

    run(work)


@pytest.mark.parametrize("name", PORTS)
def test_a_crowd(tmp_path: Path, name: str) -> None:
    async def work() -> None:
        async with cluster_of(tmp_path) as cluster:
            await make_topics(cluster, "before")
            controller = await cluster.controller()
            assert controller is not None
            restarted = next(each for each in cluster.nodes if each is not controller)
            async with unharmed(cluster), AsyncExitStack() as crowds:
                for node in cluster.nodes:
                    await crowds.enter_async_context(crowd(port_of(node, name)))
                await make_topics(cluster, "during")
            # While strangers hold all places, a node that starts gets in all the same.
            assert await restarted.stop() == 0
            async with crowd(port_of(controller, name)):
                await restarted.start()
                await cluster.until_well(patience_s=20)
            await cluster.until_equal()
            cluster.expect_no_complaints()

    run(work)
