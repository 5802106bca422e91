"""Nodes that keep leases at a controller, in virtual time; their metadata is one value for all."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dlog.transport import Address, ConnectionOptions
from dlog.types import NodeId
from dlogd.controller.lease_keeper import LeaseKeeper
from dlogd.controller.lease_timings import LeaseTimings
from dlogd.controller.lease_watch import LeaseWatch
from dlogd.controller.leases import Condemned, LeaseTable
from dlogd.controller.liveness_service import LivenessService
from dlogd.controller.own_lease import OwnLease
from dlogd.controller.prober import Prober
from dlogd.internal.beat import Beat
from dlogd.internal.messages import Heartbeat, Probe
from dlogd.internal.node_listener import NodeListener
from dlogd.metadata.state.image import NodeAddress, NodeRegistration
from dlogd.runtime.tasks import Tasks
from tests.simulation.loop import SimClock, SimLoop, World
from tests.simulation.network import Network

MS = 1_000_000
PORT = 9500
CLUSTER = "c"
TIMINGS = LeaseTimings()


def registration(node_id: int, epoch: int, *, fenced: bool = False) -> NodeRegistration:
    address = NodeAddress(listener="internal", host=f"10.0.0.{node_id}", port=PORT)
    return NodeRegistration(
        node_id=NodeId(node_id),
        node_epoch=epoch,
        directory_ids=(),
        addresses=(address,),
        rack=None,
        version="1",
        fenced=fenced,
    )


class Cluster:
    """Three nodes whose metadata is one value that all see at once."""

    def __init__(self, *, drift_ppm: int = 0) -> None:
        self.world = World()
        self.network = Network(self.world, random.Random(5))
        self.version = 1
        self.registered = {NodeId(i): registration(i, 1) for i in (1, 2, 3)}
        self.nodes = {i: Node(self, i, drift_ppm=drift_ppm * (i - 2)) for i in (1, 2, 3)}
        self.believes = dict.fromkeys((1, 2, 3), 1)
        self.watching = 0
        self.reign = 0
        for node in self.nodes.values():
            node.begin(1)
        self.lead(1)
        self.world.at(0, self.check)

    def check(self) -> None:
        """Nobody holds a lease that the present controller takes for expired."""
        watch = self.nodes[self.watching].watch
        assert watch is not None
        for node_id, known in watch.table.liveness(self.nodes[self.watching].now_ms()).items():
            node = self.nodes[node_id]
            if known.condemned is Condemned.EXPIRED and known.node_epoch == node.lease.node_epoch:
                assert not node.holds(), f"node {node_id} holds an expired lease"
        for node_id, registered in self.registered.items():
            if registered.fenced:
                assert not self.nodes[node_id].holds(), f"node {node_id} is fenced and acts"
        self.world.at(5 * MS, self.check)

    def lead(self, node_id: int) -> None:
        """Make a node controller; the others hear of it."""
        self.watching = node_id
        self.reign += 1
        for other, node in self.nodes.items():
            self.believes[other] = node_id
            if not node.loop.dead:
                node.call(node.keeper.on_controller_changed)
        self.nodes[node_id].lead()

    def commit(self, node_id: int, **changes: Any) -> None:
        """Change a registration."""
        self.version += 1
        key = NodeId(node_id)
        self.registered = {**self.registered, key: replace(self.registered[key], **changes)}
        for node in self.nodes.values():
            # The deposed follow the log too, as observers would; a dead process follows nothing.
            if node.watch is not None and not node.loop.dead:
                node.watch.on_image(self.registered, self.version)

    def run(self, ms: int) -> None:
        """Let time pass."""
        end = self.world.now_ns + ms * MS
        self.world.run(lambda: self.world.now_ns >= end, limit_ns=end)

    def until(self, is_so: Callable[[], bool], ms: int = 20_000) -> int:
        """Return after how many milliseconds `is_so`."""
        start = self.world.now_ns
        assert self.world.run(is_so, limit_ns=start + ms * MS), "not in time"
        return (self.world.now_ns - start) // MS

    def condemned(self, node_id: int) -> Condemned | None:
        """Return what the controller thinks."""
        controller = self.nodes[self.watching]
        assert controller.watch is not None
        return controller.watch.table.liveness(controller.now_ms())[NodeId(node_id)].condemned


class Node:
    """One process."""

    def __init__(self, cluster: Cluster, node_id: int, *, drift_ppm: int = 0) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.drift_ppm = drift_ppm
        self.lives = 0
        self.watch: LeaseWatch | None = None
        self.proven = True
        self.changes: list[bool] = []
        self.reasons: set[Condemned] = set()

    def begin(self, epoch: int) -> None:
        """Start a new life."""
        self.watch = None
        self.lives += 1
        cluster = self.cluster
        loop = self.loop = SimLoop(
            cluster.world,
            f"n{self.node_id}.{self.lives}",
            offset_ns=self.node_id * 10**12,
            drift_ppm=self.drift_ppm,
        )
        cluster.network.attach(loop, f"10.0.0.{self.node_id}")
        self.clock = SimClock(loop)
        self.tasks = Tasks()
        self.lease = OwnLease()
        self.lease.begin(epoch)
        self.service = LivenessService(
            NodeId(self.node_id),
            self.lease,
            clock=self.clock,
            cluster_id=lambda: CLUSTER,
            image_version=lambda: cluster.version,
        )
        self.server = NodeListener(loop, self.service, idle_timeout_s=9.0)
        self.keeper = LeaseKeeper(
            self.lease,
            TIMINGS,
            loop=loop,
            clock=self.clock,
            rng=random.Random(self.node_id),
            tasks=self.tasks,
            controller=lambda: Address(f"10.0.0.{cluster.believes[self.node_id]}", PORT),
            heartbeat=self._heartbeat,
        )
        self.keeper.on_change = self.changes.append
        self.call(lambda: loop.create_task(self._start()))

    def call(self, work: Callable[[], object]) -> None:
        """Do `work` on this node's loop."""
        self.loop.call_soon(work)

    async def _start(self) -> None:
        await self.server.start("", PORT)
        await self.keeper.start()

    def _heartbeat(self, sequence: int) -> Heartbeat:
        beat = Beat(
            node_id=NodeId(self.node_id),
            node_epoch=self.lease.node_epoch,
            image_version=self.cluster.version,
            surrenders=self.lease.surrendered,
        )
        return Heartbeat(cluster_id=CLUSTER, sequence=sequence, beat=beat)

    def lead(self) -> None:
        """Become controller."""
        cluster = self.cluster

        async def prove() -> bool:
            await asyncio.sleep(0.002)
            return self.proven

        def address(node_id: NodeId) -> Address:
            found = cluster.registered[node_id].addresses[0]
            return Address(found.host, found.port)

        previous = self.watch
        reign = cluster.reign
        table = LeaseTable(TIMINGS, reign, cluster.registered, cluster.version, self.now_ms())
        prober = Prober(
            self.loop,
            lambda: Probe(cluster_id=CLUSTER, node_id=NodeId(self.node_id), controller_epoch=reign),
            timeout_s=TIMINGS.probe_timeout_ms / 1000,
            options=ConnectionOptions(client_id="probe"),
        )
        self.watch = LeaseWatch(
            table,
            self.service,
            prober,
            TIMINGS,
            loop=self.loop,
            clock=self.clock,
            tasks=self.tasks,
            address=address,
            prove=prove,
            on_change=lambda: self.reasons.update(
                known.condemned
                for known in table.liveness(self.now_ms()).values()
                if known.condemned is not None
            ),
        )
        watch = self.watch

        async def begin() -> None:
            if previous is not None:
                await previous.stop()
            await watch.start()

        self.call(lambda: self.loop.create_task(begin()))

    def now_ms(self) -> int:
        return self.clock.now_ms()

    def holds(self) -> bool:
        """Whether it would act now, if it runs at all."""
        return not self.loop.dead and self.lease.is_valid(self.now_ms())

    def kill(self) -> None:
        """kill -9."""
        self.loop.kill()
        self.cluster.network.kill_process(self.loop)

    def cut_power(self) -> None:
        """Let the host vanish."""
        self.loop.kill()
        self.cluster.network.cut_power(self.loop)
