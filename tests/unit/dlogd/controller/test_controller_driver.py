"""The controller at work: when it acts, that it acts anew after failures, and when it gives up."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dlog.types import NodeId
from dlogd.controller.driver import ControllerDriver
from dlogd.controller.lease_timings import LeaseTimings
from dlogd.controller.leases import LeaseTable
from dlogd.controller.planner import PlannerSettings
from dlogd.internal.beat import Beat
from dlogd.metadata.commands.codec import (
    ClaimController,
    ElectionKind,
    ElectLeaders,
    encode,
)
from dlogd.metadata.machine import apply
from dlogd.metadata.state.delta import between
from dlogd.metadata.state.image import ClusterImage, Outcome, Unknown
from dlogd.runtime.tasks import Tasks
from tests.fakes.metadata_cluster import FakeCluster
from tests.simulation.loop import SimClock, SimLoop

ME, OTHER = NodeId(1), NodeId(2)
TIMINGS = LeaseTimings()


class Store:
    """The metadata of a cluster in memory, with the surface of a quorum."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.failed: Exception | None = None
        self.lost = 0  # so many proposals are not heard of again
        self.proposed: list[str] = []
        self._subscribers: list[Any] = []
        self._leadership: list[Callable[[bool, int], None]] = []

    @property
    def image(self) -> ClusterImage:
        return self.cluster.image

    def subscribe(self, callback: Any) -> None:
        self._subscribers.append(callback)

    def on_leadership(self, callback: Callable[[bool, int], None]) -> None:
        self._leadership.append(callback)

    def lead(self, leads: bool) -> None:
        for callback in self._leadership:
            callback(leads, 1)

    def apply(self, command: Any) -> Outcome:
        old = self.cluster.image
        self.cluster.image, outcome = apply.apply(old, encode(command))
        delta = between(old, self.cluster.image)
        for callback in self._subscribers:
            callback(old, self.cluster.image, delta)
        return outcome

    async def propose(self, command: Any, deadline_ms: int) -> Outcome:
        plain = getattr(command, "command", command)
        self.proposed.append(type(plain).__name__)
        await asyncio.sleep(0.001)
        if self.lost:
            self.lost -= 1
            return Unknown(message="lost")
        return self.apply(command)


class Watch:
    """Keeps the table going by the clock alone; all nodes but the dead send heartbeats."""

    def __init__(self, table: LeaseTable, on_change: Callable[[], None], world: "World") -> None:
        self.table, self.on_change, self.world = table, on_change, world
        self.running = False
        self.task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self.running = True
        self.task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        self.running = False

    def on_image(self, nodes: Any, version: int) -> None:
        self.table.on_image(nodes, version, self.world.clock.now_ms())

    async def _run(self) -> None:
        while self.running:
            now_ms, image = self.world.clock.now_ms(), self.world.store.image
            self.table.on_contact(now_ms)
            for node_id, node in image.nodes.items():
                if node_id not in self.world.dead:
                    beat = Beat(
                        node_id=node_id, node_epoch=node.node_epoch, image_version=image.version
                    )
                    self.table.on_beat(beat, now_ms)
            self.table.poll(now_ms)
            self.on_change()
            await asyncio.sleep(TIMINGS.heartbeat_ms / 1000)


