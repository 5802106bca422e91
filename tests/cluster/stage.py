"""The stage of the stories: five nodes, of which the first three keep the records.

The other two complete the quorum of the metadata, so that any two may fall, and one of them is the
controller when a story begins. The nodes of a story have names: a, b, c, d, e.
"""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from uuid import UUID

from dlog.batch.records import Record, encode
from dlog.client.admin import Admin
from dlog.client.cluster.node import NodeClient, open_node
from dlog.client.cluster.partition_calls import list_offsets, produce
from dlog.client.consumer import Consumer
from dlog.client.producer import Producer
from dlog.client.retry import RetryPolicy
from dlog.client.views import PartitionView
from dlog.errors import DlogError, NotLeaderOrFollowerError
from dlog.offset_specs import LATEST
from dlog.transport import Address, ConnectionOptions
from tests.cluster.nodes import LOOK_S, Cluster, Node, cluster_of
from tests.cluster.replica_logs import OnDisk, batches, folder_of
from tests.histories.history import LogKey

PATIENCE_S = 60.0
STORY_S = 180.0
OPTIONS = ConnectionOptions(client_id="story", connect_timeout_s=2)
OVERRIDES = {"replica.lag.time.max": "3s"}


@asynccontextmanager
async def connected(node: Node) -> AsyncIterator[NodeClient]:
    """Give a connection to one node, which is asked whatever it is to the cluster."""
    loop = asyncio.get_running_loop()
    client = await open_node(loop, Address.parse(node.client_address), OPTIONS)
    try:
        yield client
    finally:
        client.connection.close()


def one_record(value: bytes) -> bytes:
    """Return a batch."""
    return bytes(encode([Record(value=value, timestamp_ms=1)]))


