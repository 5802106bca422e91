"""Asyncio loops with virtual time: one loop per simulated process, all driven by one `World`.

Time moves only when nothing is runnable, and then to the next timer. A loop that is killed drops
its callbacks for ever, so that its tasks never run again (kill -9 runs no `finally`); a paused one
keeps them for later. The loop's own clock has an offset and a drift.

Private names of asyncio that this needs are asserted below; they exist in CPython 3.11 to 3.14.
"""

import asyncio
import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, NoReturn, TypeVarTuple

from tests.fakes.faults import ProcessDied

Ts = TypeVarTuple("Ts")

NS = 1_000_000_000
EPOCH_MS = 1_790_000_000_000  # wall clock at virtual time 0: September 2026

for _owner, _name in (
    (asyncio.Handle, "_run"),
    (asyncio.TimerHandle, "_run"),
    (asyncio.BaseEventLoop, "_timer_handle_cancelled"),
    (asyncio.events, "_set_running_loop"),
    (asyncio.events, "_get_running_loop"),
):
    assert hasattr(_owner, _name), f"asyncio has no {_name} any more"


class StalledError(AssertionError):
    """The run cannot go on: nothing is scheduled, or time does not move."""


def _do_nothing() -> None:
    """Nobody watches."""


class World:
    """Virtual time and what happens in it. Owner: the thread that calls `run`."""

    def __init__(self, *, callbacks_per_instant_max: int = 200_000) -> None:
        self.now_ns = 0
        self.callback_count = 0
        self._instant_ns = -1
        self._instant_count = 0
        self._callbacks_per_instant_max = callbacks_per_instant_max
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[int, int, asyncio.Handle]] = []
        self._sequence = itertools.count()
        self._own = SimLoop(self, "world")
        self.after_step: Callable[[], None] = _do_nothing
        """Called when a callback of any loop has returned, as if still on that loop."""

    def at(self, delay_ns: int, callback: Callable[..., object], *arguments: Any) -> None:
        """Call back after `delay_ns`, outside of any process."""
        handle = asyncio.Handle(callback, arguments, self._own)
        self.push_timer(self.now_ns + max(0, delay_ns), handle)

    def push_ready(self, handle: asyncio.Handle) -> None:
        """Run `handle` at this instant, after all that is ready."""
        self._ready.append(handle)

    def push_timer(self, when_ns: int, handle: asyncio.Handle) -> None:
        """Run `handle` at `when_ns`."""
        heapq.heappush(self._timers, (when_ns, next(self._sequence), handle))

    def run(self, until: Callable[[], bool], *, limit_ns: int | None = None) -> bool:
        """Run until `until()`; False when the limit of virtual time came first."""
        outside = asyncio.events._get_running_loop()
        if outside is not None:
            raise RuntimeError("A loop is already running in this thread")
        try:
            while not until():
                if not self._ready and not self._advance(limit_ns):
                    return False
                self._run_ready()
        finally:
            asyncio.events._set_running_loop(None)
        return True

    def _advance(self, limit_ns: int | None) -> bool:
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not timers:
            raise StalledError("Dead-lock: nothing is runnable and nothing is scheduled")
        when_ns = timers[0][0]
        if limit_ns is not None and when_ns > limit_ns:
            self.now_ns = max(self.now_ns, limit_ns)
            return False
        self.now_ns = max(self.now_ns, when_ns)
        while timers and timers[0][0] <= self.now_ns:
            self._ready.append(heapq.heappop(timers)[2])
        return True

    def _run_ready(self) -> None:
        ready = self._ready
        set_running_loop = asyncio.events._set_running_loop
        current: asyncio.AbstractEventLoop | None = None
        if self._instant_ns != self.now_ns:
            self._instant_ns, self._instant_count = self.now_ns, 0
        count = self._instant_count
        while ready:
            handle = ready.popleft()
            loop: SimLoop = handle._loop  # type: ignore[attr-defined]
            if loop.dead or handle._cancelled:
                continue
            if loop.parked is not None:
                loop.parked.append(handle)
                continue
            if loop is not current:
                set_running_loop(loop)
                current = loop
            handle._run()
            self.after_step()
            if loop.stall_ns:
                loop.block()
            count += 1
            if count > self._callbacks_per_instant_max:
                raise StalledError(f"Time stands still: {count} callbacks at once, last {handle}")
        self.callback_count += count - self._instant_count
        self._instant_count = count


