"""One simulated host with its disks and its clock, and the real broker that runs on it.

The host outlives the broker: `crash`, `power_cut` and `stop` end an incarnation, `boot` starts the
next, which finds what the disks kept. Dead incarnations stay referenced until the run is over, so
that no destructor runs in its middle.
"""

import asyncio
import errno
import random
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from dlogd.config.load import load_config
from dlogd.config.schema import Config
from dlogd.node.broker import Broker
from dlogd.runtime.config_reload import plan_reload
from tests.fakes.disk import Machine, Process
from tests.fakes.faults import Latency
from tests.fakes.randomness import SeededRandomness
from tests.simulation.log_watch import Watcher
from tests.simulation.loop import NS, SimClock, SimLoop, World
from tests.simulation.network import Network
from tests.simulation.plan import NODE_ADDRESS, Plan
from tests.simulation.trace import Trace

RESTART_DELAY_NS = 300_000_000  # as the service manager's RestartSec


class HostPlan(Protocol):
    """What a host must know of the run that it is in."""

    @property
    def seed(self) -> int:
        """Of what everything is drawn."""

    @property
    def directories(self) -> tuple[str, ...]:
        """Its disks."""

    @property
    def capacity_bytes(self) -> int:
        """Of each disk."""

    @property
    def disk_latency_us(self) -> tuple[int, int]:
        """A fixed part and the mean of a random one."""

    @property
    def direct_supported(self) -> bool:
        """Whether the disks take O_DIRECT."""

    @property
    def pause_share(self) -> float:
        """How often blocking work pauses in its middle."""

    @property
    def drift_ppm(self) -> int:
        """Of the clock."""


