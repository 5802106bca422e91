"""Scrubber: reads all closed segments of a data directory slowly and verifies each batch.

What rots where nobody reads would be found when the other replicas are gone. A damaged place is
noted in the log's `damage`: refused to readers, told in status and metrics, and mended by
replication where there is another replica. Reads go through the engine one at a time, behind those
of consumers and less while there are writes (`dlogd.storage.io.read_pool`), and at `scrub.rate` at
most. A restart goes on where the last life was, or a little before.

Owner: the event loop's thread; made by `dlogd.storage.background_tasks`. The plan is pure
(`dlogd.storage.repair.scrub_schedule`, `dlogd.storage.segment.segment_verifier`).
"""

import asyncio
import errno
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from dlog.batch.header import HEADER_BYTES
from dlogd.storage.directory.log_directory import LogDirectory, StorageSettings
from dlogd.storage.directory.log_names import parse_log_name
from dlogd.storage.io import checkpoint_files
from dlogd.storage.io.checkpoint_files import MalformedFileError
from dlogd.storage.io.files import Directory, File
from dlogd.storage.io.io_engine import ALIGNMENT, ReadBuffer
from dlogd.storage.log.log_state import LogServices
from dlogd.storage.log.partition_log import PartitionLog
from dlogd.storage.repair.scrub_schedule import (
    KIND,
    Pace,
    Place,
    Round,
    decode,
    due_ms,
    encode,
    next_place,
)
from dlogd.storage.segment.batch_scan import next_good
from dlogd.storage.segment.segment import Segment, SegmentState
from dlogd.storage.segment.segment_names import file_name
from dlogd.storage.segment.segment_verifier import SegmentVerifier

log = logging.getLogger(__name__)

FIRST_AFTER_S = 30.0
"""A start has other things to do than to scrub."""
LOOK_S = 10.0
"""How often a resting scrub looks whether it is due, or was switched off."""
SAVE_INTERVAL_S = 60.0
PIECE_BYTES = 128 * 1024
SEGMENT_COST_BYTES = 64 * 1024
"""What opening a file counts for, so that many small segments are no burst."""
UNREADABLE_MAX = 8
"""So many blocks may be unreadable in one round before the disk is mistrusted."""


