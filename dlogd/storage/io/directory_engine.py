"""Engine of one data directory, which is given up when its disk hangs.

Reads and writes go straight to the engine below, without a step between. Owner: the event loop's
thread; made by `dlogd.storage.directory.log_directory`.
"""

import asyncio
import errno
from collections.abc import Callable
from typing import TypeVar

from dlogd.storage.io.io_engine import Engine
from dlogd.storage.io.thread_engine import prefix_of

T = TypeVar("T")

SLOW_S = 1.0


class DirectoryEngine:
    """Implements `dlogd.storage.io.io_engine.Engine` for the files below `path`."""

    def __init__(self, engine: Engine, path: str) -> None:
        self.write = engine.write
        self.read = engine.read
        self.defer = engine.defer
        self.give_way = engine.give_way
        self.for_directory = engine.for_directory
        self.close = engine.close
        self._engine = engine
        self._path = path
        self._waiting: dict[asyncio.Timeout, float] = {}  # since when, by the loop's time
        self._asking: dict[object, None] = {}
        self.given_up = False

    @property
    def name(self) -> str:
        """That of the engine below."""
        return self._engine.name

    @property
    def read_length_max(self) -> int:
        """The largest `length` of one read, bytes."""
        return self._engine.read_length_max

    @property
    def read_length_best(self) -> int:
        """What one of many reads should ask for now."""
        return self._engine.read_length_best

    @property
    def is_slow(self) -> bool:
        """Whether blocking work waits for this disk for longer than healthy ones need."""
        begun_s = next(iter(self._waiting.values()), None)
        return begun_s is not None and asyncio.get_running_loop().time() - begun_s > SLOW_S

    def in_flight(self) -> list[tuple[object, str]]:
        """Return what the disk has been given and has not answered, and of which file."""
        below = prefix_of(self._path)
        own = [each for each in self._engine.in_flight() if each[1].startswith(below)]
        return own + [(each, self._path) for each in list(self._asking)]

    async def ask(self, work: Callable[[], T]) -> T:
        """Do as `run`, with work so short that it counts as one I/O from when it begins."""
        token = object()

        def counted() -> T:
            self._asking[token] = None  # in a thread: one operation, as the removal is
            try:
                return work()
            finally:
                self._asking.pop(token, None)

        return await self.run(counted)

    async def run(self, work: Callable[[], T]) -> T:
        """Run blocking `work`; raise TimeoutError (ETIMEDOUT) when the disk has been given up."""
        if self.given_up:
            raise self._error()
        timeout = asyncio.timeout(None)
        self._waiting[timeout] = asyncio.get_running_loop().time()
        try:
            async with timeout:
                return await self._engine.run(work)
        except TimeoutError:
            if timeout.expired():
                raise self._error() from None
            raise
        finally:
            del self._waiting[timeout]

    def give_up(self) -> None:
        """Let nobody wait for blocking work any more; what hangs stays where it is."""
        self.given_up = True
        for timeout in list(self._waiting):
            timeout.reschedule(0)

    def _error(self) -> OSError:
        return OSError(errno.ETIMEDOUT, "The disk hangs", self._path)
