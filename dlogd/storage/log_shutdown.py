"""Shutdown of all logs: checkpoints, logs, clean-shutdown markers, locks.

Each data directory ends by itself, so that one that hangs does not keep the others from their
markers. Owner: the event loop's thread; made by `dlogd.storage.log_manager`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from functools import partial

from dlog.errors import WireError
from dlog.types import Offset
from dlogd.runtime.tasks import Tasks
from dlogd.storage.background_tasks import BackgroundTasks
from dlogd.storage.directory.log_directory import LogDirectory
from dlogd.storage.directory.log_names import LogKey
from dlogd.storage.log.log_state import LogServices
from dlogd.storage.log.partition_log import PartitionLog

log = logging.getLogger(__name__)

CLOSING_COUNT_MAX = 32
SAVE_SHARE = 0.25
"""Part of the time in which nothing but the offsets of logs is saved; then logs are closed."""


class LogShutdown:
    """What the stop of a node's storage does. Life: `run` once.

    `awaited` names what was begun and has not ended.
    """

    def __init__(
        self,
        homes: Sequence[LogDirectory],
        services: LogServices,
        upkeep: BackgroundTasks,
        tasks: Tasks,
    ) -> None:
        self.awaited: dict[str, None] = {}
        self._homes = homes
        self._services = services
        self._upkeep = upkeep
        self._tasks = tasks

    async def run(self, *, clean: bool, timeout_s: float | None) -> list[str]:
        """End everything, for at most `timeout_s`; return what hangs."""
        begin = self._services.loop.time()

        def left_s(share: float) -> float | None:
            if timeout_s is None:
                return None
            return max(0.0, begin + timeout_s * share - self._services.loop.time())

        saving = asyncio.gather(*map(self._save, self._homes if clean else ()))
        ending = [saving]
        try:
            await self._wait(ending, left_s(SAVE_SHARE))
            await self._tasks.close()
            ending.append(asyncio.gather(*(self._close(home, clean=clean) for home in self._homes)))
            # What was slow to be saved has as much time as the rest.
            await self._wait(ending, left_s(1.0))
            # What was given up is waited for by nobody here, but threads are still at it.
            lost = [f"disk of {home.path}" for home in self._homes if home.disk.given_up]
            return [*self.awaited, *lost]
        finally:
            for each in ending:
                each.cancel()
            await asyncio.gather(*ending, return_exceptions=True)

    async def _wait(
        self, ending: Sequence[asyncio.Future[list[None]]], timeout_s: float | None
    ) -> None:
        """Wait for ends, which go on when that takes longer; raise what they raise."""
        _, late = await asyncio.wait(ending, timeout=timeout_s)
        for each in ending:
            if each.done():
                each.result()
        if late:
            log.warning("Storage did not stop in time awaited=%s", ", ".join(self.awaited))

    async def _await(self, name: str, work: Awaitable[None]) -> None:
        """Do `work`; while it has not ended, and for ever if it is cut off, it is awaited."""
        self.awaited[name] = None
        await work
        del self.awaited[name]

    async def _save(self, home: LogDirectory) -> None:
        if home.failure is None and home.confirmed:
            await self._await(f"offsets of logs in {home.path}", self._upkeep.marks.save(home))

    async def _close(self, home: LogDirectory, *, clean: bool) -> None:
        ends: dict[str, Offset] = {}
        # The last ones first: those that cannot be written now may take a while to give up.
        waiting = sorted(home.logs.items(), key=lambda entry: entry[1].blocked is None)

        async def close_some() -> None:
            while waiting:
                key, opened = waiting.pop()
                await self._await(
                    str(opened.topic_partition), self._close_log(home, key, opened, ends, clean)
                )

        await asyncio.gather(*(close_some() for _ in range(CLOSING_COUNT_MAX)))
        # An unclean start that ends before the cluster has heard of it is no orderly life.
        if clean and home.failure is None and (home.confirmed or home.was_clean):
            await self._await(f"clean-shutdown marker of {home.path}", self._mark(home, ends))
        if home.disk.given_up:
            return  # what is in flight may yet be written: nobody else's until this process ends
        release = self._services.engine.run(home.directory.release)
        await self._await(f"lock of {home.path}", release)

    async def _close_log(
        self,
        home: LogDirectory,
        key: LogKey,
        opened: PartitionLog,
        ends: dict[str, Offset],
        clean: bool,
    ) -> None:
        try:
            await opened.close(clean and opened.failed is None)
        except (OSError, WireError) as error:
            log.warning("Log did not close cleanly log=%s error=%s", opened, error)
            return
        # What a start has found and nobody was told of must be found again.
        if opened.failed is None and (home.confirmed or key not in home.doubtful):
            ends[home.names[key]] = opened.log_end_offset

    async def _mark(self, home: LogDirectory, ends: dict[str, Offset]) -> None:
        try:
            await self._services.engine.run(partial(home.directory.save_clean_shutdown, ends))
        except OSError as error:
            log.warning(
                "Could not write the clean-shutdown marker path=%s error=%s", home.path, error
            )
