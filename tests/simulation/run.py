"""One run: a plan in, a verdict out.

Faults and work go on for the plan's time. Then everything heals, and the rest is about whether the
node comes back whole: it serves, every call ends, every log takes a record more, tailing consumers
reach the ends, everything is read once, and once again after a clean stop and a power cut.
"""

import gc
import random
import sys
import warnings
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

from dlogd.config.load import load_config
from tests.fakes.faults import ProcessDied
from tests.histories.checkers import check
from tests.histories.history import FinalLog, History, LogKey, Outcome
from tests.simulation.admins import Administrator, RudeClient
from tests.simulation.clients import Surroundings
from tests.simulation.cluster import Host
from tests.simulation.constants import replaced
from tests.simulation.consumers import Consumer
from tests.simulation.faults import Saboteur
from tests.simulation.log_watch import LogWatch
from tests.simulation.loop import NS, SimLoop, StalledError, World
from tests.simulation.network import Network
from tests.simulation.plan import CLIENT_ADDRESSES, ConsumerPlan, Plan, ProducerPlan
from tests.simulation.producers import Producer
from tests.simulation.sealed import sealed
from tests.simulation.trace import Trace
from tests.simulation.transport import NetworkConfig

MS = 1_000_000
ENDING_LIMIT_NS = 180 * NS


@dataclass(slots=True)
class Verdict:
    """What a run found."""

    plan: Plan
    digest: str
    violations: list[str]
    counts: dict[str, int] = field(default_factory=dict)

    def summary(self) -> str:
        """Return one line."""
        counts = " ".join(f"{name}={count}" for name, count in self.counts.items())
        state = "ok" if not self.violations else f"FAILED ({len(self.violations)})"
        return f"seed {self.plan.seed} {self.digest} {state} {counts}"


def simulate(plan: Plan, print_line: Callable[[str], None] | None = None) -> Verdict:
    """Carry out a plan; the same plan gives the same digest."""
    hook, sys.unraisablehook = sys.unraisablehook, _ignore_the_dead
    collecting = gc.isenabled()
    gc.disable()
    gc.freeze()  # what was there before has not to be looked through after the run
    try:
        with replaced(plan.constants), sealed():
            return _Run(plan, print_line).carry_out_and_bury()
    finally:
        with warnings.catch_warnings():
            # A killed process leaves coroutines that nobody will await.
            warnings.simplefilter("ignore", RuntimeWarning)
            gc.collect()
        if collecting:
            gc.enable()
        sys.unraisablehook = hook


def _ignore_the_dead(unraisable: Any) -> None:
    """Keep quiet about coroutines of dead processes that are thrown away."""
    if not isinstance(unraisable.exc_value, ProcessDied):
        sys.__unraisablehook__(unraisable)


