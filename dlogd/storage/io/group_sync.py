"""Group sync: blocking work on many names, with one flush for all of them.

Creating or deleting a thousand logs at once so costs a few flushes of their parent directory
instead of a thousand. Owner: the event loop's thread; used by `dlogd.storage.log_manager`.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from dlogd.runtime.tasks import Tasks

Run = Callable[[Callable[[], None]], Awaitable[None]]

GROUP_MAX = 256
"""Names of one run, so that a run stays short."""


class GroupSync:
    """Runs blocking `work` by `run`, one group at a time. Bounded by its callers, who wait."""

    def __init__(
        self, name: str, tasks: Tasks, run: Run, work: Callable[[list[str]], None]
    ) -> None:
        """`run` is that of an engine."""
        self._name = name
        self._tasks = tasks
        self._blocking = run
        self._work = work
        self._waiting: deque[tuple[str, asyncio.Future[None]]] = deque()
        self._running = False

    async def do(self, item: str) -> None:
        """Return when `work` has been done on `item`; raise the OSError of its group."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if not self._running:
            self._running = True
            self._tasks.spawn(self._name, self._run())
        await future

    async def _run(self) -> None:
        try:
            while self._waiting:
                count = min(len(self._waiting), GROUP_MAX)
                await self._run_group([self._waiting.popleft() for _ in range(count)])
        finally:
            self._running = False
            while self._waiting:
                self._waiting.popleft()[1].cancel()

    async def _run_group(self, group: list[tuple[str, asyncio.Future[None]]]) -> None:
        items = [item for item, _ in group]
        failure: OSError | None = None
        try:
            await self._blocking(lambda: self._work(items))
        except OSError as error:
            failure = error
        except asyncio.CancelledError:
            for _, future in group:
                future.cancel()
            raise
        for _, future in group:
            if future.done():
                continue
            if failure is None:
                future.set_result(None)
            else:
                future.set_exception(OSError(failure.errno, failure.strerror, failure.filename))