class World:
    def __init__(self, loop: SimLoop) -> None:
        self.clock = SimClock(loop)
        self.cluster = FakeCluster(3)
        self.cluster.create("t", (2, 1, 3), unclean_leader_election_enable="true")
        self.store = Store(self.cluster)
        self.dead: set[NodeId] = set()
        self.watches: list[Watch] = []
        self.node_epoch = self.cluster.epoch(1)
        self.tasks = Tasks()
        self.driver = ControllerDriver(
            ME,
            self.store,  # type: ignore[arg-type]
            TIMINGS,
            clock=self.clock,
            tasks=self.tasks,
            new_id=self.cluster.new_id,
            node_epoch=lambda: self.node_epoch,
            make_watch=self.make_watch,  # type: ignore[arg-type]
            settings=PlannerSettings(),
        )
        self.driver.start()

    def make_watch(self, table: LeaseTable, on_change: Callable[[], None]) -> Watch:
        self.watches.append(Watch(table, on_change, self))
        return self.watches[-1]

    def claim(self, node_id: NodeId) -> None:
        self.store.apply(
            ClaimController(
                command_id=self.cluster.new_id(),
                node_id=node_id,
                node_epoch=self.cluster.epoch(node_id),
                controller_epoch=self.store.image.controller.epoch,
            )
        )


def check(scenario: Callable[[World], Awaitable[None]]) -> None:
    loop = SimLoop()

    async def work() -> None:
        world = World(loop)
        try:
            await scenario(world)
        finally:
            await world.driver.stop()
            for watch in world.watches:
                await watch.stop()
            await world.tasks.close()

    loop.run_until_complete(work())


def test_it_acts_only_while_it_leads_and_is_registered() -> None:
    async def scenario(world: World) -> None:
        epoch, world.node_epoch = world.node_epoch, -1
        world.store.lead(True)
        await asyncio.sleep(5)
        assert world.driver.table is None and not world.store.proposed
        world.node_epoch = epoch
        world.driver.wake()
        await asyncio.sleep(0.1)
        assert world.store.image.controller.node_id == ME
        assert world.driver.table is not None and world.watches[0].running
        world.store.lead(False)
        await asyncio.sleep(0.1)
        assert world.driver.table is None and not world.watches[0].running

    check(scenario)


def test_it_gives_way_to_the_next_claim() -> None:
    async def scenario(world: World) -> None:
        world.store.lead(True)
        await asyncio.sleep(0.1)
        first = world.driver.table
        assert first is not None
        world.claim(OTHER)
        await asyncio.sleep(0.01)
        assert not world.watches[0].running
        # It leads, as far as it knows, so it claims anew, with a new book of leases.
        await asyncio.sleep(0.1)
        assert world.driver.table is not None and world.driver.table is not first
        assert world.store.image.controller.epoch == first.controller_epoch + 2

    check(scenario)


def test_what_failed_is_planned_anew_from_the_image() -> None:
    async def scenario(world: World) -> None:
        world.store.lead(True)
        await asyncio.sleep(5)
        world.dead.add(OTHER)
        world.store.lost = 3
        await asyncio.sleep(TIMINGS.held_ms / 1000 + 5)
        assert world.store.proposed.count("FenceNodes") == 4
        assert world.store.image.nodes[OTHER].fenced
        assert world.store.image.topics["t"].partitions[0].leader == ME
        assert world.driver.elections_total == 1
        world.dead.clear()
        await asyncio.sleep(2)
        assert not world.store.image.nodes[OTHER].fenced

    check(scenario)


def test_a_claim_that_is_lost_is_tried_again() -> None:
    async def scenario(world: World) -> None:
        world.store.lost = 2
        world.store.lead(True)
        await asyncio.sleep(5)
        assert world.driver.table is not None
        assert world.store.proposed.count("ClaimController") == 3

    check(scenario)


def test_an_unclean_election_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: World) -> None:
        cluster = world.cluster
        topic_id = world.store.image.topics["t"].topic_id
        cluster.apply(cluster.isr_change("t", 0, (2,)))
        cluster.fence(2)
        world.store.apply(
            ElectLeaders(
                command_id=cluster.new_id(),
                election=ElectionKind.UNCLEAN,
                partitions=((topic_id, (0,)),),
            )
        )
        assert world.store.image.unclean_elections == 1

    with caplog.at_level(logging.WARNING, "dlogd.controller.driver"):
        check(scenario)
    (line,) = [each.getMessage() for each in caplog.records if "nclean" in each.getMessage()]
    assert "partition=t-0" in line