class Scrubber:
    """The scrub of one data directory. Life: `run` until it is cancelled."""

    def __init__(
        self,
        home: LogDirectory,
        services: LogServices,
        settings: Callable[[], StorageSettings],
        on_error: Callable[[OSError], None],
    ) -> None:
        """`on_error`: the disk may have failed."""
        self.round: Round | None = None
        self._home = home
        self._services = services
        self._settings = settings
        self._on_error = on_error
        self.unreadable = 0
        """Blocks that could not be read in this round."""
        self._pace = Pace()
        self._saved_at_s = 0.0

    def status(self) -> dict[str, Any]:
        """Return what `/status` shows."""
        found = self.round
        total = sum(
            segment.end_position
            for opened in self._home.logs.values()
            for segment in opened.segments
            if segment.state is SegmentState.SEALED
        )
        state = "off" if self._settings().scrub_interval_ms < 0 else "resting"
        if found is not None and found.is_under_way and state != "off":
            state = "reading"
        return {
            "state": state,
            "started_ms": None if found is None else found.started_ms,
            "ended_ms": None if found is None else found.ended_ms or None,
            "read_bytes": 0 if found is None else found.read_bytes,
            "closed_bytes": total,
            "damages": 0 if found is None else found.damages,
        }

    def begun(self) -> tuple[int, int]:
        """Return when the round began, ms since 1970, and what it has read, bytes."""
        return (0, 0) if self.round is None else (self.round.started_ms, self.round.read_bytes)

    async def run(self) -> None:
        """Do one round after the other."""
        self.round = await self._load()
        await asyncio.sleep(FIRST_AFTER_S)
        while self._home.failure is None:
            now_ms = self._services.clock.timestamp_ms()
            interval_ms = self._settings().scrub_interval_ms
            rest_ms = due_ms(self.round, interval_ms, now_ms) - now_ms
            if interval_ms < 0 or rest_ms > 0:
                await asyncio.sleep(LOOK_S if interval_ms < 0 else min(LOOK_S, rest_ms / 1000))
                continue
            await self._go_on(now_ms)

    async def _go_on(self, now_ms: int) -> None:
        """Begin a round, or take the next segment of the one under way, or end it."""
        found = self.round
        if found is None or not found.is_under_way:
            self.round = Round(started_ms=now_ms)
            self.unreadable = 0
            await self._save()
            return
        home = self._home
        place = next_place(found, home.names.values(), self._offsets_of)
        if place is None:
            self.round = replace(found, ended_ms=max(now_ms, 1))
            await self._save()
            log.info(
                "Finished a scrub path=%s bytes=%d damages=%d",
                home.path,
                found.read_bytes,
                found.damages,
            )
            return
        read_bytes, damages = await self._check(place)
        self.round = replace(found.passed(place, read_bytes), damages=found.damages + damages)
        if self._services.loop.time() - self._saved_at_s >= SAVE_INTERVAL_S:
            await self._save()

    def _offsets_of(self, name: str) -> list[int]:
        opened = _log_at(self._home, name)
        if opened is None or not opened.is_working:
            return []
        return [each.base_offset for each in opened.segments if each.state is SegmentState.SEALED]

    # -- the small file

    async def _load(self) -> Round | None:
        try:
            data = await self._services.engine.run(
                partial(checkpoint_files.load_file, self._home.directory.root, KIND)
            )
            return None if data is None else decode(data)
        except MalformedFileError as error:
            log.warning(
                "Ignored a damaged checkpoint file path=%s/%s problem=%r",
                self._home.path,
                KIND,
                str(error),
            )
        except OSError as error:
            self._on_error(error)
        return None

    async def _save(self) -> None:
        assert self.round is not None
        self._saved_at_s = self._services.loop.time()
        root = self._home.directory.root
        save = partial(checkpoint_files.replace_file, root, KIND, encode(self.round))
        try:
            await self._services.engine.run(save)
        except OSError as error:
            # A full disk, perhaps: the next start begins the round anew.
            log.warning(
                "Could not write the scrub progress path=%s error=%s", self._home.path, error
            )
            self._on_error(error)

    # -- one segment

    async def _check(self, place: Place) -> tuple[int, int]:
        """Verify one segment; return its bytes, and in how many places it is damaged."""
        opened = _log_at(self._home, place[0])
        segment = _segment_at(opened, place[1])
        if opened is None or segment is None:
            return 0, 0
        open_file = partial(_open, segment.directory, segment)
        try:
            file = await self._services.engine.run(open_file)
        except OSError as error:
            self._on_open_error(opened, segment, error)
            return 0, 0
        try:
            walk = _Walk(self, opened, segment, file)
            await walk.run()
        finally:
            await asyncio.shield(self._services.engine.run(file.close))
        metrics = self._services.metrics
        metrics.scrub_segments_total += 1
        metrics.scrub_damages_total += walk.damages
        return segment.end_position, walk.damages

    def _on_open_error(self, opened: PartitionLog, segment: Segment, error: OSError) -> None:
        if segment.state is SegmentState.SEALED and opened.is_working:
            opened.fail_read(error)

    async def rest(self, size_bytes: int) -> None:
        """Let others have the disk, as `scrub.rate` says."""
        self._services.metrics.scrub_bytes_total += size_bytes
        now_s = self._services.loop.time()
        wait_s = self._pace.wait_s(size_bytes, self._settings().scrub_rate, now_s)
        await asyncio.sleep(wait_s)

    async def read(self, file: File, position: int, length: int) -> bytes:
        """Read from a file, in the turn of all reads. Raises OSError."""
        future = self._services.loop.create_future()

        def on_read(result: ReadBuffer | OSError) -> None:
            if isinstance(result, OSError):
                if not future.done():
                    future.set_exception(result)
                return
            data = bytes(result.view)
            result.release()
            if not future.done():
                future.set_result(data)

        engine = self._services.engine
        length = min(length, engine.read_length_max, engine.read_length_best)
        engine.read(file, position, length, on_read)
        return bytes(await future)

    async def run_blocking(self, work: Callable[[], Any]) -> Any:
        """Do what blocks."""
        return await self._services.engine.run(work)


