"""What is done to a cluster of real processes: one strike at a time, each drawn by its name.

A strike ends when the harm ends: killed nodes are started again, stopped ones go on, cables and
disks are put back. Whether the cluster has healed by then is not waited for.
"""

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from tests.cluster.clients import Witness
from tests.cluster.hosts import Hosts
from tests.cluster.image_judges import GRACE_S
from tests.cluster.load import Load
from tests.cluster.node_disks import LOGS, SIZES, NodeDisks
from tests.cluster.nodes import Cluster, Node
from tests.cluster.operators import Operator
from tests.cluster.replica_logs import flip_a_bit, folder_of, is_whole

AGAIN = 75  # exit code, sysexits.h: EX_TEMPFAIL
RESTART_S = 0.5
HEAL_S = 240.0  # patience only: on a busy machine a start alone takes half a minute
MEND_S = 600.0  # a round of the scrub may be past the place: then the next one finds it
PAUSE_S = (0.3, 6.0)  # shorter and longer than a lease
AHEAD_S = (0.1, 2.0)
CUT_S = (0.2, 8.0)
DISK_S = (1.0, 6.0)
FLUSH_S = (0.02, 0.2, 1.0)
BELOW_S = 2.0  # beyond what the judge forgives
TOO_FEW_S = 20.0  # without a quorum nobody leaves an ISR


@dataclass(slots=True)
class StrikeCounts:
    """What was done, and how long the metadata had no controller after it."""

    strikes: dict[str, int] = field(default_factory=dict)
    kills: int = 0
    without_controller_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """What there is to be struck; without hosts or disks, those strikes are left out."""

    cluster: Cluster
    witness: Witness
    operator: Operator
    hosts: Hosts | None = None
    disks: NodeDisks | None = None
    load: Load | None = None