class SimLoop(asyncio.BaseEventLoop):
    """The event loop of one simulated process; alone (without `world`) it serves a unit test.

    `address` and `network` are given by `tests.simulation.network.Network.attach`.
    """

    def __init__(
        self,
        world: World | None = None,
        name: str = "main",
        *,
        offset_ns: int = 0,
        drift_ppm: int = 0,
    ) -> None:
        super().__init__()
        self.world = world if world is not None else World()
        self.name = name
        self.dead = False
        self.parked: list[asyncio.Handle] | None = None
        # Loops of further threads of the same process: they live, stop and die with it.
        self.threads: list[SimLoop] = []
        self.stall_ns = 0  # for how long the callback that runs now blocks this loop
        # How to hear of its end instead, when nobody knows for how long.
        self.stuck: Callable[[Callable[[], None]], None] | None = None
        self._paused = self._blocked = False
        self.address = ""
        self.network: Any = None
        self._offset_ns = offset_ns
        self._drift_ppm = drift_ppm
        self.set_exception_handler(_on_exception)

    def __repr__(self) -> str:
        return f"SimLoop({self.name})"

    def __del__(self) -> None:
        """Do not warn: nothing is held that would have to be closed."""

    # -- time

    def elapsed_ns(self, world_ns: int | None = None) -> int:
        """Return the time since the world began, as this process's clock runs."""
        now_ns = self.world.now_ns if world_ns is None else world_ns
        return now_ns + now_ns * self._drift_ppm // 1_000_000

    def local_ns(self, world_ns: int | None = None) -> int:
        """Return this process's monotonic time, now or at another moment."""
        return self._offset_ns + self.elapsed_ns(world_ns)

    def time(self) -> float:
        return self.local_ns() / NS

    # -- scheduling

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if not self.dead:
            self.world.push_ready(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        if not self.dead:
            self.world.push_timer(self._world_ns(when), timer)
        return timer

    def _world_ns(self, when: float) -> int:
        """Return the first moment at which `time()` is `when` or later, but not the past."""
        # A hundredth of a nanosecond of rounding must not cost a whole one.
        target_ns = math.ceil(when * NS - 0.01)
        if target_ns / NS < when:
            target_ns += 1
        now_ns = self.world.now_ns
        moment_ns = now_ns + target_ns - self.local_ns()
        if self._drift_ppm:
            delay_ns = (target_ns - self.local_ns()) * 1_000_000
            moment_ns = now_ns + delay_ns // (1_000_000 + self._drift_ppm)
            while self.local_ns(moment_ns) < target_ns:
                moment_ns += 1
        return max(now_ns, moment_ns)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    # -- life

    def thread(self, name: str) -> "SimLoop":
        """Return the loop of a further thread of this process."""
        loop = SimLoop(
            self.world,
            f"{self.name}/{name}",
            offset_ns=self._offset_ns,
            drift_ppm=self._drift_ppm,
        )
        loop.network, loop.address = self.network, self.address
        self.threads.append(loop)
        return loop

    def process(self) -> "tuple[SimLoop, ...]":
        """Return this loop and those of all threads beside it."""
        return (self, *self.threads)

    def kill(self) -> None:
        """Let no callback of this process run any more."""
        for loop in self.process():
            loop.dead = True
            loop.parked = None

    def pause(self) -> None:
        """Keep callbacks for later, as a stopped process does (SIGSTOP)."""
        for loop in self.process():
            loop._paused = True
            loop._park()

    def resume(self) -> None:
        """Run what was kept."""
        for loop in self.process():
            loop._paused = False
            loop._unpark()

    def block(self) -> None:
        """Run nothing for `stall_ns`, or until what is stuck goes on: a call has just blocked."""
        stall_ns, self.stall_ns = self.stall_ns, 0
        self._blocked = True
        self._park()
        if self.stuck is None:
            self.world.at(stall_ns, self._unblock)
        else:
            self.stuck(self._unblock)
            self.stuck = None

    def _unblock(self) -> None:
        self._blocked = False
        self._unpark()

    def _park(self) -> None:
        if self.parked is None:
            self.parked = []

    def _unpark(self) -> None:
        if self._paused or self._blocked:
            return
        parked, self.parked = self.parked, None
        for handle in parked or ():
            self.world.push_ready(handle)

    def stop(self) -> None:
        """Run nothing any more: the thread of this loop ends."""
        self.dead = True

    def is_running(self) -> bool:
        return asyncio.events._get_running_loop() is self

    def is_closed(self) -> bool:
        return self.dead

    def close(self) -> None:
        self.kill()

    def run_until_complete(self, future: Any) -> Any:
        """Drive the world until `future` is done."""
        task = asyncio.ensure_future(future, loop=self)
        self.world.run(task.done)
        return task.result()

    def run_forever(self) -> NoReturn:
        raise NotImplementedError("Drive a simulated loop by World.run or run_until_complete")

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Any, *args: Any
    ) -> NoReturn:
        raise RuntimeError("Threads are forbidden in the simulation; use Engine.run")

    # -- network

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> asyncio.AbstractServer:
        server: asyncio.AbstractServer = self.network.listen(self, protocol_factory, port or 0)
        return server

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        return await self.network.connect(self, protocol_factory, str(host), int(port))


def _on_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if isinstance(context.get("exception"), ProcessDied):
        return
    if isinstance(loop, SimLoop) and loop.dead:
        return
    loop.default_exception_handler(context)


class SimClock:
    """Implements `dlogd.runtime.clock.Clock` on a simulated loop.

    The wall clock may be set at any time.
    """

    def __init__(self, loop: SimLoop, wall_offset_ms: int = 0) -> None:
        self._loop = loop
        self.wall_offset_ms = wall_offset_ms

    def now_ms(self) -> int:
        return self._loop.local_ns() // 1_000_000

    def now_us(self) -> int:
        return self._loop.local_ns() // 1_000

    def timestamp_ms(self) -> int:
        return EPOCH_MS + self.wall_offset_ms + self._loop.elapsed_ns() // 1_000_000


def run_alone(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine on a loop of its own, in virtual time."""
    return SimLoop().run_until_complete(work)