class Log:
    """One partition of a story, which is all that its topic has."""

    def __init__(self, cluster: Cluster, topic: str, topic_id: UUID) -> None:
        self.cluster = cluster
        self.topic = topic
        self.key = LogKey(topic_id, topic, 0)

    def _running(self) -> list[str]:
        return [each.client_address for each in self.cluster.nodes if each.runs]

    async def view(self) -> PartitionView:
        """Return what the cluster tells of it."""
        async with Admin(self._running()) as admin:
            return (await admin.describe_topic(self.topic)).partitions[0]

    async def until(
        self, is_so: Callable[[PartitionView], bool], patience_s: float = PATIENCE_S
    ) -> PartitionView:
        """Return what the cluster tells when it `is_so`."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + patience_s
        found: PartitionView | None = None
        while loop.time() < deadline_s:
            try:
                found = await self.view()
                if is_so(found):
                    return found
            except DlogError:
                pass
            await asyncio.sleep(LOOK_S)
        tails = "\n".join(each.tail() for each in self.cluster.nodes)
        raise AssertionError(f"{self.topic}: not so: {found}\n{tails}")

    async def until_whole(self) -> PartitionView:
        """Return when it has a leader and all replicas are in sync."""
        return await self.until(
            lambda view: view.leader > 0 and set(view.isr) == set(view.replicas)
        )

    async def leader(self) -> Node:
        """Return who leads, when somebody does."""
        return self.cluster.node((await self.until(lambda view: view.leader > 0)).leader)

    async def send(self, node: Node, value: bytes, acks: int = -1, timeout_ms: int = 3_000) -> int:
        """Ask a node once to append a record; return the offset, -1 when nothing is answered."""
        async with connected(node) as client:
            batch = one_record(value)
            found = await produce(client, self.topic, 0, batch, acks=acks, timeout_ms=timeout_ms)
            return -1 if found is None else found.base_offset

    async def write(self, *values: bytes) -> None:
        """Write with acks all as programs do, whatever happens meanwhile."""
        async with Producer(self._running(), acks="all") as producer:
            for each in [await producer.send(self.topic, value) for value in values]:
                await each

    async def values(self) -> list[bytes | None]:
        """Return all that consumers see, as they read it."""
        found: list[bytes | None] = []
        policy = RetryPolicy(deadline_s=PATIENCE_S)
        async with Consumer(self._running(), self.topic, policy=policy) as consumer:
            (end,) = (await consumer.end_offsets()).values()
            while len(found) < end:
                found += [record.value for record in await consumer.poll()]
        return found

    async def end(self, node: Node) -> int:
        """Return where consumers see it end, as a node tells."""
        async with connected(node) as client:
            return (await list_offsets(client, self.topic, {0: LATEST}))[0][0]

    async def until_end(self, node: Node, end: int) -> None:
        """Return when consumers see it end there."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                # A node that was kept waiting for too long has no lease for a moment.
                with contextlib.suppress(NotLeaderOrFollowerError):
                    if await self.end(node) == end:
                        return
                await asyncio.sleep(LOOK_S)

    def on_disk(self, node: Node) -> dict[int, OnDisk]:
        """Return the batches that a node has in its files."""
        folder = folder_of([node.data], self.key)
        return {} if folder is None else batches(folder)

    async def until_same(self, nodes: Sequence[Node]) -> dict[int, OnDisk]:
        """Return the batches when these nodes have the same in their files."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + PATIENCE_S
        while loop.time() < deadline_s:
            first, *others = [self.on_disk(each) for each in nodes]
            if all(each == first for each in others):
                return first
            await asyncio.sleep(LOOK_S)
        raise AssertionError("\n".join(f"{n.node_id}: {self.on_disk(n)}" for n in nodes))


class Stage:
    """Life: `runner` is open; `play` runs one story after the other."""

    def __init__(self, cluster: Cluster, runner: asyncio.Runner) -> None:
        self.cluster = cluster
        self._runner = runner
        self._topics = 0

    def play(self, story: Callable[["Stage"], Awaitable[None]]) -> None:
        """Let everybody come back, then run a story; nothing may take for ever."""

        async def bounded() -> None:
            async with asyncio.timeout(STORY_S):
                await self.calm()
                await story(self)
                await self.calm()
                self.cluster.expect_no_complaints()

        self._runner.run(bounded())

    def nodes(self, *numbers: int) -> list[Node]:
        """Return nodes by their ids."""
        return [self.cluster.node(each) for each in numbers]

    async def calm(self) -> None:
        """Let all nodes run and go on, and one that keeps no records be the controller."""
        for each in self.cluster.nodes:
            each.signal(signal.SIGCONT)
            if not each.runs:
                await each.start()
        await self.cluster.until_well()
        controller = await self.cluster.controller()
        if controller is None or controller.node_id <= 3:
            async with Admin(self.cluster.bootstrap) as admin:
                await admin.transfer_controller(4)
            await self.cluster.until(lambda all_: all(each["controller"] == 4 for each in all_))

    async def topic(
        self, replicas: Sequence[int] = (1, 2, 3), *, min_isr: int = 2, **configs: str
    ) -> Log:
        """Make a topic with one partition on these nodes, led by the first."""
        self._topics += 1
        name = f"story{self._topics}"
        log = await self.topic_named(name, replicas, min_isr=min_isr, **configs)
        await log.until(lambda view: view.leader == replicas[0])
        await log.until_whole()
        return log

    async def topic_named(
        self, name: str, replicas: Sequence[int], *, min_isr: int = 2, **configs: str
    ) -> Log:
        """Make a topic of this name, and wait for nothing."""
        named = {key.replace("_", "."): value for key, value in configs.items()}
        async with Admin([each.client_address for each in self.cluster.nodes if each.runs]) as a:
            topic_id = await a.create_topic(
                name,
                assignments=[replicas],
                configs={"min.insync.replicas": str(min_isr), **named},
            )
        return Log(self.cluster, name, topic_id)


@contextmanager
def standing_still(*nodes: Node) -> Iterator[None]:
    """Let nodes stand still, with all connections open."""
    for each in nodes:
        each.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for each in nodes:
            each.signal(signal.SIGCONT)


async def kill(*nodes: Node) -> None:
    """End nodes at once, all of them."""
    await asyncio.gather(*(each.kill() for each in nodes))


async def start(*nodes: Node) -> None:
    """Start nodes that were killed."""
    await asyncio.gather(*(each.start() for each in nodes))


def stage_in(directory: Path) -> Iterator[Stage]:
    """Give a stage; for a fixture of a module."""
    with asyncio.Runner() as runner:
        context = cluster_of(directory, 5, OVERRIDES)
        cluster = runner.run(context.__aenter__())
        try:
            yield Stage(cluster, runner)
        finally:
            runner.run(context.__aexit__(None, None, None))
