"""One run of a cluster: a plan in, a verdict out.

Faults and work go on for the plan's time. Then everything heals, and the rest is about whether the
cluster comes back whole: one controller, no node fenced, all images equal, every partition with a
leader and open on all its replicas, all calls ended.
"""

import gc
import random
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dlogd.metadata.raft import pysyncobj_adapter
from dlogd.metadata.state import snapshot
from tests.simulation.fleet.checks import FleetRegistry
from tests.simulation.fleet.clients import FleetClient
from tests.simulation.fleet.data_admin import DataAdmin
from tests.simulation.fleet.data_clients import DataClients, DataConsumer, DataProducer
from tests.simulation.fleet.data_ending import DataEnding
from tests.simulation.fleet.data_judge import judge
from tests.simulation.fleet.data_liars import DataLiar, draw_liars
from tests.simulation.fleet.data_throttles import DataThrottler
from tests.simulation.fleet.faults import FleetSaboteur
from tests.simulation.fleet.host import FleetHost
from tests.simulation.fleet.id_watch import watching_ids
from tests.simulation.fleet.operators import Operator
from tests.simulation.fleet.plan import FleetPlan
from tests.simulation.fleet.rot import Rot
from tests.simulation.fleet.smallness import bounds_of
from tests.simulation.fleet.steward import Steward
from tests.simulation.fleet.threads import virtual_threads
from tests.simulation.fleet.wholeness import Wholeness
from tests.simulation.log_watch import LogWatch, place_of
from tests.simulation.loop import NS, SimLoop, StalledError, World
from tests.simulation.network import Network
from tests.simulation.run import _ignore_the_dead
from tests.simulation.sealed import sealed
from tests.simulation.trace import Trace
from tests.simulation.transport import NetworkConfig

MS = 1_000_000
ENDING_NS = 60 * NS
"""What has not healed by then, or comes no further for so long at the end of the data, is stuck."""

MENDING_NS = 30 * NS
"""What a node has not mended so long after it looked everywhere, it does not mend."""

LOOK_NS = 5 * MS


@dataclass(slots=True)
class Verdict:
    """What a run found."""

    plan: FleetPlan
    digest: str
    violations: list[str]
    seconds: float
    counts: dict[str, int] = field(default_factory=dict)

    def summary(self) -> str:
        """Return one line."""
        state = "ok" if not self.violations else f"FAILED ({len(self.violations)})"
        shown = {
            name: self.counts.get(name, 0)
            for name in ("terms", "entries", "boots", "client calls ok", "ClaimController applied")
        }
        counts = " ".join(f"{name.replace(' ', '-')}={count}" for name, count in shown.items())
        return (
            f"seed {self.plan.seed} {self.digest} {state} nodes={self.plan.nodes} {counts}"
            f" seconds={self.seconds:.1f}"
        )


def simulate(plan: FleetPlan, print_line: Callable[[str], None] | None = None) -> Verdict:
    """Carry out a plan; the same plan gives the same digest."""
    hook, sys.unraisablehook = sys.unraisablehook, _ignore_the_dead
    collecting = gc.isenabled()
    gc.disable()
    if not gc.get_freeze_count():
        # What was imported has not to be looked through after each run. Not again: what a run
        # leaves behind would be kept for ever.
        gc.freeze()
    try:
        with bounds_of(plan), virtual_threads(), sealed():
            return _FleetRun(plan, print_line).carry_out_and_bury()
    finally:
        pysyncobj_adapter._time.clock = None  # the only thing that outlives a node
        sys.unraisablehook = _ignore
        with warnings.catch_warnings():
            # A killed process leaves coroutines that nobody will await.
            warnings.simplefilter("ignore", RuntimeWarning)
            gc.collect()
        if collecting:
            gc.enable()
        sys.unraisablehook = hook


def _ignore(_: Any) -> None:
    """Keep quiet about what dead processes leave behind."""


