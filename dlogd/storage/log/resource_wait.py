"""Wait for descriptors, memory or disk space, and retry.

These shortages pass. Meanwhile the log takes no appends (what it has taken stays in memory,
unacknowledged), readers are served as far as they can be.
Owner: the event loop's thread.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from dlog.errors import KafkaStorageError
from dlogd.storage.io.errnos import NO_SPACE, OF_THE_PROCESS, SHORTAGES
from dlogd.storage.log.log_state import LogState

log = logging.getLogger(__name__)

RETRY_S = 1.0
WARN_INTERVAL_MS = 60_000
STOP_TRIES = 3
"""Tries that are left when the log is being closed: a stop gives descriptors back, but must end."""
STOP_RETRY_S = 0.2

T = TypeVar("T")


class ResourceWait:
    """Runs the blocking steps of one log, patiently; the caller holds the lock of maintenance."""

    __slots__ = (
        "_message",
        "_pause",
        "_state",
        "_tries_left",
        "_warned_ms",
        "gate",
        "impatient",
        "is_for_space",
        "is_on",
    )

    def __init__(self, state: LogState) -> None:
        self.is_on = False
        self.is_for_space = False
        # Held while a step is tried: who holds it does something between two tries.
        self.gate = asyncio.Lock()
        self.impatient: set[asyncio.Timeout] = set()
        """Of who waits for the lock, and has to look again when its holder begins to wait."""
        self._state = state
        self._message = ""
        self._pause: asyncio.Future[None] | None = None
        self._tries_left: int | None = None  # None: as often as it takes
        self._warned_ms = -WARN_INTERVAL_MS

    async def run(self, work: Callable[[], T], *, for_space: bool = True) -> T:
        """Run `work` by the engine until it is not short of anything; it must bear repetition.

        `for_space`: also until it finds space on the disk; not for the flush of a file, which may
        not be repeated. Raises OSError: any other, or that of a shortage when the log ends.
        """
        passing = SHORTAGES if for_space else OF_THE_PROCESS
        return await self._repeat(partial(self._state.services.engine.run, work), passing)

    async def do(self, work: Callable[[], T]) -> T:
        """Do as `run`, on the loop's thread: for what takes no time and is not to be shared."""

        async def attempt() -> T:
            return work()

        return await self._repeat(attempt, SHORTAGES)

    async def _repeat(self, attempt: Callable[[], Awaitable[T]], passing: frozenset[int]) -> T:
        while True:
            try:
                async with self.gate:
                    result = await attempt()
            except OSError as error:
                if error.errno not in passing or not self._may_wait():
                    self._stop_waiting()
                    raise
                self._begin(error)
                await self._sleep()
            else:
                self._end()
                return result

    def check(self) -> None:
        """Raise KafkaStorageError while a step waits: the lock is not to be had."""
        if self.is_on:
            raise KafkaStorageError(self._message)

    async def lock_unless_short(self) -> bool:
        """Take the lock of the log; False when its holder begins to wait, perhaps for what the
        caller brings.
        """
        if self.is_on:
            return False
        lock = self._state.lock
        try:
            async with asyncio.timeout(None) as waiting:
                self.impatient.add(waiting)
                try:
                    await lock.acquire()
                finally:
                    self.impatient.discard(waiting)
        except TimeoutError:
            return False
        return True

    def try_again(self) -> None:
        """What is short may be there now."""
        if self._pause is not None:
            _wake(self._pause)

    def hurry(self) -> None:
        """The log is being closed: try a few times more, then give up."""
        if self._tries_left is None:
            self._tries_left = STOP_TRIES
        if self._pause is not None and not self._pause.done():
            self._pause.set_result(None)

    def _may_wait(self) -> bool:
        if not self._state.is_working:
            return False
        if self._tries_left is not None:
            self._tries_left -= 1
            return self._tries_left >= 0
        return True

    def _begin(self, error: OSError) -> None:
        state = self._state
        now_ms = state.services.clock.now_ms()
        if now_ms - self._warned_ms >= WARN_INTERVAL_MS:
            self._warned_ms = now_ms
            log.warning(
                "Log is waiting for descriptors, memory or space partition=%s error=%s",
                state.topic_partition,
                error,
            )
        self.is_for_space = error.errno in NO_SPACE
        what = "space on the disk" if self.is_for_space else "file descriptors or memory"
        self._message = f"{state.topic_partition} waits: the node is short of {what}"
        self.is_on = True
        for each in self.impatient:
            if not each.expired():
                each.reschedule(state.services.loop.time())
        state.services.memory.unwritable.add(self)
        lacking = KafkaStorageError(self._message)
        state.hold(_HOLD, lacking)
        if self._tries_left is None:
            state.end_waiting(lacking)  # nobody knows when it passes

    def _end(self) -> None:
        if self.is_on:
            self._stop_waiting()
            log.info(
                "Log resumed after waiting for descriptors, memory or space partition=%s",
                self._state.topic_partition,
            )

    def _stop_waiting(self) -> None:
        """No step waits any more, ended well or not: nobody else would take appends again."""
        self.is_on = self.is_for_space = False
        self._state.services.memory.unwritable.discard(self)
        self._state.resume(_HOLD)

    async def _sleep(self) -> None:
        loop = self._state.services.loop
        pause = self._pause = loop.create_future()
        delay_s = RETRY_S if self._tries_left is None else STOP_RETRY_S
        timer = loop.call_later(delay_s, _wake, pause)
        try:
            await pause
        finally:
            timer.cancel()
            self._pause = None


_HOLD = "shortage"


def _wake(pause: "asyncio.Future[None]") -> None:
    if not pause.done():
        pause.set_result(None)
