"""Checkpoints of offsets in a data directory: high watermarks and promised offsets.

    high-watermarks     where replication begins after a start: never more than is committed
    promised-offsets    what must be there after a crash: less than that was lost

Both are low at worst, never high. Written every few seconds and at a stop, never on the way of a
produce; and before a log is cut back, because what is gone would else be missed. docs/formats/
small-files.md. Owner: the event loop's thread; made by `dlogd.storage.background_tasks`.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from dlog.errors import KafkaStorageError
from dlog.types import Offset
from dlogd.storage.directory.log_directory import LogDirectory
from dlogd.storage.io.checkpoint_files import HIGH_WATERMARKS, PROMISED_OFFSETS
from dlogd.storage.log.log_state import LogServices
from dlogd.storage.log.partition_log import PartitionLog

log = logging.getLogger(__name__)

BURST_COUNT = 250
"""So many logs are asked before others get their turn."""

OffsetOf = Callable[[PartitionLog], Offset]


class OffsetCheckpoints:
    """The saving of the marks of all directories."""

    def __init__(
        self,
        services: LogServices,
        watermark_of: OffsetOf,
        on_error: Callable[[LogDirectory, OSError], None],
    ) -> None:
        """`watermark_of`: what replication says, which may be beyond what is on this disk."""
        self._services = services
        self._watermark_of = watermark_of
        self._on_error = on_error
        self._saved: dict[tuple[str, str], dict[str, Offset]] = {}  # by directory and kind
        self._unsaved: set[str] = set()  # directories where saving fails, said once
        # By directory: two at once would take the temporary file away from each other.
        self._saving: dict[str, asyncio.Lock] = {}

    def high_watermark(self, opened: PartitionLog) -> Offset:
        """Return the watermark of a log, no further than its own disk has it.

        A follower may hear of a watermark before the records below it are safe here.
        """
        return self._within(opened, self._watermark_of(opened))

    @staticmethod
    def _within(opened: PartitionLog, offset: Offset) -> Offset:
        found = max(min(offset, opened.promised_offset), opened.log_start_offset)
        return found if opened.cut_ceiling is None else min(found, opened.cut_ceiling)

    def _promised(self, opened: PartitionLog) -> Offset:
        return self._within(opened, opened.promised_offset)

    def _lock(self, home: LogDirectory) -> asyncio.Lock:
        return self._saving.setdefault(home.path, asyncio.Lock())

    async def save_cut(self, home: LogDirectory, opened: PartitionLog) -> None:
        """Say on disk that no more than `cut_ceiling` may be there; raise KafkaStorageError."""
        ceiling = opened.cut_ceiling
        assert ceiling is not None
        name = home.names[opened.key]

        def is_beyond() -> bool:
            kept = (home.high_watermarks, home.promised_offsets)
            return any(offsets.get(name, 0) > ceiling for offsets in kept)

        async with self._lock(home):
            if is_beyond():
                await self._save(home)
            if is_beyond():
                raise KafkaStorageError(f"Cannot note in {home.path} that {name} is cut")

    async def forget(self, home: LogDirectory, name: str) -> None:
        """Let the disk say nothing of an earlier log of this name: a crash soon after a new one
        has begun would else miss what that had. Raises OSError.
        """
        async with self._lock(home):
            home.forget_marks(name)  # a save that ended just now knew it
            for kind, known, offset_of in self._kinds(home):
                saved = self._saved.get((home.path, kind))
                if saved is None or name in saved:
                    await self._replace(home, kind, known, offset_of)

    async def save(self, home: LogDirectory) -> None:
        """Bring the marks of a directory to its disk, unless they are there."""
        async with self._lock(home):
            await self._save(home)

    async def _save(self, home: LogDirectory) -> None:
        try:
            for kind, known, offset_of in self._kinds(home):
                await self._replace(home, kind, known, offset_of)
            self._unsaved.discard(home.path)
        except OSError as error:
            if home.path not in self._unsaved:
                log.warning("Could not write offset checkpoints path=%s error=%s", home.path, error)
                self._unsaved.add(home.path)
            self._on_error(home, error)

    def _kinds(self, home: LogDirectory) -> tuple[tuple[str, dict[str, Offset], OffsetOf], ...]:
        return (
            (HIGH_WATERMARKS, home.high_watermarks, self.high_watermark),
            (PROMISED_OFFSETS, home.promised_offsets, self._promised),
        )

    async def _replace(
        self, home: LogDirectory, kind: str, known: dict[str, Offset], offset_of: OffsetOf
    ) -> None:
        """Replace one file, unless it says the same; `known` is what it says, or more."""
        # A log that is out of service keeps what was known of it.
        offsets = {name: known[name] for name in home.names.values() if name in known}
        for number, (key, opened) in enumerate(list(home.logs.items())):
            if number % BURST_COUNT == BURST_COUNT - 1:
                await asyncio.sleep(0)  # there may be thousands
            name = home.names.get(key)
            if name is not None and opened.failed is None:
                offsets[name] = offset_of(opened)
        if offsets == self._saved.get((home.path, kind)):
            return
        # Where that fails the file may say the one or the other.
        self._saved.pop((home.path, kind), None)
        known.update({name: max(known.get(name, at), at) for name, at in offsets.items()})
        await home.disk.ask(partial(home.directory.save_offsets, kind, offsets))
        self._saved[home.path, kind] = offsets
        known.clear()  # of logs that are gone nothing is kept
        known.update(offsets)