class _FleetRun:
    """Everything that a run has; clients, operators and faults reach each other through it."""

    def __init__(self, plan: FleetPlan, print_line: Callable[[str], None] | None) -> None:
        self.plan = plan
        self.active = True
        self.world = World()
        self.trace = Trace(lambda: self.world.now_ns, print_line)
        self.registry = FleetRegistry()
        links = NetworkConfig(**plan.network)  # type: ignore[arg-type]
        self.network = Network(self.world, random.Random(f"{plan.seed}/network"), links)
        self.network.trace = self.trace
        self.hosts = [
            FleetHost(node_id, plan, self.world, self.network, self.trace, self.registry)
            for node_id in range(1, plan.nodes + 1)
        ]
        self.registry.hosts = {host.address: host for host in self.hosts}
        self.world.after_step = self.registry.data.chain.look
        self.registry.voters = set(range(1, plan.controllers + 1))
        lease = self.hosts[0].config.lease
        bound_ms = lease.authority_ms + lease.image_lag_ms_max + lease.duration_ms
        self.registry.stale_max_ns = int(bound_ms * 1.002 + 100) * MS
        self.loop = SimLoop(self.world, "clients")
        self.network.attach(self.loop, "10.0.1.1")
        self.clients = [FleetClient(n, plan, self.loop, self) for n in range(plan.clients)]
        self.history = self.registry.history
        self.data = DataClients(self)
        self.data_admin = DataAdmin(self.data)
        self.throttler = DataThrottler(self.data)
        self.steward = Steward(self.data, self.hosts[-1])
        self.producers = [DataProducer(self.data, each) for each in plan.data.producers]
        self.consumers = [DataConsumer(self.data, each) for each in plan.data.consumers]
        liars = draw_liars(plan.seed, plan.pace) if plan.data.topics else ()
        self.liars = [DataLiar(self.data, each) for each in liars]
        self.wholeness = Wholeness(self.hosts)
        self.rot = Rot(self)
        for host in self.hosts:
            host.on_power_cut = self.rot.on_power_cut
            host.on_down = self.rot.on_down
        self.operator = Operator(self)
        self.saboteur = FleetSaboteur(self)
        self.count = self.registry.count
        self.violate = self.registry.violate

    async def sleep_ms(self, milliseconds: float) -> None:
        """Let time pass for a client."""
        future = self.loop.create_future()
        self.loop.call_later(milliseconds / 1000, _end, future)
        await future

    def carry_out_and_bury(self) -> Verdict:
        """Run to the end, judge, and let go of everything."""
        try:
            with (
                LogWatch(self.trace, self.registry),
                self.registry.watching(),
                self.rot.watching(),
                watching_ids(self.violate, self.count),
            ):
                self._carry_out()
            return self._verdict()
        finally:
            self.loop.kill()
            for host in self.hosts:
                if host.loop is not None:
                    host.loop.kill()
                host.forget()
                host.store = None

    def _verdict(self) -> Verdict:
        registry = self.registry
        counts = dict(sorted(registry.counts.items()))
        counts |= {
            "terms": len(registry.leaders),
            "entries": len(registry.applied),
            "snapshots installed": registry.snapshots_installed,
            "boots": sum(host.incarnation for host in self.hosts),
            "callbacks": self.world.callback_count,
            "calls": len(registry.all_calls),
        }
        digest = self.trace.digest()
        violations = registry.violations
        return Verdict(self.plan, digest, violations, self.world.now_ns / NS, counts)

    def _carry_out(self) -> None:
        rng = random.Random(f"{self.plan.seed}/run")
        for host in self.hosts:
            self.world.at(int(rng.random() * 300) * MS, host.boot)
        workers: tuple[Any, ...] = (
            *self.clients,
            self.data_admin,
            self.throttler,
            self.steward,
            *self.producers,
            *self.liars,
            *self.consumers,
        )
        tasks = [self.loop.create_task(each.run(), name="client") for each in workers]
        self.operator.begin()
        self.saboteur.schedule()
        self.world.at(0, self._look)
        try:
            if self._go(lambda: False, self.plan.active_ms * MS):
                return
            self.active = False
            self.saboteur.heal()
            self.world.at(0, self._tidy)
            if self._become_whole(tasks):
                self._judge(tasks)
                self._strike_once_more(tasks)
                self._mend(tasks)
                self._end_data()
        except StalledError as error:
            self.violate(f"liveness: {error}")

    def _end_data(self) -> None:
        """Write, read and compare everything, and judge what clients of the data heard."""
        if self.registry.violations:
            return
        ending = DataEnding(self.data, self.consumers)
        task = self.loop.create_task(ending.run(), name="ending")
        seen, ended = -1, None
        # A bound of the whole would be one of the work: a long log whose batches are read one by
        # one, each found by many small reads of a slow disk, takes minutes (seed 104428).
        while ended is None and seen < ending.progress:
            seen = ending.progress
            ended = self._go(task.done, ENDING_NS)
        if ended is None:
            self.violate("liveness: the data cannot be written or read to the end")
        elif not self.registry.violations and task.exception() is not None:
            error = task.exception()
            assert error is not None
            self.violate(f"ending: {error!r}{place_of(error)}")
        if not self.registry.violations:
            found = judge(self.history, self.registry.stale_max_ns, self.data.lives)
            self.registry.violations += found

    def _mend(self, tasks: list[Any]) -> None:
        """What has rotted must be found and mended, by nothing but time."""
        if self.registry.violations:
            return
        self.rot.close_segments()
        seen: list[tuple[int | None, int]] | None = None
        # A slow scrub of a long log is not at its end after any fixed time (seed 191206).
        while seen != self.rot.scrubbed():
            seen = self.rot.scrubbed()
            if (
                self._go(lambda: self.rot.is_sought() or self.rot.is_mended(), MENDING_NS)
                is not None
            ):
                break
        is_mended = self._go(self.rot.is_mended, MENDING_NS) is not None
        if not is_mended and self.rot.put_right() and self._become_whole(tasks):
            self._judge(tasks)

    def _become_whole(self, tasks: list[Any]) -> bool:
        if (
            self.rot.open_spots()
            and self._go(lambda: self.wholeness.missing(tasks) is None, MENDING_NS) is None
        ):
            self.rot.put_right(was_sought=False)  # or nobody could lead
        if self._go(lambda: self.wholeness.missing(tasks) is None, ENDING_NS) is None:
            self.violate(f"liveness: {self.wholeness.missing(tasks)}")
        return not self.registry.violations

    def _strike_once_more(self, tasks: list[Any]) -> None:
        """Take nodes away that the others can do without: they must be given up in time."""
        plan = self.plan
        if plan.last_strike == "none" or self.registry.violations:
            return
        victims = self._spare_hosts(random.Random(f"{plan.seed}/victims"))
        for host in victims:
            self.trace("strike", plan.last_strike, host.name)
            host.is_held_down = True
            self.count(f"last strike {plan.last_strike}")
            if plan.last_strike == "crash":
                host.crash()
            elif plan.last_strike == "power-cut":
                host.power_cut()
            else:
                host.pause(ENDING_NS)
        lost = {host.node_id for host in victims}
        rest = [host for host in self.hosts if host not in victims]
        lease = self.hosts[0].config.lease
        bound_ms = 3 * (lease.duration_ms + lease.authority_ms) + 1000 * self.plan.pace
        if (
            self._go(lambda: self.wholeness.not_given_up(lost, rest) is None, int(bound_ms) * MS)
            is None
        ):
            self.violate(f"detection: {self.wholeness.not_given_up(lost, rest)}")
        for host in victims:
            if host.loop is not None:
                host.loop.resume()
            host.is_held_down = False
            host.boot()
        if not self.registry.violations and self._become_whole(tasks):
            self._judge(tasks)

    def _spare_hosts(self, rng: random.Random) -> list[FleetHost]:
        """Draw hosts without which there still is a quorum."""
        leader = self.saboteur.leader()
        assert leader is not None and leader.store is not None
        voters = leader.store.voters
        votes = (len(voters) - 1) // 2
        hosts = rng.sample(self.hosts, len(self.hosts))
        if rng.random() < 0.6:
            hosts.sort(key=lambda host: host is not leader)
        chosen: list[FleetHost] = []
        for host in hosts:
            is_voter = voters.get(host.node_id) is not None
            if len(chosen) + 1 < len(hosts) and (not is_voter or votes > 0):
                votes -= is_voter
                chosen.append(host)
        return chosen[: rng.choice((1, 1, 2, len(chosen)))] if chosen else []

    def _go(self, until: Callable[[], bool], length_ns: int) -> bool | None:
        """Run until something is wrong (True), `until` (False), or the time is over (None)."""
        violations = self.registry.violations
        limit_ns = self.world.now_ns + length_ns
        while True:
            # What `until` looks at changes seldom: every so often is enough.
            step_ns = min(limit_ns, self.world.now_ns + 20 * MS)
            self.world.run(lambda: bool(violations), limit_ns=step_ns)
            if violations:
                return True
            if until():
                return False
            if self.world.now_ns >= limit_ns:
                return None

    def _look(self) -> None:
        self.registry.look_at_leases(self.world.now_ns)
        self.world.at(LOOK_NS, self._look)

    def _tidy(self) -> None:
        self.operator.tidy()
        self.world.at(int(500 * self.plan.pace) * MS, self._tidy)

    def _judge(self, tasks: list[Any]) -> None:
        for task in tasks:
            if task.exception() is not None:
                self.violate(f"client: {task.exception()!r}")
        images = [host.broker.store.image for host in self.hosts]  # type: ignore[union-attr]
        encoded = [snapshot.encode(image) for image in images]
        if any(each != encoded[0] for each in encoded):
            self.violate("images differ in the end")
        for client in self.clients:
            client.judge(images[0])
        self.registry.judge()


def _end(future: Any) -> None:
    if not future.done():
        future.set_result(None)
