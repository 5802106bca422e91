"""Who leads the metadata and cannot act as controller hands the office on."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from dlog.errors import InvalidRequestError
from dlog.types import NodeId
from dlogd.controller.leadership_transfer import REST_MS, LeadershipTransfer, successors
from dlogd.metadata.raft.membership import Operation, QuorumState
from dlogd.metadata.state.image import Applied, Outcome, Refused
from dlogd.node import controlled_shutdown
from dlogd.replication.replica_manager import ReplicaManager
from dlogd.runtime.tasks import Tasks
from dlogd.storage.log_manager import LogManager
from tests.fakes.metadata_cluster import FakeCluster
from tests.fakes.server import replica_state
from tests.fakes.small_fleet import SmallFleet, tell
from tests.simulation.loop import NS, SimClock, SimLoop, World

ME = NodeId(1)
BEHIND = Refused(code=InvalidRequestError.code, message="it does not hold the whole log yet")


# Whole nodes


def ask(fleet: SmallFleet, node_id: int, to: int) -> None:
    """Have the quorum's leadership transferred, by a node on its own loop."""
    host = fleet.host(node_id)
    assert host.loop is not None and host.clock is not None
    loop, deadline_ms = host.loop, host.clock.now_ms() + 5_000
    store: Any = fleet.broker(node_id).store
    change = store.change_voters
    loop.call_soon(lambda: asyncio.Task(change(Operation.TRANSFER, to, deadline_ms), loop=loop))


def leader(fleet: SmallFleet) -> int:
    """Return who leads the metadata, 0 while nobody does."""
    for host in fleet.hosts:
        store: Any = None if host.broker is None else host.broker.store
        if store is not None and store.core.is_active_leader:
            return host.node_id
    return 0


async def until_it_leads(fleet: SmallFleet, node_id: int) -> None:
    """Transfer the leadership until a node has it, be it for a moment."""
    terms: list[int] = []
    store: Any = fleet.broker(node_id).store
    store.on_leadership(lambda leads, term: terms.append(term) if leads else None)
    for _ in range(50):
        now = leader(fleet)
        if terms:
            return
        if now:
            ask(fleet, now, node_id)
        await fleet.sleep(0.05)
    raise AssertionError(f"Node {node_id} does not lead")


async def expect_another(fleet: SmallFleet, node_id: int) -> None:
    """Another one leads within two seconds, and the leases of the others go on."""
    others = [host.node_id for host in fleet.hosts if host.node_id != node_id]
    await fleet.until(lambda: leader(fleet) in others, seconds=2.0)
    for _ in range(800):
        assert all(fleet.host(each).holds_lease() for each in others)
        await fleet.sleep(0.01)
    assert leader(fleet) in others