class _Walk:
    """One segment on its way through the scrub."""

    def __init__(self, scrub: Scrubber, opened: PartitionLog, segment: Segment, file: File) -> None:
        self.damages = 0
        self._scrub = scrub
        self._log = opened
        self._segment = segment
        self._file = file
        self._cut_count = segment.cut_count
        self._check = SegmentVerifier(
            segment.base_offset, segment.end_position, epoch_of=opened.epoch_of_batch
        )
        self._unreadable_end = 0

    @property
    def _is_worth_it(self) -> bool:
        """Whether the segment is still what it was when the walk began."""
        segment = self._segment
        is_same = segment.state is SegmentState.SEALED and segment.cut_count == self._cut_count
        return is_same and self._log.is_working

    async def run(self) -> None:
        """Walk to the end, noting what is bad."""
        check = self._check
        await self._scrub.rest(SEGMENT_COST_BYTES)
        while self._is_worth_it and check.position < check.end_position:
            position = check.position
            try:
                check.feed(memoryview(await self._read(position, PIECE_BYTES)))
            except OSError:
                if not await self._feed_blocks(position + PIECE_BYTES):
                    return
            await self._scrub.rest(max(check.position - position, ALIGNMENT))
            if check.is_bad and not await self._pass_over():
                return
        end_offset = self._segment.end_offset
        if self._is_worth_it and check.expected_offset != end_offset:
            self._note(check.end_position, check.expected_offset, end_offset)

    async def _read(self, position: int, length: int) -> bytes:
        length = min(length, self._check.end_position - position)
        return await self._scrub.read(self._file, position, length)

    async def _feed_blocks(self, end: int) -> bool:
        """Feed a piece that cannot be read as a whole, up to the block that is to blame."""
        check = self._check
        while not check.is_done and check.position < end:
            block_end = check.position - check.position % ALIGNMENT + ALIGNMENT
            if block_end - check.position < HEADER_BYTES:
                block_end += ALIGNMENT  # a head that lies on both
            try:
                data = await self._read(check.position, block_end - check.position)
            except OSError as error:
                if not self._is_worth_it or not self._may_pass_over(error):
                    return False
                check.is_bad = True
                self._unreadable_end = block_end
            else:
                check.feed(memoryview(data))
        return True

    def _may_pass_over(self, error: OSError) -> bool:
        """Whether an unreadable block is one of few; else let the error have its effect."""
        self._scrub.unreadable += 1
        if error.errno != errno.EIO or self._scrub.unreadable > UNREADABLE_MAX:
            self._log.fail_read(error)
            return False
        log.warning("Found an unreadable range file=%s error=%s", self._segment.path, error)
        return True

    async def _pass_over(self) -> bool:
        """Note what is bad, and find where good batches go on; return whether they do."""
        check = self._check
        start = max(check.batch_position, self._unreadable_end)
        while True:
            bad = check.batch_position, check.expected_offset
            search = partial(next_good, self._file, start, check.end_position, *bad)
            try:
                found = await self._scrub.run_blocking(search)
                break
            except OSError as error:
                if not self._is_worth_it or not self._may_pass_over(error):
                    return False
                start += ALIGNMENT
        self._unreadable_end = 0
        if not self._is_worth_it:
            return False
        position, offset = found or (check.end_position, self._segment.end_offset)
        self._note(position, check.expected_offset, offset)
        check.resume(position, offset)
        return True

    def _note(self, end_position: int, first_offset: int, next_offset: int) -> None:
        self.damages += 1
        self._log.damage.note(
            self._segment.path, self._check.batch_position, first_offset, next_offset, end_position
        )


def _log_at(home: LogDirectory, name: str) -> PartitionLog | None:
    key = parse_log_name(name)
    return None if key is None else home.logs.get(key)


def _segment_at(opened: PartitionLog | None, base_offset: int) -> Segment | None:
    if opened is None or not opened.is_working:
        return None
    segment = opened.segment_of(base_offset)
    is_there = segment.base_offset == base_offset and segment.state is SegmentState.SEALED
    return segment if is_there else None


def _open(directory: Directory, segment: Segment) -> File:
    return directory.open(file_name(segment.base_offset), direct=segment.direct, read_only=True)