class Striker:
    """Strikes. Owner: one run; `tasks` are where restarts go on by themselves."""

    def __init__(self, targets: Targets, rng: random.Random, tasks: asyncio.TaskGroup) -> None:
        self.counts = StrikeCounts()
        self._on = targets
        self._rng = rng
        self._tasks = tasks
        self._restarts: set[asyncio.Task[None]] = set()
        self._starting = {each.node_id: asyncio.Lock() for each in targets.cluster.nodes}
        self._strikes: dict[str, Callable[[], Awaitable[None]]] = {
            "kill follower": self._kill_follower,
            "kill controller": self._kill_controller,
            "kill most": lambda: self._kill(self._most()),
            "kill all": lambda: self._kill(self._nodes),
            "pause controller": self._pause_controller,
            "kill starting": self._kill_starting,
            "stop in order": self._stop_controller,
        }
        if targets.load is not None:
            self._strikes |= {
                "kill leader": self._kill_leader,
                "pause leader": self._pause_leader,
                "kill leader ahead": self._kill_leader_ahead,
                "pause leader ahead": self._pause_leader_ahead,
                "too few in sync": self._too_few,
                "rolling restart": self._roll,
                "rotten log": self._rot,
            }
        if targets.hosts is not None:
            self._strikes |= self._cuts(targets.hosts)
        if targets.disks is not None:
            self._strikes |= self._disk_strikes(targets.disks)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names of all strikes that are possible here."""
        return tuple(self._strikes)

    @property
    def _nodes(self) -> list[Node]:
        return self._on.cluster.nodes

    async def strike(self, kind: str) -> None:
        """Do harm."""
        await self._started()
        if self._on.load is not None:
            self._on.load.note_strike(kind)
        await self._strikes[kind]()
        self.counts.strikes[kind] = self.counts.strikes.get(kind, 0) + 1

    async def healed(self) -> None:
        """Return when all nodes run and serve, and every log takes records."""
        await self.healed_quietly()
        if self._on.load is not None:
            await self._on.load.until_written(HEAL_S)

    async def healed_quietly(self) -> None:
        """Return when all nodes run and serve; nobody writes any more."""
        await self._started()
        await self._on.cluster.until_well(patience_s=HEAL_S)

    async def _started(self) -> None:
        """Return when whoever is started has a process, which a strike would miss else.

        It would begin in the middle of the strike: on disks without power, and end for good.
        """
        if self._restarts:
            await asyncio.wait(set(self._restarts))

    # -- whom

    async def _controller(self) -> Node:
        """Return the controller: what counts is a strike at one that is there."""
        while (found := await self._on.cluster.controller()) is None:
            await self.healed()
        return found

    async def _leader(self) -> Node:
        assert self._on.load is not None
        while (found := await self._on.load.leader()) is None:
            await self.healed()
        return found

    async def _another(self, than: Node) -> Node:
        return self._rng.choice([each for each in self._nodes if each is not than])

    def _most(self) -> list[Node]:
        return self._rng.sample(self._nodes, len(self._nodes) // 2 + 1)

    # -- processes

    async def _kill_follower(self) -> None:
        await self._kill([await self._another(await self._controller())])

    async def _kill_leader(self) -> None:
        await self._kill([await self._leader()])

    async def _kill(self, victims: Sequence[Node]) -> None:
        await asyncio.gather(*(self._kill_one(each) for each in victims))
        for each in victims:
            await asyncio.sleep(self._rng.choice((0.0, 0.1, 1.0)) * self._rng.random())
            self._restart(each)

    async def _kill_one(self, node: Node) -> None:
        async with self._starting[node.node_id]:  # what is just being made is killed as well
            self.counts.kills += int(node.runs)
            await node.kill()

    def _restart(self, node: Node) -> None:
        task = self._tasks.create_task(self._start(node))
        self._restarts.add(task)
        task.add_done_callback(self._restarts.discard)

    async def _start(self, node: Node) -> None:
        async with self._starting[node.node_id]:
            if not node.runs:
                await node.start()

    async def keep_up(self) -> None:
        """Start again, as a service manager does, who ends with the wish for it; never returns.

        Its port may be somebody else's for a moment.
        """
        while True:
            await asyncio.sleep(RESTART_S)
            for node in self._nodes:
                if node.process is not None and node.process.returncode == AGAIN:
                    self._restart(node)

    async def _kill_controller(self) -> None:
        async with self._on.operator.voters_complete():
            controller = await self._controller()
            await self._measure_death(controller)
        self._restart(controller)

    async def _measure_death(self, controller: Node) -> None:
        others = [each for each in self._nodes if each is not controller]
        statuses = await self._on.cluster.statuses(others)
        complete = all(each is not None and each["state"] == "active" for each in statuses)
        begun_s = time.monotonic()
        await self._kill_one(controller)
        if complete:
            witness = self._on.witness
            await witness.until_acknowledged(begun_s, 1, HEAL_S)
            first = min(
                each.answered_s for each in witness.acknowledgements if each.asked_s >= begun_s
            )
            self.counts.without_controller_s.append(first - begun_s)

    async def _pause_controller(self) -> None:
        await self._pause(await self._controller())

    async def _pause_leader(self) -> None:
        await self._pause(await self._leader())

    async def _pause(self, node: Node) -> None:
        node.signal(signal.SIGSTOP)
        await asyncio.sleep(self._rng.uniform(*PAUSE_S))
        node.signal(signal.SIGCONT)

    async def _kill_leader_ahead(self) -> None:
        """Kill a leader that has what nobody else has: the others stood still."""
        leader = await self._leader()
        others = await self._run_ahead(leader)
        await self._kill_one(leader)
        for each in others:
            each.signal(signal.SIGCONT)
        self._restart(leader)

    async def _pause_leader_ahead(self) -> None:
        """Let such a leader stand still, too, and come back when somebody else may lead."""
        leader = await self._leader()
        others = await self._run_ahead(leader)
        leader.signal(signal.SIGSTOP)
        for each in others:
            each.signal(signal.SIGCONT)
        await asyncio.sleep(self._rng.uniform(*PAUSE_S))
        leader.signal(signal.SIGCONT)

    async def _run_ahead(self, leader: Node) -> list[Node]:
        others = [each for each in self._nodes if each is not leader]
        for each in others:
            each.signal(signal.SIGSTOP)
        await asyncio.sleep(self._rng.uniform(*AHEAD_S))
        return others

    async def _stop_controller(self) -> None:
        node = await self._controller()
        if node.runs:
            await node.stop()
        self._restart(node)

    async def _roll(self) -> None:
        """Restart one node after the other, each when the one before is back."""
        for node in self._nodes:
            await self.healed()
            if node.runs:
                code = await node.stop()
                assert code == 0, f"node {node.node_id} ended with {code}:\n{node.tail()}"
            self._restart(node)
        await self.healed()

    async def _too_few(self) -> None:
        """Ask for all replicas where one is gone: for so long nothing may be acknowledged by all.

        Three nodes do not get below two in sync by themselves: then nobody could note it.
        """
        load = self._on.load
        assert load is not None
        # The configs are changed while one node is down: no other voter may be missing.
        async with self._on.operator.voters_complete():
            victim = await self._another(await self._leader())
            await self._kill_one(victim)
            try:
                async with load.newcomer() as let_it_write, load.all_in_sync_wanted(HEAL_S):
                    await load.until_too_few(TOO_FEW_S)
                    await asyncio.sleep(GRACE_S + BELOW_S / 4)
                    let_it_write()
                    await asyncio.sleep(BELOW_S)
            finally:
                self._restart(victim)

    async def _rot(self) -> None:
        """Flip a bit in a log of a node that is down, and wait until it is mended from another one.

        All replicas are whole before: what rots everywhere at once nobody can mend.
        """
        load = self._on.load
        assert load is not None
        await self.healed()
        await load.until_whole()
        node = self._rng.choice(self._nodes)
        await self._kill_one(node)
        data = [node.data] if self._on.disks is None else self._on.disks.data_of(node.node_id)
        folders = [folder for key in load.keys if (folder := folder_of(data, key)) is not None]
        segment = flip_a_bit(folders, self._rng)
        self._restart(node)
        await self.healed()
        if segment is not None:
            async with asyncio.timeout(MEND_S):
                while not is_whole(segment):
                    await asyncio.sleep(1)
            load.note_strike(f"mended {segment.name} of node {node.node_id}")

    async def _kill_starting(self) -> None:
        """Kill a node several times while it starts, each time a bit later."""
        node = self._rng.choice(self._nodes)
        for _ in range(3):
            await self._kill_one(node)
            await self._start(node)
            await asyncio.sleep(self._rng.uniform(0.2, 2.0))
        await self._kill_one(node)
        self._restart(node)

    # -- the network

    def _cuts(self, hosts: Hosts) -> dict[str, Callable[[], Awaitable[None]]]:
        def cutting(
            draw: Callable[[], Awaitable[Node]], cut: Callable[[int, int], None]
        ) -> Callable[[], Awaitable[None]]:
            async def strike() -> None:
                first = await draw()
                cut(first.node_id, (await self._another(first)).node_id)
                await asyncio.sleep(self._rng.uniform(*CUT_S))
                hosts.heal()

            return strike

        def one_way(first: int, other: int) -> None:
            hosts.cut_way(*self._rng.sample((first, other), 2))

        def all_off(_first: int, _other: int) -> None:
            for each in self._nodes:
                hosts.cut(each.node_id)

        cuts = {
            "cut controller off": cutting(self._controller, lambda first, _: hosts.cut(first)),
            "cut follower off": cutting(self._controller, lambda _, other: hosts.cut(other)),
            "cut one way": cutting(self._controller, one_way),
            "cut pair": cutting(self._controller, hosts.cut_pair),
            "cut all off": cutting(self._controller, all_off),
        }
        if self._on.load is not None:
            cuts["cut leader off"] = cutting(self._leader, lambda first, _: hosts.cut(first))
            cuts["cut leader one way"] = cutting(self._leader, one_way)
            cuts["cut leader off, kill it"] = lambda: self._cut_and_kill(hosts)
        return cuts

    async def _cut_and_kill(self, hosts: Hosts) -> None:
        leader = await self._leader()
        hosts.cut(leader.node_id)
        await asyncio.sleep(self._rng.uniform(*AHEAD_S))
        await self._kill_one(leader)
        hosts.heal()
        self._restart(leader)

    # -- disks

    def _disk_strikes(self, disks: NodeDisks) -> dict[str, Callable[[], Awaitable[None]]]:
        async def lose_power(victims: Sequence[Node]) -> None:
            # Who stands still does not learn of it, as it would from errors.
            for each in victims:
                each.signal(signal.SIGSTOP)
            for each in victims:
                disks.lose_power(each.node_id, self._rng)
            await replace(victims)

        async def replace(victims: Sequence[Node]) -> None:
            await asyncio.gather(*(self._kill_one(each) for each in victims))
            for each in victims:
                await asyncio.to_thread(disks.mount_again, each.node_id)
                self._restart(each)

        async def fill() -> None:
            node = self._rng.choice(self._nodes)
            with disks.filled(node.node_id, self._rng.choice(LOGS)):
                await asyncio.sleep(self._rng.uniform(*DISK_S))

        async def fail() -> None:
            node = self._rng.choice(self._nodes)
            name, what = self._rng.choice(tuple(SIZES)), self._rng.choice(("write", "flush"))
            disks.fail(node.node_id, name, what)
            await asyncio.sleep(self._rng.uniform(*DISK_S))
            await replace([node])

        async def slow() -> None:
            node = self._rng.choice(self._nodes)
            disks.slow(node.node_id, self._rng.choice(FLUSH_S))
            await asyncio.sleep(self._rng.uniform(*DISK_S))
            disks.slow(node.node_id, 0)

        return {
            "slow disk": slow,
            "power cut of disks": lambda: lose_power([self._rng.choice(self._nodes)]),
            "power cut of all disks": lambda: lose_power(self._nodes),
            "full disk": fill,
            "failing disk": fail,
        }