class _Run:
    def __init__(self, plan: Plan, print_line: Callable[[str], None] | None) -> None:
        self.plan = plan
        self.world = World()
        self.trace = Trace(lambda: self.world.now_ns, print_line)
        self.history = History()
        links = NetworkConfig(**plan.network)  # type: ignore[arg-type]
        self.network = Network(self.world, random.Random(f"{plan.seed}/network"), links)
        self.network.trace = self.trace
        config = load_config(plan.yaml(), {})
        self.host = Host(plan, config, self.world, self.network, self.trace, self.history)
        self.loops = [SimLoop(self.world, f"clients#{n}") for n, _ in enumerate(CLIENT_ADDRESSES)]
        for loop, address in zip(self.loops, CLIENT_ADDRESSES, strict=True):
            self.network.attach(loop, address)
        self.loop = self.loops[0]
        self.around = Surroundings(plan, self.loop, self.history, self.trace)
        self.saboteur = Saboteur(self.host)
        self.consumers = [
            Consumer(self.around, consumer, self._loop_of(number))
            for number, consumer in enumerate(plan.consumers)
        ]
        self.administrator = Administrator(self.around, self.loop)

    def _loop_of(self, number: int) -> SimLoop:
        return self.loops[number % len(self.loops)]

    def carry_out_and_bury(self) -> Verdict:
        """Run to the end, judge, and let go of everything."""
        try:
            return self.carry_out()
        finally:
            self.bury()

    def carry_out(self) -> Verdict:
        """Run to the end and judge."""
        limit_ns = self.plan.active_ms * MS + ENDING_LIMIT_NS
        with LogWatch(self.trace, self.history):
            self.host.boot()
            self.saboteur.schedule()
            driver = self.loop.create_task(self._drive(), name="driver")
            try:
                if not self.world.run(driver.done, limit_ns=limit_ns):
                    self.around.violation(f"liveness: no end after {ENDING_LIMIT_NS // NS} s")
                elif driver.exception() is not None:
                    self.around.violation(f"driver: {driver.exception()!r}")
            except StalledError as error:
                self.around.violation(f"liveness: {error}")
            self.host.crash()
        return Verdict(self.plan, self.trace.digest(), check(self.history), self._counts())

    def _counts(self) -> dict[str, int]:
        sends = self.history.sends
        return {
            "callbacks": self.world.callback_count,
            "boots": self.host.incarnation,
            "ok": sum(send.outcome is Outcome.OK for send in sends),
            "unknown": sum(send.outcome is Outcome.UNKNOWN for send in sends),
            "refused": sum(send.outcome is Outcome.REFUSED for send in sends),
            "polls": len(self.history.polls),
            "disk": self.host.machine.operation_count,
            "seconds": self.world.now_ns // NS,
        }

    def bury(self) -> None:
        """Throw the simulated processes away; nothing of them may run any more."""
        for loop in self.loops:
            loop.kill()
        self.host.forget()

    # -- the course of a run

    async def _drive(self) -> None:
        tasks = self._start_clients()
        await self.around.sleep_ms(self.plan.active_ms)
        self.saboteur.heal()
        self.around.active = False
        await self._end(tasks)
        if not await self._await_ready():
            return
        await self._probe()
        first = await self._read_all()
        self._check_ends(first)
        await self._catch_up(first)
        await self._within("compare", self.administrator.compare())
        self.history.finals = first
        await self._stop_and_look_again(first)

    def _start_clients(self) -> list[Any]:
        works: list[tuple[SimLoop, Coroutine[Any, Any, None], str]] = [
            (self.loop, self.administrator.run(), "admin"),
            (self.loops[1], RudeClient(self.around, self.loops[1]).run(), "rude"),
        ]
        for number, plan in enumerate(self.plan.producers):
            loop = self._loop_of(number + 1)
            works.append((loop, Producer(self.around, plan, loop).run(), plan.name))
        works += [(each.loop, each.run(), each.plan.name) for each in self.consumers]
        return [loop.create_task(work, name=name) for loop, work, name in works]

    async def _end(self, tasks: list[Any]) -> None:
        """Wait until all calls have ended, which they must when nothing is wrong any more."""
        deadline_s = self.loop.time() + 60
        for task in tasks:
            while not task.done() and self.loop.time() < deadline_s:
                await self.around.sleep_ms(20)
            if not task.done():
                self.around.violation(f"liveness: a call of {task.get_name()} never ended")
            elif task.exception() is not None:
                self.around.violation(f"client: {task.get_name()} {task.exception()!r}")

    async def _within(
        self, what: str, work: Coroutine[Any, Any, Any], loop: SimLoop | None = None
    ) -> Any:
        """Return what `work` returns; it may run on another loop, but not for ever."""
        task = (loop or self.loop).create_task(work, name=what)
        deadline_s = self.loop.time() + 60
        while not task.done() and self.loop.time() < deadline_s:
            await self.around.sleep_ms(5)
        if not task.done():
            self.around.violation(f"liveness: {what} did not end")
            return None
        if task.exception() is not None:
            self.around.violation(f"liveness: {what} failed: {task.exception()!r}")
            return None
        return task.result()

    async def _await_ready(self) -> bool:
        deadline_s = self.loop.time() + 30
        while self.host.not_ready_reason() is not None:
            if self.loop.time() > deadline_s:
                reason = self.host.not_ready_reason()
                self.around.violation(f"liveness: the node is not ready: {reason}")
                return False
            await self.around.sleep_ms(20)
        return True

    def _whole_logs(self) -> list[LogKey]:
        logs = [key for topic in self.around.topics.live for key in topic.logs()]
        return [key for key in logs if not self.history.facts_of(key).damaged]

    async def _probe(self) -> None:
        """Append one record to every log: each must take it."""
        plan = ProducerPlan("probe", False, -1, 1, 0, 1, 50, 0, 13, 10_000, 1, 3000)
        producer = Producer(self.around, plan, self.loop)
        for key in self._whole_logs():
            batch = producer.batch(key, None)
            await self._within("probe", producer.send_plainly([batch]))
            if batch.send.outcome is not Outcome.OK:
                self.around.violation(
                    f"liveness: nothing can be appended: {batch.send.error} log={key}"
                )
        producer.link.close()

    async def _read_all(self) -> dict[LogKey, FinalLog]:
        plan = ConsumerPlan("reader", False, 13, 100, 1, 1 << 20)
        reader = Consumer(self.around, plan, self.loop)
        finals = {}
        for key in self._whole_logs():
            final = await self._within("read", reader.read_whole(key))
            if final is None:
                self.around.violation(f"liveness: nothing can be read log={key}")
            else:
                finals[key] = final
        reader.link.close()
        return finals

    def _check_ends(self, finals: dict[LogKey, FinalLog]) -> None:
        for key, final in finals.items():
            self.trace("final", key, final.log_start_offset, final.high_watermark)

    async def _catch_up(self, finals: dict[LogKey, FinalLog]) -> None:
        for consumer in self.consumers:
            if consumer.plan.tails:
                size = max(consumer.plan.partition_bytes_max, 20_000)
                consumer.plan = replace(consumer.plan, min_bytes=1, partition_bytes_max=size)
                for key, final in finals.items():
                    if key in consumer.positions:
                        work = consumer.catch_up(key, final.high_watermark)
                        await self._within("catch up", work, consumer.loop)

    async def _stop_and_look_again(self, first: dict[LogKey, FinalLog]) -> None:
        """Stop cleanly and cut the power: under any flush policy nothing may be missing."""
        self.host.stop(None)
        deadline_s = self.loop.time() + 60
        while self.host.state != "down" and self.loop.time() < deadline_s:
            await self.around.sleep_ms(20)
        if self.host.state != "down":
            self.around.violation("liveness: the node did not stop")
            return
        self.host.power_cut()
        # A clean stop leaves nothing to lose.
        self.history.power_cuts_ns.pop()
        self.host.boot()
        if not await self._await_ready():
            return
        for key, again in (await self._read_all()).items():
            before = first.get(key)
            if before is None:
                continue
            skipped = again.log_start_offset - before.log_start_offset
            if skipped < 0 or again.records != before.records[skipped:]:
                self.around.violation(
                    f"clean-stop: {len(before.records)} records from {before.log_start_offset}"
                    f" were {len(again.records)} from {again.log_start_offset} after it log={key}"
                )