def test_a_node_that_recovers_its_logs_does_not_keep_the_office(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shut: list[int] = []
    recover = ReplicaManager.recover

    async def recover_behind_the_gate(manager: ReplicaManager, *arguments: Any) -> None:
        while manager._place.node_id in shut:
            await asyncio.sleep(0.01)
        await recover(manager, *arguments)

    monkeypatch.setattr(ReplicaManager, "recover", recover_behind_the_gate)

    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t")
        host = fleet.host(1)
        host.crash()
        await fleet.until(lambda: fleet.image.nodes[ME].fenced)
        shut.append(1)
        host.boot()
        await fleet.until(lambda: fleet.broker(1).phase == "recovering logs")
        await until_it_leads(fleet, 1)
        await expect_another(fleet, 1)
        await fleet.produce("t", b"a")
        shut.clear()
        await fleet.until(lambda: fleet.is_up(1))
        await fleet.until_in_sync("t")
        await until_it_leads(fleet, 1)
        await fleet.until(lambda: fleet.image.controller.node_id == 1)
        await fleet.sleep(5.0)
        assert leader(fleet) == 1, "it can act now"

    tell(story)


def test_a_node_that_closes_its_logs_does_not_keep_the_office(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    close = LogManager.close

    async def close_slowly(logs: LogManager, **arguments: Any) -> list[str]:
        await asyncio.sleep(12.0)
        return await close(logs, **arguments)

    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t")
        await until_it_leads(fleet, 1)
        await fleet.until(lambda: fleet.image.controller.node_id == 1)
        monkeypatch.setattr(LogManager, "close", close_slowly)
        broker, host = fleet.broker(1), fleet.host(1)
        host.stop(None)
        await fleet.until(lambda: broker.clustering and broker.clustering._stopping)
        await until_it_leads(fleet, 1)
        await expect_another(fleet, 1)

    tell(story)


def test_all_nodes_start_while_the_metadata_take_them_for_active(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The office goes round once or twice, and stays: nothing could be registered otherwise."""
    shut = [1, 2, 3]
    recover = ReplicaManager.recover

    async def recover_behind_the_gate(manager: ReplicaManager, *arguments: Any) -> None:
        while manager._place.node_id in shut:
            await asyncio.sleep(0.01)
        await recover(manager, *arguments)

    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t")
        for host in fleet.hosts:
            host.power_cut(keep=0.0)
        monkeypatch.setattr(ReplicaManager, "recover", recover_behind_the_gate)
        for host in fleet.hosts:
            host.boot()
        await fleet.until(
            lambda: all(fleet.broker(each).phase == "recovering logs" for each in (1, 2, 3))
        )
        await fleet.sleep(10.0)
        led = leader(fleet)
        for _ in range(500):
            assert leader(fleet) == led
            await fleet.sleep(0.01)
        last = next(each for each in (1, 2, 3) if each != led)
        shut.remove(last)
        await fleet.until(lambda: fleet.is_up(last), seconds=10.0)
        assert leader(fleet) == last, "the only one that can act"
        shut.clear()
        await fleet.until(lambda: all(fleet.is_up(each) for each in (1, 2, 3)))

    tell(story)


# One node, its quorum as values


class Quorum:
    """The metadata of a cluster of which this node leads the quorum."""

    def __init__(self, nodes: int = 3) -> None:
        self.cluster = FakeCluster(nodes)
        self.voters = tuple(replica_state(each, 10 + each) for each in range(1, nodes + 1))
        self.leader_id = int(ME)
        self.asked: list[int] = []
        self.outcomes: list[Outcome] = []
        self.takes = True
        """Whether who is asked takes the office."""
        self.lead: Callable[[bool, int], None] = lambda leads, term: None

    @property
    def image(self) -> Any:
        return self.cluster.image

    def quorum(self) -> QuorumState:
        return QuorumState(
            leader_id=self.leader_id, term=1, high_watermark=9, voters=self.voters, observers=()
        )

    def on_leadership(self, callback: Callable[[bool, int], None]) -> None:
        self.lead = callback

    async def change_voters(self, operation: Operation, node_id: int, deadline_ms: int) -> Outcome:
        assert operation is Operation.TRANSFER
        self.asked.append(node_id)
        outcome = self.outcomes.pop(0) if self.outcomes else Applied(version=1)
        if isinstance(outcome, Applied) and self.takes:
            self.leader_id = node_id
            self.lead(False, 1)
        return outcome

    def back(self) -> None:
        """Who was given the office cannot act either."""
        self.leader_id = int(ME)
        self.lead(True, 2)


def run(test: Callable[[Quorum, SimClock], Coroutine[Any, Any, None]], quorum: Quorum) -> None:
    world = World()
    loop = SimLoop(world, "test")
    task = loop.create_task(test(quorum, SimClock(loop)))
    world.run(task.done, limit_ns=world.now_ns + 3600 * NS)
    task.result()
    loop.kill()


def begun(quorum: Quorum, clock: SimClock) -> tuple[LeadershipTransfer, Tasks]:
    tasks = Tasks()
    succession = LeadershipTransfer(quorum, ME, clock=clock, tasks=tasks)  # type: ignore[arg-type]
    succession.start()
    return succession, tasks


def test_who_comes_next() -> None:
    quorum = Quorum(4)
    quorum.cluster.fence(4)
    assert successors(quorum.quorum(), quorum.image, ME) == [3, 2]
    quorum.voters += (replica_state(9, 99),)
    assert successors(quorum.quorum(), quorum.image, ME) == [3, 2], "9 never registered"
    before = quorum.image.version
    quorum.cluster.register(4)
    assert successors(quorum.quorum(), quorum.image, ME) == [3, 2]
    assert successors(quorum.quorum(), quorum.image, ME, since=before) == [3, 2, 4]


def test_each_is_tried_once_until_something_has_changed() -> None:
    async def test(quorum: Quorum, clock: SimClock) -> None:
        _, tasks = begun(quorum, clock)
        await asyncio.sleep(5)
        assert quorum.asked == [], "it does not lead"
        for _ in range(4):
            quorum.back()
            await asyncio.sleep(2)
        assert quorum.asked == [3, 2]
        quorum.cluster.fence(2)
        quorum.cluster.register(2)
        await asyncio.sleep(1)
        assert quorum.asked == [3, 2, 2], "nobody acts who could unfence it"
        quorum.back()
        await asyncio.sleep(REST_MS / 1000)
        assert quorum.asked == [3, 2, 2, 3]
        await tasks.close()

    run(test, Quorum())


def test_it_goes_on_until_somebody_takes_the_office_or_it_can_act() -> None:
    async def test(quorum: Quorum, clock: SimClock) -> None:
        succession, tasks = begun(quorum, clock)
        quorum.outcomes = [BEHIND] * 6
        quorum.back()
        await asyncio.sleep(2.5)
        assert quorum.asked == [3, 2] * 3
        quorum.takes = False
        await asyncio.sleep(2)
        assert quorum.asked == [3, 2] * 4, "a voter that hangs is not the only one asked"
        succession.can_act = lambda: True
        await asyncio.sleep(60)
        assert quorum.asked == [3, 2] * 4
        succession.can_act = lambda: False
        succession.look()
        await asyncio.sleep(0.1)
        assert quorum.asked == [*([3, 2] * 4), 3]
        await tasks.close()

    run(test, Quorum())


# The farewell


def test_a_farewell_hands_the_quorum_on_until_somebody_has_it() -> None:
    """The voter that is asked first is one entry behind at that moment."""

    async def test(quorum: Quorum, clock: SimClock) -> None:
        quorum.outcomes = [BEHIND, BEHIND]
        await controlled_shutdown._hand_the_quorum_on(quorum, ME, clock)  # type: ignore[arg-type]
        assert (quorum.asked, quorum.leader_id) == ([3, 2, 3], 3)
        await controlled_shutdown._hand_the_quorum_on(quorum, ME, clock)  # type: ignore[arg-type]
        assert len(quorum.asked) == 3, "it does not lead"
        quorum.back()
        quorum.takes = False
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3.5):
                await controlled_shutdown._hand_the_quorum_on(quorum, ME, clock)  # type: ignore[arg-type]
        assert quorum.asked[3:] == [3, 2, 3, 2]
        quorum.voters = tuple(replace(each) for each in quorum.voters[:1])
        await controlled_shutdown._hand_the_quorum_on(quorum, ME, clock)  # type: ignore[arg-type]

    run(test, Quorum())
