"""Manager of all logs of a node, over its data directories: open, create, delete, close.

    manager = LogManager(roots, services=..., entropy=..., settings=...)
    cluster_id = await manager.claim(node_id, known_cluster_id)        # locks, identity
    await manager.open({(topic_partition, topic_id): config, ...})     # recovery
    await manager.close()                                              # clean-shutdown marker last

A directory whose disk fails goes out of service alone. Owner: the event loop's thread.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from dlog.errors import ConfigError, KafkaStorageError, WireError
from dlog.types import LeaderEpoch, NodeId, Offset, TopicId, TopicPartition
from dlogd.runtime.randomness import Entropy
from dlogd.runtime.tasks import Tasks
from dlogd.storage.background_tasks import BackgroundTasks
from dlogd.storage.directory.data_directory import note_weak
from dlogd.storage.directory.directory_lock import DirectoryLock
from dlogd.storage.directory.failed_directories import FailedDirectories
from dlogd.storage.directory.log_directory import (
    LogDirectory,
    StorageSettings,
    make_homes,
    roomiest,
)
from dlogd.storage.directory.log_names import LogKey, log_name
from dlogd.storage.directory.missing_logs import MissingLogs
from dlogd.storage.directory.node_epoch_file import NodeEpochFile
from dlogd.storage.io.files import Directory
from dlogd.storage.log.log_config import LogConfig
from dlogd.storage.log.log_state import LogServices
from dlogd.storage.log.partition_log import PartitionLog
from dlogd.storage.log_shutdown import LogShutdown
from dlogd.storage.log_startup import LogStartup, OpenProgress
from dlogd.storage.segment.leader_epochs import newer_epoch

log = logging.getLogger(__name__)

Wanted = Mapping[tuple[TopicPartition, TopicId], LogConfig]


class LogManager:
    """The logs of a node. Life: claim, open, begin, (create, delete), close.

    Invariant: a log in `logs` is in exactly one home.
    """

    def __init__(
        self,
        roots: Sequence[Directory],
        *,
        services: LogServices,
        entropy: Entropy,
        settings: StorageSettings,
    ) -> None:
        self.logs: dict[LogKey, PartitionLog] = {}
        self.failures: dict[LogKey, WireError] = {}  # why logs could not be opened at the start
        self.cluster_id = ""
        self.progress = OpenProgress()
        self.on_directory_failed: Callable[[LogDirectory, OSError], None] = _ignore
        self.high_watermark_of: Callable[[PartitionLog], Offset] = lambda one: one.promised_offset
        self._services = services
        self._settings = settings
        self._tasks = Tasks()
        self._homes = make_homes(roots, settings, services, self._tasks)
        self._failed = FailedDirectories(lambda *failed: self.on_directory_failed(*failed))
        self.lives = NodeEpochFile(self._homes, services.engine, self.on_home_error)
        self._upkeep = BackgroundTasks(self, services, self._tasks)
        self._claiming = DirectoryLock(
            self._homes,
            services.engine,
            entropy,
            direct_required=settings.direct_required,
            on_error=self._failed.fail,
        )
        self._creating: dict[LogKey, asyncio.Event] = {}
        self._absent = MissingLogs(self._homes)
        self._is_open = False
        self._closing = False

    # -- views

    @property
    def homes(self) -> Sequence[LogDirectory]:
        """All data directories, in the order of the configuration."""
        return self._homes

    @property
    def settings(self) -> StorageSettings:
        """The present settings."""
        return self._settings

    @property
    def directory_ids(self) -> tuple[UUID, ...]:
        """Identities of the directories that are in service."""
        return tuple(home.directory_id for home in self._homes if home.failure is None)

    @property
    def failed_directory_ids(self) -> tuple[UUID, ...]:
        """Identities of directories that have failed; the same object until that changes."""
        return self._failed.ids

    def stored_high_watermark(self, opened: PartitionLog) -> Offset:
        """Return the high watermark that was saved last, within what the log holds."""
        home = self._home_of(opened.key)
        stored = home.high_watermarks.get(home.names[opened.key], 0) if home else 0
        return Offset(min(max(stored, opened.log_start_offset), opened.log_end_offset))

    def reconfigure(self, settings: StorageSettings) -> None:
        """Take over reloaded settings."""
        self._settings = settings
        for home in self._homes:
            home.reconfigure(settings)

    # -- start

    async def claim(
        self, node_id: NodeId, cluster_id: str | None, *, has_metadata: bool = True
    ) -> str:
        """Lock all directories and make them this node's; return the cluster's id.

        Without metadata they may not hold logs: all of them would be set aside as strays.
        Raises ConfigError with every reason why this daemon must not run on them. A directory that
        does not work is left out, unless none works. Without any identity and `cluster_id` a new
        cluster begins.
        """
        try:
            await self._claiming.lock()
            self.cluster_id = await self._claiming.adopt(
                node_id, cluster_id, has_metadata=has_metadata
            )
        except ConfigError:
            await self._claiming.release()
            raise
        return self.cluster_id

    async def open(self, wanted: Wanted, known_directories: Sequence[UUID] = ()) -> None:
        """Find and recover the logs of `wanted`, set all others aside.

        `known_directories` are those of this node at its last start: logs that are not found may
        be on one that is gone now, and are not made anew. Raises ConfigError when a log is found
        twice. A log that cannot be opened is in `failures`.

        What was found to be missing is found again by every further start until `begin`.
        """
        self._absent.note_directories(known_directories)
        by_key = {
            (topic_id, topic_partition.partition): (topic_partition, config)
            for (topic_partition, topic_id), config in wanted.items()
        }
        await LogStartup(self, self._services, by_key, self._settings.recovery_parallelism).run()
        self._absent.note_logs(key for key in by_key if self._home_of(key) is None)
        self._is_open = True

    async def begin(self, node_epoch: int | None = None) -> None:
        """Use the directories from now on, as the life `node_epoch` of the node, and keep them up.

        Whoever must know what `open` has found knows it: it may be forgotten.
        """
        await self.lives.begin(node_epoch)
        await self._upkeep.start()

    async def open_log(
        self,
        home: LogDirectory,
        key: LogKey,
        topic_partition: TopicPartition,
        config: LogConfig,
        *,
        clean: bool,
        on_progress: Callable[[int], None] = lambda _: None,
    ) -> PartitionLog:
        """Open the log that is or belongs in `home`; raise WireError or OSError."""
        name = home.names[key]
        directory, was_weak = await home.disk.run(
            partial(home.directory.open_log, name, durable=config.durable)
        )
        if was_weak:
            home.weak[key] = None
        # What is promised under `always` is on stable storage; of the others nobody knows.
        is_proof = config.durable and not was_weak
        stored_end = home.promised_offsets.get(name, 0) if is_proof else 0
        opened = await PartitionLog.open(
            topic_partition,
            key[0],
            directory,
            config,
            home.services,
            clean=clean,
            stored_end=home.clean_ends.get(name, 0) if clean else stored_end,
            on_progress=on_progress,
        )
        if home.failure is not None:
            opened.fail(home.failure)
        opened.on_failure = partial(self._failed.on_log_failure, home)
        opened.on_cut = partial(self._upkeep.marks.save_cut, home)
        home.add(key, opened)
        self.logs[key] = opened
        self.failures.pop(key, None)
        return opened

    async def note_weak(self, opened: PartitionLog) -> None:
        """Note on disk that a log promises before all is on stable storage, from now on."""
        home = self._home_of(opened.key)
        if home is None or home.failure is not None:
            return
        try:
            await home.disk.run(partial(note_weak, opened.directory))
            home.weak[opened.key] = None
        except OSError as error:
            opened.fail(error)
            self.on_home_error(home, error)

    async def close_log(self, home: LogDirectory, key: LogKey) -> None:
        """Close a log that is opened again at once."""
        home.logs.pop(key, None)
        await self.logs.pop(key).close(clean=False)

    async def check_epoch(self, opened: PartitionLog, known: LeaderEpoch) -> None:
        """Close a log with a newer leader epoch than its partition ever had; KafkaStorageError."""
        if opened.last_epoch > known:
            error = newer_epoch(opened.directory.path, opened.last_epoch, known)
            self.failures[opened.key] = error
            await self.close_log(next(h for h in self._homes if opened.key in h.logs), opened.key)
            raise error

    # -- create and delete

    async def create(
        self,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        config: LogConfig,
        *,
        anew: bool = False,
    ) -> PartitionLog:
        """Return the open log, made on the directory with the most free space when there is none.

        Raises WireError when it cannot be opened, or may be on a directory out of service, unless
        it may begin `anew`, as others have its records: what is damaged is set aside then.
        """
        key = (topic_id, topic_partition.partition)
        while key in self._creating:
            await self._creating[key].wait()
        found = self.logs.get(key)
        if found is not None:
            return found
        if key in self.failures and not anew:
            raise self.failures[key]
        if self._closing:
            raise KafkaStorageError("The node is stopping")
        done = self._creating[key] = asyncio.Event()
        try:
            return await self._create(key, topic_partition, config, anew)
        finally:
            del self._creating[key]
            done.set()

    async def _create(
        self, key: LogKey, topic_partition: TopicPartition, config: LogConfig, anew: bool
    ) -> PartitionLog:
        home = self._home_of(key)
        if home is not None and key in self.failures:
            await home.set_aside(key)
            home = None
        is_new = home is None
        if home is None:
            if not anew:
                self._absent.check(key)
            home = roomiest(self._homes, self._services.clock.now_ms())
            home.expect(key, log_name(topic_partition, key[0]))
        elif home.failure is not None:
            raise KafkaStorageError(
                f"{home.path} is out of service: {home.failure}. Check it, then restart the node"
            )
        try:
            if is_new:
                await self._upkeep.marks.forget(home, home.names[key])
                await home.make_log(key, self._homes)
            else:  # left by a deletion that failed, of which stable storage may have a part
                await home.creations.do(home.names[key])
            opened = await self.open_log(home, key, topic_partition, config, clean=False)
        except OSError as error:
            if is_new:
                home.names.pop(key, None)
            self.on_home_error(home, error)
            raise KafkaStorageError(f"{topic_partition} cannot be opened: {error}") from error
        self._absent.forget(key)
        return opened

    def _home_of(self, key: LogKey) -> LogDirectory | None:
        return next((home for home in self._homes if key in home.names), None)

    async def delete(self, topic_partition: TopicPartition, topic_id: TopicId) -> None:
        """Remove a log for good; readers that hold it may finish. Nothing when there is none.

        On return no start will open it again. Raises OSError: to be tried again.
        """
        key = (topic_id, topic_partition.partition)
        while key in self._creating:
            await self._creating[key].wait()
        self.failures.pop(key, None)
        self._absent.forget(key)
        opened = self.logs.pop(key, None)
        home = self._home_of(key)
        if home is None:
            return
        name = home.names[key]
        try:
            if opened is not None:
                await opened.delete()  # until the disk hangs, and is given up with `home.logs`
        finally:
            home.logs.pop(key, None)
        if home.failure is not None:
            home.names.pop(key, None)
            return  # the topic is gone from the image, so the next start sets the log aside
        try:
            await home.deletions.do(name)
        except OSError as error:
            self.on_home_error(home, error)
            raise
        home.names.pop(key, None)
        self.remove_soon(home, [home.directory.deleted_name(name)])

    def remove_soon(self, home: LogDirectory, names: Sequence[str]) -> None:
        """Remove what is marked as deleted, in the background."""
        if names and not self._closing:
            self._tasks.spawn(f"remove logs {home.path}", self._remove(home, list(names)))

    async def _remove(self, home: LogDirectory, names: list[str]) -> None:
        for name in names:
            if home.failure is not None:
                return
            try:
                await home.disk.run(partial(home.directory.remove_deleted, name))
            except OSError as error:
                # What is left is tried again at the next start.
                log.warning("Could not remove a deleted log name=%s error=%s", name, error)
                self.on_home_error(home, error)

    # -- failures

    def on_home_error(self, home: LogDirectory, error: OSError) -> None:
        """An operation in a directory has failed: perhaps the directory has."""
        self._failed.on_error(home, error)

    @property
    def log_failures_total(self) -> int:
        """How many logs have failed that were in service."""
        return self._failed.log_failures_total

    # -- stop

    async def close(self, *, clean: bool = True, timeout_s: float | None = None) -> list[str]:
        """Close all logs; with `clean` flush them first and leave the marker, last of all.

        Return what hangs: what had not ended when the time was over. Before `open` has ended
        nothing is written: the directories may be somebody else's.
        """
        self._closing = True
        closing = LogShutdown(self._homes, self._services, self._upkeep, self._tasks)
        return await closing.run(clean=clean and self._is_open, timeout_s=timeout_s)

    # -- reports

    def status(self) -> dict[str, Any]:
        """Return what `/status` shows of storage."""
        return {
            "directories": [home.status() for home in self._homes],
            "logs": len(self.logs),
            "logs_failed": len(self.failures)
            + sum(opened.failed is not None for opened in self.logs.values()),
            "opening": self.progress.status(),
        }


def _ignore(_: LogDirectory, __: OSError) -> None:
    """Nobody asked to be told."""
