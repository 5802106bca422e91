"""Startup of all logs: find them in all directories, recover them in parallel.

Called by `dlogd.storage.log_manager` once; everything that blocks goes through the engine, so
status can be asked for meanwhile.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from dlog.errors import ConfigError, WireError
from dlog.types import TopicPartition
from dlogd.storage.directory import replaced_marker
from dlogd.storage.directory.data_directory import Survey
from dlogd.storage.directory.log_directory import LogDirectory
from dlogd.storage.directory.log_names import LogKey, log_name
from dlogd.storage.directory.replaced_marker import ReplacedMarker
from dlogd.storage.log.log_config import LogConfig
from dlogd.storage.log.log_state import LogServices
from dlogd.storage.log.partition_log import PartitionLog

log = logging.getLogger(__name__)

T = TypeVar("T")

REPORT_INTERVAL_S = 5.0


@dataclass(slots=True)
class _Scanned:
    """Bytes that one log's recovery has read; written by one thread, read by the loop's."""

    size_bytes: int = 0

    def add(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes


@dataclass(slots=True)
class DirectoryProgress:
    """How far the logs of one directory are."""

    path: str
    logs_total: int
    logs_done: int = 0
    logs_failed: int = 0
    scanned: list[_Scanned] = field(default_factory=list)

    @property
    def scanned_bytes(self) -> int:
        """Bytes read by recovery so far."""
        return sum(item.size_bytes for item in self.scanned)

    def status(self) -> dict[str, Any]:
        """Return what `/status` shows."""
        return {
            "path": self.path,
            "logs_total": self.logs_total,
            "logs_done": self.logs_done,
            "logs_failed": self.logs_failed,
            "scanned_bytes": self.scanned_bytes,
        }


@dataclass(slots=True)
class OpenProgress:
    """How far the start is."""

    finished: bool = False
    homes: list[DirectoryProgress] = field(default_factory=list)

    def status(self) -> dict[str, Any]:
        """Return what `/status` shows."""
        return {"finished": self.finished, "directories": [home.status() for home in self.homes]}


class LogOpener(Protocol):
    """What opens single logs and keeps them: `dlogd.storage.log_manager.LogManager`."""

    progress: OpenProgress
    failures: dict[LogKey, WireError]

    @property
    def homes(self) -> Sequence[LogDirectory]:
        """All data directories."""

    def open_log(
        self,
        home: LogDirectory,
        key: LogKey,
        topic_partition: TopicPartition,
        config: LogConfig,
        *,
        clean: bool,
        on_progress: Callable[[int], None],
    ) -> Awaitable[PartitionLog]:
        """Open one log; raise WireError or OSError."""

    def close_log(self, home: LogDirectory, key: LogKey) -> Awaitable[None]:
        """Close a log that must be opened again."""

    def remove_soon(self, home: LogDirectory, names: Sequence[str]) -> None:
        """Remove directories that are marked as deleted, in the background."""

    def on_home_error(self, home: LogDirectory, error: OSError) -> None:
        """A directory may have failed."""


Wanted = Mapping[LogKey, tuple[TopicPartition, LogConfig]]


class _OutOfServiceError(Exception):
    """A directory has failed while it was asked."""

    def __init__(self, home: LogDirectory) -> None:
        super().__init__(home.path)
        self.home = home


class LogStartup:
    """One start. `run` once."""

    def __init__(
        self, opener: LogOpener, services: LogServices, wanted: Wanted, parallelism: int
    ) -> None:
        self._opener = opener
        self._services = services
        self._wanted = wanted
        self._parallelism = parallelism

    async def run(self) -> None:
        """Open every wanted log that is there. Raises ConfigError when one is there twice."""
        homes = [home for home in self._opener.homes if home.failure is None]
        surveys = await asyncio.gather(*(self._survey(home) for home in homes))
        found = [
            (home, survey)
            for home, survey in zip(homes, surveys, strict=True)
            if survey is not None
        ]
        for home, survey in found:
            self._take_over(home, survey)
        await self._settle_duplicates([home for home, _ in found])
        self._report_missing()
        progress = self._opener.progress
        progress.homes = [DirectoryProgress(home.path, len(home.names)) for home, _ in found]
        report = self._services.tasks.spawn("report recovery", self._report())
        try:
            await asyncio.gather(
                *(
                    self._open_home(home, state)
                    for (home, _), state in zip(found, progress.homes, strict=True)
                )
            )
        finally:
            report.cancel()
        progress.finished = True
        self._summarize("Opened logs")

    async def _survey(self, home: LogDirectory) -> Survey | None:
        wanted = self._wanted
        try:
            return await self._services.engine.run(
                lambda: home.directory.survey(wanted.__contains__)
            )
        except OSError as error:
            self._opener.on_home_error(home, error)
            if home.failure is None:
                raise
            return None

    def _take_over(self, home: LogDirectory, survey: Survey) -> None:
        home.names.update(survey.names)
        home.clean_ends.update(survey.clean_ends)
        home.high_watermarks.update(survey.high_watermarks)
        home.promised_offsets.update(survey.promised_offsets)
        home.life, home.was_clean = survey.life, survey.was_clean
        home.has_checkpoint = survey.has_checkpoint
        for complaint in survey.complaints:
            log.warning("Ignored a damaged checkpoint file problem=%r", complaint)
        if survey.strays:
            log.warning(
                "Set stray logs aside path=%s/stray count=%d first=%s; no topic of this node "
                "claims them, those that are not needed are deleted after stray.retention",
                home.path,
                len(survey.strays),
                survey.strays[0],
            )
        self._opener.remove_soon(home, survey.deleted)

    async def _settle_duplicates(self, homes: Sequence[LogDirectory]) -> None:
        """Leave each log in one directory: an empty second one, left by a failure, is set aside."""
        places: dict[LogKey, LogDirectory] = {}
        problems: list[str] = []
        for home in homes:
            for key in list(home.names):
                other = places.setdefault(key, home)
                if other is home:
                    continue
                loser = await self._loser(key, home, other)
                if loser is None:
                    problems.append(
                        f"{self._wanted[key][0]} is in {home.path} and in {other.path}, both with "
                        "records: find out which is right and move the other away"
                    )
                    continue
                places[key] = other if loser is home else home
                await self._set_aside(loser, loser.names.pop(key))
        if problems:
            raise ConfigError(problems)

    def _report_missing(self) -> None:
        """Say which logs had records in the last run and are not there; forget them."""
        homes = self._opener.homes
        for key, (topic_partition, _) in self._wanted.items():
            if any(key in home.names for home in homes):
                continue
            name = log_name(topic_partition, key[0])
            for home in homes:
                kept = (home.high_watermarks, home.promised_offsets, home.clean_ends)
                marks = [offsets.pop(name, 0) for offsets in kept]
                if any(marks):
                    home.gone[key] = None
                    log.error(
                        "Log directory is missing partition=%s path=%s/topics/%s; records are"
                        " fetched again from other replicas. If there are none, stop the node and"
                        " restore the directory",
                        topic_partition,
                        home.path,
                        name,
                    )

    async def _loser(
        self, key: LogKey, home: LogDirectory, other: LogDirectory
    ) -> LogDirectory | None:
        """Return which of two directories gives a log up; None when nothing tells.

        One whose disk fails at that does: what it has is out of service in any case, and the other
        copy proves nothing when its directory was out of service before.
        """
        failed = next((each for each in (home, other) if each.failure is not None), None)
        try:
            return (
                failed
                or await self._of_earlier_life(key, home, other)
                or await self._replaced(key, home, other)
                or await self._empty_one(key, home, other)
            )
        except _OutOfServiceError as error:
            return error.home

    async def _set_aside(self, home: LogDirectory, name: str) -> None:
        if home.failure is not None:
            return
        with suppress(_OutOfServiceError):
            await self._ask(home, partial(home.directory.set_aside, [name]))
            log.warning("Set a second log aside path=%s name=%s", home.path, name)

    async def _ask(self, home: LogDirectory, work: Callable[[], T]) -> T:
        """Run blocking `work` in a directory; raise what it raises, or that it has failed by it."""
        try:
            return await home.disk.run(work)
        except OSError as error:
            self._opener.on_home_error(home, error)
            if home.failure is None:
                raise
            raise _OutOfServiceError(home) from error

    async def _of_earlier_life(
        self, key: LogKey, home: LogDirectory, other: LogDirectory
    ) -> LogDirectory | None:
        """Return the directory of an earlier life, unless the later one has no log but only what an
        attempt to make it has left: a disk may have been too full to note its life.
        """
        loser = _outlived(home, other)
        if loser is None:
            return None
        newer = other if loser is home else home
        if await self._empty_one(key, loser, newer) is not newer:
            return loser
        made = newer.directory.topics.directory(newer.names[key])
        is_noted = await self._ask(newer, partial(replaced_marker.noted, made)) != ReplacedMarker()
        return loser if is_noted else newer

    async def _replaced(
        self, key: LogKey, home: LogDirectory, other: LogDirectory
    ) -> LogDirectory | None:
        """Return the directory that was out of service when the other one's log was made."""
        first, second = [
            await self._ask(
                each,
                partial(replaced_marker.noted, each.directory.topics.directory(each.names[key])),
            )
            for each in (home, other)
        ]
        at = replaced_marker.older((home.directory_id, other.directory_id), (first, second))
        return None if at is None else (home, other)[at]

    async def _empty_one(self, key: LogKey, *homes: LogDirectory) -> LogDirectory | None:
        for home in homes:
            check = partial(home.directory.holds_records, home.names[key])
            if not await self._ask(home, check):
                return home
        return None

    # -- recovery

    async def _open_home(self, home: LogDirectory, progress: DirectoryProgress) -> None:
        waiting = list(reversed(home.names))

        async def open_some() -> None:
            while waiting:
                key = waiting.pop()
                if home.failure is None:
                    await self._open(home, key, progress)

        await asyncio.gather(*(open_some() for _ in range(self._parallelism)))

    async def _open(self, home: LogDirectory, key: LogKey, progress: DirectoryProgress) -> None:
        topic_partition, config = self._wanted[key]
        scanned = _Scanned()
        progress.scanned.append(scanned)
        end = home.clean_ends.get(home.names[key])
        open_log = partial(
            self._opener.open_log, home, key, topic_partition, config, on_progress=scanned.add
        )
        try:
            opened = await open_log(clean=end is not None)
            if end is not None and opened.log_end_offset != end:
                log.warning(
                    "Log does not end where the clean shutdown left it partition=%s expected=%d "
                    "found=%d; recovering it",
                    topic_partition,
                    end,
                    opened.log_end_offset,
                )
                home.doubtful[key] = None
                await self._opener.close_log(home, key)
                await open_log(clean=False)
        except WireError as error:
            progress.logs_failed += 1
            self._opener.failures[key] = error
            log.error("Could not open log partition=%s error=%s", topic_partition, error)
        except OSError as error:
            # Perhaps only for now (no descriptors left): `create` may try again.
            progress.logs_failed += 1
            log.error("Could not open log partition=%s error=%s", topic_partition, error)
            self._opener.on_home_error(home, error)
        progress.logs_done += 1

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(REPORT_INTERVAL_S)
            self._summarize("Opening logs")

    def _summarize(self, event: str) -> None:
        for progress in self._opener.progress.homes:
            log.info(
                "%s path=%s done=%d total=%d failed=%d scanned_bytes=%d",
                event,
                progress.path,
                progress.logs_done,
                progress.logs_total,
                progress.logs_failed,
                progress.scanned_bytes,
            )


def _outlived(home: LogDirectory, other: LogDirectory) -> LogDirectory | None:
    """Return the directory of an earlier life: its log was given up when it was out of reach."""
    epochs = home.life.node_epoch, other.life.node_epoch
    if epochs[0] is None or epochs[1] is None or epochs[0] == epochs[1]:
        return None
    return home if epochs[0] < epochs[1] else other
