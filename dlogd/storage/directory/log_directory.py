"""Log directory: a data directory as the event loop sees it: logs, space, service state.

The blocking half is `dlogd.storage.directory.data_directory`; what happens to homes is decided by
`dlogd.storage.log_manager`.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from uuid import UUID

from dlog.errors import KafkaStorageError, WireError
from dlog.types import Offset
from dlogd.config.units import DiskReserve
from dlogd.runtime.fair_lock import FairLock
from dlogd.runtime.tasks import Tasks
from dlogd.storage.directory import replaced_marker
from dlogd.storage.directory.data_directory import DataDirectory
from dlogd.storage.directory.log_names import LogKey
from dlogd.storage.io.checkpoint_files import Incarnation
from dlogd.storage.io.directory_engine import DirectoryEngine
from dlogd.storage.io.disk_reserve import DiskSpace
from dlogd.storage.io.files import Directory, DiskUsage
from dlogd.storage.io.group_sync import GroupSync
from dlogd.storage.log.log_state import LogServices
from dlogd.storage.log.partition_log import PartitionLog

log = logging.getLogger(__name__)

GROWTH_BYTES = 64 << 20
"""What a log is expected to take at least: keeps many new, empty logs from going to one disk."""
_GROWTH_AGE_MS = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    """The node-wide settings of storage; replaceable live."""

    reserve: DiskReserve = field(default_factory=DiskReserve)
    recovery_parallelism: int = 4  # logs of one directory
    retention_check_interval_ms: int = 30_000
    high_watermark_interval_ms: int = 5_000
    direct_required: bool = False
    scrub_interval_ms: int = 7 * 86_400_000  # -1: never
    scrub_rate: int = 10 << 20  # bytes per second of each directory
    disk_timeout_ms: int = 30_000


def make_homes(
    roots: Sequence[Directory], settings: StorageSettings, services: LogServices, tasks: Tasks
) -> "list[LogDirectory]":
    """Return the data directories, each with threads and a share of the memory of its own.

    So a disk that hangs takes nothing from the others.
    """
    engine = services.engine
    return [
        LogDirectory(
            DataDirectory(root),
            settings,
            replace(
                services,
                memory=memory,
                engine=engine if len(roots) == 1 else engine.for_directory(root.path),
            ),
            tasks,
        )
        for root, memory in zip(roots, services.memory.shares(len(roots)), strict=True)
    ]


class LogDirectory:
    """One data directory with its open logs.

    Invariant: every log in `logs` has its directory name in `names`.
    """

    def __init__(
        self,
        directory: DataDirectory,
        settings: StorageSettings,
        services: LogServices,
        tasks: Tasks,
    ) -> None:
        self.directory = directory
        self.path = directory.path
        self.directory_id = UUID(int=0)
        self.failure: OSError | None = None  # set once, until the next start
        self.names: dict[LogKey, str] = {}
        self.logs: dict[LogKey, PartitionLog] = {}
        # From the last run of the daemon, by names of log directories.
        self.clean_ends: dict[str, Offset] = {}
        self.high_watermarks: dict[str, Offset] = {}
        self.promised_offsets: dict[str, Offset] = {}
        self.life = Incarnation()  # which life of the node used it last
        self.has_checkpoint = False  # what it had on stable storage is known
        self.was_clean = False  # that life ended in order
        # What the last run may have promised and is not there, as far as this start found.
        self.doubtful: dict[LogKey, None] = {}  # logs that ended elsewhere than they were left
        self.weak: dict[LogKey, None] = {}  # logs that promised before all was on stable storage
        self.gone: dict[LogKey, None] = {}  # logs that had records and are not there
        self.confirmed = False
        """Whether what this start found may be forgotten: the cluster knows it, or need not."""
        self.scrub_status: Callable[[], dict[str, Any]] | None = None
        self.scrub_begun: Callable[[], tuple[int, int]] = lambda: (0, 0)
        """When the scrub's round began, ms since 1970, and what it has read."""
        self.space = DiskSpace(settings.reserve)
        self.disk = DirectoryEngine(services.engine, self.path)
        # Locks of its own: a disk that hangs must not hold up searches on others.
        self.services = replace(
            services,
            spare=directory.spare,
            engine=self.disk,
            unpacking=FairLock(),
            remembering=asyncio.Lock(),
        )
        self.creations = GroupSync(
            f"create logs {self.path}", tasks, self.disk.ask, directory.make_log_directories
        )
        self.deletions = GroupSync(
            f"delete logs {self.path}", tasks, self.disk.ask, directory.mark_deleted
        )
        self._refusal: WireError | None = None
        self._growth_bytes = 0
        self._growth_at_ms: int | None = None

    def __repr__(self) -> str:
        return f"<Home {self.path}>"

    # -- logs

    def add(self, key: LogKey, opened: PartitionLog) -> None:
        """Count an open log as one of this directory."""
        self.logs[key] = opened
        if self._refusal is not None:
            opened.refusal = self._refusal

    def expect(self, key: LogKey, name: str) -> None:
        """A log of this name is about to be made here."""
        self.names[key] = name
        self.forget_marks(name)

    async def make_log(self, key: LogKey, homes: Sequence["LogDirectory"]) -> None:
        """Make the directory of a new log, of which one of the `homes` may have an older copy."""
        await self.creations.do(self.names[key])
        failed = [each.directory_id for each in homes if each.failure is not None]
        if failed:
            made = self.directory.topics.directory(self.names[key])
            work = partial(replaced_marker.note, made, self.life.node_epoch, failed)
            await self.disk.run(work)

    async def set_aside(self, key: LogKey) -> None:
        """Move a log that cannot be opened to `stray/`; raise OSError."""
        name = self.names[key]
        await self.disk.run(partial(self.directory.set_aside, [name]))
        del self.names[key]
        self.forget_marks(name)
        log.warning("Set a damaged log aside path=%s name=%s", self.path, name)

    def forget_marks(self, name: str) -> None:
        """What an earlier log of this name had says nothing about the one that begins."""
        self.high_watermarks.pop(name, None)
        self.promised_offsets.pop(name, None)

    def give_up(self) -> None:
        """Let nobody wait any more for a disk that hangs; the directory has failed."""
        for opened in self.logs.values():
            opened.give_up()
        self.disk.give_up()
        self.services.memory.give_up()

    # -- space

    def measure(self, usage: DiskUsage) -> bool:
        """Take over a measurement of the file system; return whether appends are refused now, or
        are not any more.
        """
        changed = self.space.measure(usage)
        if changed:
            self._apply_reserve()
        return changed

    def reconfigure(self, settings: StorageSettings) -> None:
        """Use another reserve."""
        self.space.reconfigure(settings.reserve)
        self._apply_reserve()

    def _apply_reserve(self) -> None:
        """Refuse appends while the space is low; what a log refuses by itself stays."""
        before = self._refusal
        self._refusal = None
        if self.space.is_low:
            self._refusal = KafkaStorageError(
                f"{self.path} has {self.space.free_bytes} bytes free, less than its reserve of "
                f"{self.space.reserve_bytes}: delete data or add space"
            )
        for opened in self.logs.values():
            if opened.refusal is before:
                opened.refusal = self._refusal

    def room_bytes(self, now_ms: int) -> int:
        """Return the free space, less what the logs here are expected to take yet."""
        if self._growth_at_ms is None or now_ms - self._growth_at_ms >= _GROWTH_AGE_MS:
            self._growth_at_ms = now_ms
            self._growth_bytes = sum(
                max(0, GROWTH_BYTES - opened.size_bytes) for opened in self.logs.values()
            )
        return self.space.free_bytes - self._growth_bytes

    def expect_growth(self) -> None:
        """Count a log that is about to be made here."""
        self._growth_bytes += GROWTH_BYTES

    # -- reports

    def status(self) -> dict[str, Any]:
        """Return what `/status` shows of this directory."""
        return {
            "path": self.path,
            "id": str(self.directory_id),
            "online": self.failure is None,
            "error": None if self.failure is None else str(self.failure),
            "logs": len(self.logs),
            "total_bytes": self.space.total_bytes,
            "free_bytes": self.space.free_bytes,
            "reserve_bytes": self.space.reserve_bytes,
            "appends_refused": self.space.is_low,
            "scrub": None if self.scrub_status is None else self.scrub_status(),
        }


def roomiest(homes: Sequence[LogDirectory], now_ms: int) -> LogDirectory:
    """Return the directory with the most free space, expected growth of its logs deducted.

    One whose disk is slow now, and perhaps hangs, is the last choice. A new log is about to begin
    there. Raises KafkaStorageError when none is in service.
    """
    working = [home for home in homes if home.failure is None]
    if not working:
        raise KafkaStorageError("No data directory is in service")
    quick = [home for home in working if not home.disk.is_slow]
    best = max(quick or working, key=lambda home: home.room_bytes(now_ms))
    best.expect_growth()
    return best
