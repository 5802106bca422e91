"""A few whole nodes in one process, in virtual time, for stories about a cluster and its data.

    def test_it() -> None:
        async def story(fleet: SmallFleet) -> None:
            await fleet.create("t", replicas=3)
            await fleet.produce("t", b"a", b"b")
            fleet.host(2).crash()
            ...
        tell(story)

The nodes are the daemon's own `Broker`, on simulated disks and a simulated network without faults
of its own; the story is a client. It may look into the nodes, since nothing else runs meanwhile.
"""

import asyncio
import gc
import random
import sys
import warnings
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from dlog.client.admin import Admin
from dlog.client.cluster.cluster import Cluster
from dlog.client.cluster.partition_calls import ACKS_ALL, fetch, list_offsets, produce
from dlog.client.retry import RetryPolicy
from dlog.errors import DlogError, WireError
from dlog.offset_specs import LATEST
from dlog.transport import Address, ConnectionOptions
from dlogd.metadata.state.image import ClusterImage, PartitionImage
from dlogd.node.broker import Broker
from dlogd.replication.partition.partition import Partition
from dlogd.status.pages import ACTIVE
from tests.fakes.logs import batch_of, values_in
from tests.simulation.fleet.checks import FleetRegistry
from tests.simulation.fleet.data_plan import NO_DATA
from tests.simulation.fleet.host import FleetHost
from tests.simulation.fleet.plan import CLIENT_PORT, QUICK, FleetPlan, address_of, draw
from tests.simulation.fleet.smallness import bounds_of
from tests.simulation.fleet.threads import virtual_threads
from tests.simulation.loop import NS, SimClock, SimLoop, World
from tests.simulation.network import Network
from tests.simulation.run import _ignore_the_dead
from tests.simulation.trace import Trace
from tests.simulation.transport import NetworkConfig

Story = Callable[["SmallFleet"], Awaitable[None]]

CALM = {
    "disk.reserve.bytes": "0",
    "preallocate.bytes": "0",
    "append.memory.bytes": "4MiB",
    "read.memory.bytes": "2MiB",
    "topic.replication.default": "3",
    **QUICK,
}


def tell(
    story: Story,
    *,
    nodes: int = 3,
    config: dict[str, str] | None = None,
    mounts: int = 1,
    latency_us: int = 50,
    disk_us: tuple[int, int] = (20, 50),
) -> None:
    """Let a story happen; it begins when all nodes are up.

    What a disk does takes `disk_us`: the first number at least, with a mean of the second beyond.
    """
    plan = _plan(nodes, CALM | (config or {}), mounts)
    network = plan.network | {"latency_ns": latency_us * 1000}
    plan = replace(plan, network=network, disk_latency_us=disk_us)
    hook, sys.unraisablehook = sys.unraisablehook, _ignore_the_dead
    try:
        with bounds_of(plan), virtual_threads():
            fleet = SmallFleet(plan)
            try:
                fleet.go(story)
            finally:
                fleet.bury()
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            gc.collect()
        sys.unraisablehook = hook


def _plan(nodes: int, config: dict[str, str], mounts: int) -> FleetPlan:
    return replace(
        draw(1),
        nodes=nodes,
        controllers=3,
        pace=1.0,
        config=config,
        raft={},
        planner={"settled_ms": 500, "scan_interval_ms": 100, "refill_after_ms": 3_600_000},
        data_directories=tuple(f"/data{number}" for number in range(mounts)),
        pause_share=0.0,
        drifts_ppm=(0,) * nodes,
        racks=(),
        network={
            "latency_ns": 50_000,
            "jitter_ns": 10_000,
            "slow_probability": 0.0,
            "slow_ns": 0,
            "fragment_probability": 0.0,
            "window_bytes": 1 << 20,
        },
        threads=False,
        clients=0,
        faults=(),
        data=NO_DATA,
    )