class Host:
    """A host and its node. `broker` is None while no incarnation runs."""

    def __init__(
        self,
        plan: HostPlan,
        config: Config,
        world: World,
        network: Network,
        trace: Trace,
        history: Watcher,
        *,
        name: str = "node",
        address: str = NODE_ADDRESS,
    ) -> None:
        self.world = world
        self.network = network
        self.trace = trace
        self.history = history
        self.plan = plan
        self.name = name
        self.address = address
        self.config = config
        self.rng = random.Random(f"{plan.seed}/host/{name}")
        self.wall_offset_ms = 0
        self.clock: SimClock | None = None
        self.loop: SimLoop | None = None
        self.process: Process | None = None
        self.broker: Broker | None = None
        self.incarnation = 0
        self.state = "down"  # down, starting, up, stopping
        self.is_held_down = False  # nothing may start it
        # Whether errors of a disk may have made the node give up files until it is restarted.
        self.disturbed = False
        self.short_until_ns = -1
        """Until then nothing can be opened on one of its disks: no fault of the disk."""
        self.stop_began_ns = 0
        self.pause_number = 0
        self._graveyard: list[Any] = []
        self.machine = self._new_machine()

    def _new_machine(self) -> Machine:
        plan, rng = self.plan, random.Random(self.rng.getrandbits(64))
        capacity = plan.capacity_bytes
        machine = Machine(rng, plan.directories, capacity_bytes=capacity, trace=self._on_disk)
        for disk in machine.disks.values():
            fixed_us, mean_us = plan.disk_latency_us
            disk.latency = Latency(fixed_us / 1e6, mean_us / 1e6)
            disk.direct_supported = plan.direct_supported
        return machine

    def _drift_ppm(self) -> int:
        return self.plan.drift_ppm

    def _on_disk(self, operation: str, path: str, position: int, length: int) -> None:
        self.trace("disk", self.name, operation, path, position, length)

    # -- life

    def boot(self) -> None:
        """Start the next incarnation, if none runs."""
        if self.state != "down" or self.is_held_down:
            return
        self.incarnation += 1
        self.state = "starting"
        loop = SimLoop(
            self.world,
            f"{self.name}#{self.incarnation}",
            offset_ns=self.rng.randrange(1000) * NS,
            drift_ppm=self._drift_ppm(),
        )
        self.network.attach(loop, self.address)
        process = self.machine.boot(loop)
        process.engine.pause_share = self.plan.pause_share
        self.loop, self.process = loop, process
        self.clock = SimClock(loop, self.wall_offset_ms)
        self.trace("boot", loop.name)
        running = asyncio.events._get_running_loop()
        asyncio.events._set_running_loop(loop)
        broker = self._new_broker(loop, process, self.clock)
        asyncio.events._set_running_loop(running)
        self.broker = broker
        self._graveyard.append((loop, process, broker))
        loop.call_soon(self._start, loop, broker)

    def _new_broker(self, loop: SimLoop, process: Process, clock: SimClock) -> Broker:
        return Broker(
            self.config,
            loop=loop,
            clock=clock,
            randomness=SeededRandomness(self.rng.getrandbits(64)),
            open_directory=process.open_directory,
            engine=process.engine,
            on_failure=lambda reason: self._on_failure(loop, reason),
        )

    def _start(self, loop: SimLoop, broker: Broker) -> None:
        task = loop.create_task(broker.start(), name="start")
        task.add_done_callback(lambda task: self._on_started(loop, task))
        self._graveyard.append(task)

    def _on_started(self, loop: SimLoop, task: "asyncio.Task[None]") -> None:
        if loop is not self.loop or self.state != "starting":
            return
        error = task.exception()
        if error is None:
            self.state = "up"
            self.trace("up", loop.name)
            return
        self.trace("start-failed", loop.name, repr(error))
        if not self.disturbed and not self._is_excused(error):
            self.history.violations.append(f"start: {self.name} did not start: {error!r}")
        self.world.at(0, self._give_up, loop)

    def _is_excused(self, error: BaseException) -> bool:
        """Whether the service manager just tries again: without descriptors no node starts."""
        return isinstance(error, OSError) and error.errno == errno.EMFILE

    def _on_failure(self, loop: SimLoop, reason: str) -> None:
        """The node says that it cannot go on; the service ends it and it is started again."""
        self.trace("failed", loop.name, reason)
        if not self.disturbed:
            self.history.violations.append(f"failure: {self.name} gave up: {reason}")
        self.world.at(0, self._give_up, loop)

    def _give_up(self, loop: SimLoop) -> None:
        if loop is self.loop and self.state != "down":
            self._end("give-up")
            self.boot_later(RESTART_DELAY_NS)

    def boot_later(self, delay_ns: int) -> None:
        """Start again after a while, as the service manager does."""
        self.world.at(delay_ns, self.boot)

    def crash(self) -> None:
        """Kill the process (kill -9)."""
        if self.state != "down":
            self._end("crash")

    def power_cut(self, keep: float | None = None) -> None:
        """Cut the power of the host: what was not flushed is lost, peers hear nothing."""
        self._note_power_cut()
        if self.state == "down":
            self.machine.power_cut(keep)
            return
        loop = self._mark_down("power-cut")
        self.network.cut_power(loop)
        self.machine.power_cut(keep)

    def _note_power_cut(self) -> None:
        self.history.power_cuts_ns.append(self.world.now_ns)

    def _end(self, how: str) -> None:
        loop = self._mark_down(how)
        self.network.kill_process(loop)
        self.machine.crash()

    def _mark_down(self, how: str) -> SimLoop:
        assert self.loop is not None and self.process is not None
        self.trace(how, self.loop.name)
        self.history.violations += [f"misuse: {text}" for text in self.process.misuses]
        self.process.misuses.clear()
        self.loop.kill()
        self.state = "down"
        self.broker = None
        return self.loop

    def die_at(
        self, count: int, how: str, downtime_ns: int, operation: str, path_part: str
    ) -> None:
        """Let the process end in the middle of the n-th file operation from now."""
        on_death = partial(self._on_death, how, downtime_ns)
        self.machine.die_at(count, on_death, operation, path_part)

    def _on_death(self, how: str, downtime_ns: int) -> None:
        # In the middle of anything, perhaps in a worker's thread: only take note.
        loop = self.loop
        assert loop is not None
        loop.kill()
        self.world.at(0, self._after_death, loop, how, downtime_ns)

    def _after_death(self, loop: SimLoop, how: str, downtime_ns: int) -> None:
        if loop is self.loop and self.state != "down":
            if how == "power-cut":
                self.power_cut()
            else:
                self.crash()
            self.boot_later(downtime_ns)

    def stop(self, downtime_ns: int | None) -> None:
        """Stop cleanly (SIGTERM), then start again unless `downtime_ns` is None."""
        if self.state not in ("up", "starting") or self.loop is None or self.broker is None:
            return
        self.state = "stopping"
        self.stop_began_ns = self.world.now_ns
        self.trace("stop", self.loop.name)
        self.loop.call_soon(self._stop, self.loop, self.broker, downtime_ns)

    def _stop(self, loop: SimLoop, broker: Broker, downtime_ns: int | None) -> None:
        task = loop.create_task(broker.stop(), name="stop")
        task.add_done_callback(lambda task: self._on_stopped(loop, broker, task, downtime_ns))
        self._graveyard.append(task)

    def _on_stopped(
        self,
        loop: SimLoop,
        broker: Broker,
        task: "asyncio.Task[None]",
        downtime_ns: int | None,
    ) -> None:
        if loop is not self.loop or self.state != "stopping":
            return
        error = task.exception()
        if error is not None and not self.disturbed and not self._may_hang():
            self.history.violations.append(f"stop: {self.name} did not stop cleanly: {error!r}")
        self.world.at(0, self._after_stop, loop, broker, downtime_ns)

    def _may_hang(self) -> bool:
        """Whether a stop may end without all that it waits for.

        What cannot be opened is tried again a second later, when the time of a stop may be over
        (seed 3067).
        """
        return self.stop_began_ns < self.short_until_ns

    def _after_stop(self, loop: SimLoop, broker: Broker, downtime_ns: int | None) -> None:
        if loop is not self.loop or self.state != "stopping":
            return
        assert self.process is not None
        # The daemon does the same: what hangs in the engine is left to the end of the process.
        if not broker.hanging:
            self.process.engine.close()
        self._end("stopped")
        if downtime_ns is not None:
            self.boot_later(downtime_ns)

    def forget(self) -> None:
        """Let go of all incarnations."""
        self._graveyard.clear()
        self.loop = self.process = self.broker = None

    # -- other trouble

    def pause(self, length_ns: int) -> None:
        """Stop the process for a while (SIGSTOP)."""
        loop = self.loop
        if loop is not None and self.state != "down":
            self.trace("pause", loop.name)
            loop.pause()
            self.pause_number += 1
            self.world.at(length_ns, self._continue, loop, self.pause_number)

    def _continue(self, loop: SimLoop, pause_number: int) -> None:
        # An earlier pause that ends in the middle of a later one ends nothing.
        if pause_number == self.pause_number:
            loop.resume()

    def reload(self, changes: dict[str, str]) -> None:
        """Change the configuration file and let a running node take it over (SIGHUP)."""
        plan = self.plan
        assert isinstance(plan, Plan)
        self.config = load_config(replace(plan, config=plan.config | changes).yaml(), {})
        loop, broker = self.loop, self.broker
        if loop is not None and broker is not None and self.state == "up":
            loop.call_soon(broker.reconfigure, plan_reload(broker.config, self.config).config)

    def set_clock(self, change_ms: int) -> None:
        """Move the wall clock."""
        self.wall_offset_ms += change_ms
        if self.clock is not None:
            self.clock.wall_offset_ms += change_ms

    def not_ready_reason(self) -> str | None:
        """Return why the node serves nobody, None when it does."""
        if self.state != "up" or self.broker is None:
            return self.state
        return self.broker.not_ready_reason()
