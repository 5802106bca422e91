"""Background tasks of storage: free space, retention, scrub, checkpoints.

Owner: the event loop's thread; started by `dlogd.storage.log_manager`. The plans are pure
(`dlogd.storage.log.retention`, `dlogd.storage.io.disk_reserve`).
"""

import asyncio
import errno
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from dlog.errors import WireError
from dlog.types import Offset
from dlogd.runtime.tasks import Tasks
from dlogd.storage.directory.log_directory import LogDirectory, StorageSettings
from dlogd.storage.directory.offset_checkpoints import OffsetCheckpoints
from dlogd.storage.io.hung_disk import LOOKS, HangDetector
from dlogd.storage.log.log_state import LogServices
from dlogd.storage.log.partition_log import PartitionLog
from dlogd.storage.log.retention import NO_LIMIT, plan_retention
from dlogd.storage.log.retention_check import learn_due
from dlogd.storage.repair.scrubber import Scrubber

log = logging.getLogger(__name__)

# The nearer to the reserve, the sooner the next look: no disk fills faster than this.
FILL_BYTES_PER_S = 4_000_000_000
MEASURE_INTERVAL_S_MIN = 0.05
MEASURE_INTERVAL_S_MAX = 5.0
MEASURE_INTERVAL_S_LOW = 1.0


class TendedLogs(Protocol):
    """Whose logs are kept up: `dlogd.storage.log_manager.LogManager`."""

    high_watermark_of: Callable[[PartitionLog], Offset]

    @property
    def homes(self) -> Sequence[LogDirectory]:
        """All data directories."""

    @property
    def settings(self) -> StorageSettings:
        """The present settings."""

    def on_home_error(self, home: LogDirectory, error: OSError) -> None:
        """A directory may have failed."""


class BackgroundTasks:
    """The timers of one node's storage. Life: `start`; they end with their tasks."""

    def __init__(self, owner: TendedLogs, services: LogServices, tasks: Tasks) -> None:
        self._owner = owner
        self._services = services
        self._tasks = tasks
        self.marks = OffsetCheckpoints(
            services, lambda opened: owner.high_watermark_of(opened), owner.on_home_error
        )

    async def start(self) -> None:
        """Measure all directories, then go on by timers."""
        self._tasks.spawn("watch disks", self._watch_often())
        await asyncio.gather(*(self._measure(home) for home in self._working()))
        # A log that is gone must not be missed again when it has begun anew.
        await self._save_all()
        for home in self._working():
            on_error = partial(self._owner.on_home_error, home)
            scrub = Scrubber(home, home.services, lambda: self._owner.settings, on_error)
            home.scrub_status, home.scrub_begun = scrub.status, scrub.begun
            self._tasks.spawn(f"measure {home.path}", self._measure_often(home))
            self._tasks.spawn(f"scrub {home.path}", scrub.run())
            # One for each: a disk that hangs must not hold up the others.
            self._tasks.spawn(f"retention {home.path}", self._retain_often(home))
            self._tasks.spawn(f"save offsets {home.path}", self._save_often(home))

    def _working(self) -> list[LogDirectory]:
        return [home for home in self._owner.homes if home.failure is None]

    # -- disks that hang

    async def _watch_often(self) -> None:
        # One that has failed may hang as well, and is waited for by those who end its logs.
        homes = [(home, HangDetector()) for home in self._owner.homes]
        while True:
            await asyncio.sleep(self._owner.settings.disk_timeout_ms / 1000 / LOOKS)
            for home, patience in homes:
                if not home.disk.given_up and patience.look(home.disk.in_flight()):
                    timeout_ms = self._owner.settings.disk_timeout_ms
                    text = f"No answer for disk.timeout={timeout_ms}ms"
                    self._owner.on_home_error(home, OSError(errno.ETIMEDOUT, text, home.path))
                    home.give_up()

    # -- space

    async def _measure_often(self, home: LogDirectory) -> None:
        while home.failure is None:
            await asyncio.sleep(_seconds_to_next_measurement(home))
            await self._measure(home)

    async def _measure(self, home: LogDirectory) -> None:
        try:
            usage = await home.disk.ask(home.directory.measure)
        except OSError as error:
            self._owner.on_home_error(home, error)
            return
        memory = self._services.memory.pool.usage()
        self._services.metrics.append_memory_bytes = memory.taken_bytes + memory.cached_bytes
        if home.measure(usage):
            log.warning(
                "%s path=%s free_bytes=%d reserve_bytes=%d",
                "Refusing appends: disk nearly full" if home.space.is_low else "Taking appends",
                home.path,
                home.space.free_bytes,
                home.space.reserve_bytes,
            )

    # -- retention

    async def _retain_often(self, home: LogDirectory) -> None:
        while True:
            await asyncio.sleep(self._owner.settings.retention_check_interval_ms / 1000)
            if home.failure is not None:
                return
            await self._retain_home(home)

    async def _retain_home(self, home: LogDirectory) -> None:
        """Drop what is due, in one log after the other."""
        try:
            await home.disk.run(home.directory.spare.keep)
        except OSError as error:
            self._owner.on_home_error(home, error)
        for opened in list(home.logs.values()):
            if opened.failed is None and not opened.closed:
                try:
                    await self._retain_log(opened)
                except (OSError, WireError) as error:
                    log.warning(
                        "Retention failed partition=%s error=%s", opened.topic_partition, error
                    )
            # Planning is quick, but there may be thousands of logs.
            await asyncio.sleep(0)

    async def _retain_log(self, opened: PartitionLog) -> None:
        config = opened.config
        timestamp_ms = self._services.clock.timestamp_ms()
        opened.maybe_roll(timestamp_ms)
        if config.retention_ms != NO_LIMIT:
            oldest_kept_ms, learner = timestamp_ms - config.retention_ms, opened.timestamps.learner
            while await learn_due(opened, learner, oldest_kept_ms):
                await self._drop_due(opened, timestamp_ms)
        await self._drop_due(opened, timestamp_ms)

    async def _drop_due(self, opened: PartitionLog, timestamp_ms: int) -> None:
        config = opened.config
        plan = plan_retention(
            opened.segment_infos(),
            retention_ms=config.retention_ms,
            retention_bytes=config.retention_bytes,
            end_limit=self.marks.high_watermark(opened),
            timestamp_ms=timestamp_ms,
        )
        if plan is None:
            return
        if plan.roll:
            opened.roll()
        await opened.trim_to(plan.trim_to)
        opened.on_promised(opened)  # a follower tells its leader where it begins now
        log.info(
            "Deleted old segments partition=%s reason=%s segments=%d bytes=%d log_start_offset=%d",
            opened.topic_partition,
            plan.reason,
            plan.segment_count,
            plan.size_bytes,
            plan.trim_to,
        )

    # -- marks

    async def _save_often(self, home: LogDirectory) -> None:
        while True:
            await asyncio.sleep(self._owner.settings.high_watermark_interval_ms / 1000)
            if home.failure is not None:
                return
            await self.marks.save(home)

    async def _save_all(self) -> None:
        await asyncio.gather(*(self.marks.save(home) for home in self._working()))


def _seconds_to_next_measurement(home: LogDirectory) -> float:
    space = home.space
    if space.is_low:
        return MEASURE_INTERVAL_S_LOW
    seconds = (space.free_bytes - space.reserve_bytes) / FILL_BYTES_PER_S
    return min(max(seconds, MEASURE_INTERVAL_S_MIN), MEASURE_INTERVAL_S_MAX)
