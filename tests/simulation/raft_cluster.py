"""Hosts that run the real Raft metadata layer on the virtual loop, with simulated disk and network.

A host outlives its incarnations; the registry (`raft_checks`) outlives everything and sees what
each incarnation applies, leads and logs.
"""

import asyncio
import random
from collections.abc import Iterable
from typing import Any

from dlogd.metadata.raft.settings import RaftConfig
from dlogd.metadata.raft.store import RaftStore
from dlogd.metadata.raft.timings import RaftTimings
from dlogd.metadata.raft.voters import Voter, Voters
from tests.fakes.disk import Machine, Process
from tests.fakes.randomness import SeededRandomness
from tests.simulation.loop import NS, SimClock, SimLoop, World
from tests.simulation.network import Network
from tests.simulation.raft_checks import Registry
from tests.simulation.trace import Trace

PORT = 9000
SECRET = b"5Ou0zTq1mVbYJp8wC3xKQg=="
PATH = "/data/meta"


class RaftHost:
    """One host. `store` is None while no incarnation runs or it is still opening."""

    def __init__(
        self,
        node_id: int,
        controllers: tuple[int, ...],
        *,
        seed: str,
        world: World,
        network: Network,
        trace: Trace,
        registry: Registry,
        config: dict[str, Any],
    ) -> None:
        self.node_id = node_id
        self.address = f"10.0.0.{node_id}"
        self._controllers = controllers
        self.world = world
        self.network = network
        self.trace = trace
        self._registry = registry
        self._config = config
        self._rng = random.Random(f"{seed}/host{node_id}")
        self.machine = self._new_machine()
        self.loop: SimLoop | None = None
        self.clock: SimClock | None = None
        self.process: Process | None = None
        self.store: RaftStore | None = None
        self.state = "down"
        self.incarnation = 0
        self.disturbed = False
        self.wiped = False
        self.gone = False  # not to be started again
        self.graveyard: list[Any] = []

    def _new_machine(self) -> Machine:
        return Machine(
            random.Random(self._rng.getrandbits(64)),
            trace=lambda *event: self.trace("disk", self.node_id, *event),
        )

    def boot(self) -> None:
        """Start the next incarnation, if none runs."""
        if self.state != "down" or self.gone:
            return
        self.incarnation += 1
        self.state = "starting"
        loop = SimLoop(
            self.world,
            f"n{self.node_id}#{self.incarnation}",
            offset_ns=self._rng.randrange(1000) * NS,
            drift_ppm=self._rng.choice((0, 0, 200, -200, 20_000)),
        )
        self.network.attach(loop, self.address)
        self.process = self.machine.boot(loop)
        self.loop, self.clock = loop, SimClock(loop)
        self.trace("boot", loop.name)
        loop.call_soon(self._open, loop)

    def _open(self, loop: SimLoop) -> None:
        assert self.process is not None and self.clock is not None
        voters = Voters.of(
            Voter(node_id=n, host=f"10.0.0.{n}", port=PORT) for n in self._controllers
        )
        config = RaftConfig(
            node_id=self.node_id,
            cluster="simulated",
            secret=SECRET,
            controllers=voters,
            host=self.address,
            port=PORT,
            timings=RaftTimings(),
            **self._config,
        )
        opening = RaftStore.open(
            self.process.open_directory(PATH),
            config,
            clock=self.clock,
            randomness=SeededRandomness(self._rng.getrandbits(64)),
            on_failed=lambda error: self._on_failed(loop, error),
        )
        task = loop.create_task(opening, name="open")
        task.add_done_callback(lambda task: self._on_opened(loop, task))
        self.graveyard.append(task)

    def _on_opened(self, loop: SimLoop, task: "asyncio.Task[RaftStore]") -> None:
        if loop is not self.loop or loop.dead:
            return
        error = task.exception()
        if error is not None:
            self.trace("open-failed", loop.name, repr(error))
            if not self.disturbed:
                self._registry.violate(f"node {self.node_id} did not start: {error!r}")
            self.world.at(0, self._give_up, loop)
            return
        store = self.store = task.result()
        self.state = "up"
        self.trace("up", loop.name)
        self._registry.watch(self.node_id, self.incarnation, store)

    def _on_failed(self, loop: SimLoop, error: Exception) -> None:
        self.trace("failed", loop.name, repr(error))
        if not self.disturbed:
            self._registry.violate(f"node {self.node_id} failed: {error!r}")
        self.world.at(0, self._give_up, loop)

    def _give_up(self, loop: SimLoop) -> None:
        if loop is self.loop and self.state != "down":
            self.crash()
            self.world.at(NS, self.boot)

    def crash(self) -> None:
        """Kill the process (kill -9)."""
        if self.state != "down":
            self._end("crash", power=False)

    def power_cut(self) -> None:
        """Cut the power of the host."""
        if self.state == "down":
            self.machine.power_cut()
        else:
            self._end("power-cut", power=True)

    def _end(self, how: str, *, power: bool) -> None:
        loop = self.loop
        assert loop is not None
        self.trace(how, loop.name)
        self.graveyard += [loop, self.process, self.store]
        loop.kill()
        self.state, self.store = "down", None
        if power:
            self.network.cut_power(loop)
            self.machine.power_cut()
        else:
            self.network.kill_process(loop)
            self.machine.crash()

    def die_at(self, count: int, *, power: bool, downtime_ns: int) -> None:
        """Die in the middle of the n-th file operation from now."""
        loop = self.loop
        if self.state == "down" or loop is None:
            return

        def on_death() -> None:
            loop.kill()
            self.world.at(0, after)

        def after() -> None:
            if loop is self.loop and self.state != "down":
                self._end("died", power=power)
                self.world.at(downtime_ns, self.boot)

        self.machine.die_at(count, on_death)

    def pause(self, length_ns: int) -> None:
        """Stop the process for a while (SIGSTOP)."""
        if self.loop is not None and self.state == "up":
            self.trace("pause", self.loop.name)
            self.loop.pause()
            loop = self.loop
            self.world.at(length_ns, lambda: loop.resume() if loop.parked is not None else None)

    def wipe(self) -> None:
        """Lose the disk; the next incarnation finds an empty one."""
        self.crash()
        self.trace("wipe", self.node_id)
        self.machine = self._new_machine()
        self.wiped = True

    def forget(self) -> None:
        """Let go of all incarnations."""
        self.graveyard.clear()
        self.loop = self.process = self.store = None


def describe(hosts: Iterable[RaftHost]) -> list[Any]:
    """Return what each node is and has."""
    return [
        (
            host.node_id,
            host.state,
            None
            if host.store is None
            else (
                host.store.role,
                host.store.term,
                host.store.leader_id,
                host.store.core.applied_index,
                host.store.core.commit_index,
                host.store.log.base_index,
                host.store.log.last_index,
                list(host.store.core.connected),
                host.store.voters.node_ids,
            ),
        )
        for host in hosts
    ]