class SmallFleet:
    """The nodes, and a client beside them."""

    def __init__(self, plan: FleetPlan) -> None:
        self.plan = plan
        self.world = World()
        self.trace = Trace(lambda: self.world.now_ns, None)
        self.registry = FleetRegistry()
        links = NetworkConfig(**plan.network)  # type: ignore[arg-type]
        self.network = Network(self.world, random.Random("network"), links)
        self.network.trace = self.trace
        self.hosts = [
            FleetHost(node_id, plan, self.world, self.network, self.trace, self.registry)
            for node_id in range(1, plan.nodes + 1)
        ]
        self.registry.hosts = {host.address: host for host in self.hosts}
        self.loop = SimLoop(self.world, "story")
        self.network.attach(self.loop, "10.0.1.1")
        self.clock = SimClock(self.loop)
        self.rng = random.Random("story")
        self.cluster = Cluster(
            [Address(address_of(each), CLIENT_PORT) for each in range(1, plan.nodes + 1)],
            loop=self.loop,
            rng=random.Random(self.rng.getrandbits(64)),
            options=ConnectionOptions(
                client_id="story", connect_timeout_s=0.5, request_timeout_s=10.0
            ),
            policy=RetryPolicy(cap_s=0.3, deadline_s=20.0, lookup_timeout_s=1.0),
        )
        self.admin = Admin(self.cluster)

    def go(self, story: Story) -> None:
        """Boot everything and carry the story out."""
        for host in self.hosts:
            host.boot()

        async def whole() -> None:
            await self.until(lambda: all(self.is_up(host.node_id) for host in self.hosts))
            await story(self)

        task = self.loop.create_task(whole())
        self.world.run(task.done, limit_ns=self.world.now_ns + 7200 * NS)
        assert task.done(), "the story does not end"
        task.result()

    def bury(self) -> None:
        """Let go of everything."""
        self.loop.kill()
        for host in self.hosts:
            if host.loop is not None:
                host.loop.kill()
            host.forget()
            host.store = None

    # -- looking

    def host(self, node_id: int) -> FleetHost:
        """Return a host."""
        return self.hosts[node_id - 1]

    def broker(self, node_id: int) -> Broker:
        """Return the daemon that runs on it."""
        broker = self.host(node_id).broker
        assert broker is not None
        return broker

    def is_up(self, node_id: int) -> bool:
        """Whether a node serves and may lead."""
        host = self.host(node_id)
        return host.broker is not None and host.broker.phase == ACTIVE and host.holds_lease()

    @property
    def image(self) -> ClusterImage:
        """The newest image that a running node has."""
        stores = [host.broker.store for host in self.hosts if host.broker is not None]
        images = [store.image for store in stores if store is not None]
        return max(images, key=lambda each: each.version)

    def state(self, topic: str, index: int = 0) -> PartitionImage:
        """Return what the metadata say about a partition."""
        return self.image.topics[topic].partitions[index]

    def replica(self, node_id: int, topic: str, index: int = 0) -> Partition:
        """Return a node's replica."""
        replicas = self.broker(node_id).replicas
        assert replicas is not None
        return replicas.by_name[topic, index]

    def leader(self, topic: str, index: int = 0) -> int:
        """Return who leads."""
        return int(self.state(topic, index).leader)

    def followers(self, topic: str, index: int = 0) -> list[int]:
        """Return the other replicas."""
        state = self.state(topic, index)
        return [int(each) for each in state.replicas if each != state.leader]

    # -- doing

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        await asyncio.sleep(seconds)

    async def until(self, condition: Callable[[], object], seconds: float = 60.0) -> None:
        """Wait until something holds."""
        for _ in range(int(seconds * 100)):
            try:
                if condition():
                    return
            except (KeyError, AssertionError, ValueError):
                pass  # not there yet
            await asyncio.sleep(0.01)
        raise AssertionError(f"It did not happen within {seconds} s")

    async def until_in_sync(self, topic: str, index: int = 0, seconds: float = 60.0) -> None:
        """Wait until all replicas are in the ISR and have everything."""

        def is_done() -> bool:
            state = self.state(topic, index)
            if set(state.isr) != set(state.replicas) or not state.has_leader:
                return False
            ends = {self.replica(each, topic, index).log.log_end_offset for each in state.replicas}
            marks = {self.replica(each, topic, index).high_watermark for each in state.replicas}
            return len(ends) == 1 and marks == ends

        await self.until(is_done, seconds)

    async def create(
        self, topic: str, *, partitions: int = 1, replicas: int = 3, **configs: str
    ) -> None:
        """Make a topic; underscores in names of configs stand for dots."""
        await self.admin.create_topic(
            topic,
            partitions=partitions,
            replication_factor=replicas,
            configs={name.replace("_", "."): value for name, value in configs.items()},
            timeout_ms=10_000,
        )
        for index in range(partitions):
            await self.until_in_sync(topic, index)

    async def produce(self, topic: str, *values: bytes, partition: int = 0, each: int = 1) -> None:
        """Write records with acks=all, `each` to a batch."""
        for first in range(0, len(values), each):
            batch = batch_of(*values[first : first + each], timestamp_ms=self.clock.timestamp_ms())
            await self.retry(lambda: self._send(topic, partition, bytes(batch)))  # noqa: B023

    async def _send(self, topic: str, partition: int, batch: bytes) -> None:
        node = await self.cluster.leader(topic, partition)
        try:
            await produce(node, topic, partition, batch, acks=ACKS_ALL)
        except WireError:
            await self.cluster.metadata(topic, refresh=True)
            raise

    async def values(self, topic: str, index: int = 0, start: int = 0) -> list[bytes]:
        """Return what consumers read from `start` on."""
        found: list[tuple[int, bytes]] = []
        node = await self.cluster.leader(topic, index)
        end, _ = (await list_offsets(node, topic, {index: LATEST}))[index]
        offset = start
        while offset < end:
            view = await fetch(node, topic, index, offset, max_wait_ms=0)
            found += [each for each in values_in(bytes(view.records)) if each[0] >= offset]
            offset = found[-1][0] + 1
        return [value for _, value in found]

    async def retry(self, work: Callable[[], Awaitable[Any]], seconds: float = 20.0) -> Any:
        """Do what may fail for a moment."""
        for _ in range(int(seconds * 20)):
            try:
                return await work()
            except DlogError:
                await asyncio.sleep(0.05)
        return await work()
