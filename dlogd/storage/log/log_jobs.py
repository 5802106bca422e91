"""Slow jobs of a partition log: everything that blocks, one at a time, in order.

Making and opening files, preallocating, sealing, syncing under weak flush policies, saving leader
epochs. Jobs run as tasks under one lock per log, so each sees a log that no other job is changing;
appends, flushes and reads go on meanwhile. An I/O error of a job takes the log out of service; a
job that lacks descriptors, memory or space waits for them (`dlogd.storage.log.resource_wait`).
"""

import asyncio
import errno
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from dlogd.config.choices import FlushPolicy
from dlogd.storage.io import checkpoint_files
from dlogd.storage.io.errnos import NO_SPACE
from dlogd.storage.io.files import File
from dlogd.storage.io.io_engine import ALIGNMENT
from dlogd.storage.io.zero_fill import zero_ahead
from dlogd.storage.log.deferred_close import DeferredClose
from dlogd.storage.log.log_state import LogState
from dlogd.storage.log.resource_wait import ResourceWait
from dlogd.storage.segment import leader_epochs
from dlogd.storage.segment.index_files import BadEntriesError
from dlogd.storage.segment.index_rebuild import known_of, reindex
from dlogd.storage.segment.segment import Segment, SegmentState

log = logging.getLogger(__name__)

PREALLOCATE_BYTES_MIN = 1 << 20
"""The first step of a segment; each next one doubles it up to `preallocate_bytes`, so that many
small partitions do not fill a disk with nothing."""

PREPARE_DISTANCE_BYTES = 16 * 1024
"""How far ahead of the tail space is prepared at least: the writer goes on meanwhile."""

ZERO_BYTES_MIN = 64 * 1024
ZERO_BYTES_MAX = 1 << 20
"""So much is zeroed at once: as much as the segment has, within these bounds."""

ZERO_WRITES_BELOW_BYTES = 512 * 1024
"""Zeros pay only for flushes below this size."""

_BLOCK_MASK = ~(ALIGNMENT - 1)


class LogJobs:
    """The jobs of one log. Owner: the event loop's thread."""

    __slots__ = (
        "_epochs_saved",
        "_extending",
        "_kick",
        "_saving",
        "_state",
        "_sync_timer",
        "_syncing",
        "lock",
        "shortage",
        "unused",
    )

    def __init__(self, state: LogState, kick: Callable[[], None]) -> None:
        """`kick`: let the flusher look whether it may go on."""
        self._state = state
        self._kick = kick
        self.lock = state.lock
        self.shortage = ResourceWait(state)
        self.unused = DeferredClose(state)
        self._epochs_saved = True
        self._saving = False
        self._extending = False
        self._syncing = False
        self._sync_timer: asyncio.TimerHandle | None = None

    def _spawn(self, name: str, job: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self._state.is_working:
            name = f"{name} {self._state.topic_partition}"
            self._state.services.tasks.spawn(name, self._run(job))

    async def _run(self, job: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async with self.lock:
            if not self._state.is_working:
                return
            try:
                await job()
            except OSError as error:
                self._state.fail(error)

    async def _blocking(self, work: Callable[[], None]) -> None:
        """Run what flushes a file, or what nobody has to wait for when the disk is full."""
        await self.shortage.run(work, for_space=False)

    # -- after each write

    def on_progress(self, segment: Segment, size: int) -> None:
        """`size` bytes of `segment` were written: index them, prepare what comes next."""
        position = segment.flushed_position
        if segment.index.due <= position:
            self._settle(segment, position)
        if segment.written_position > segment.space.extend_at:
            self._extend_soon(segment)
        elif segment.written_position > segment.space.zero_at and size < ZERO_WRITES_BELOW_BYTES:
            self._zero_soon(segment)
        if not segment.durable:
            if self._state.flush_waiters:
                self.sync_soon()
            elif self._state.config.flush_policy is FlushPolicy.INTERVAL:
                self._sync_later()

    def _settle(self, segment: Segment, position: int) -> None:
        if not segment.index.is_open:
            return
        if not self._epochs_saved:
            # Recovery scans from the last entry: it must come before what the file does not know.
            if not self._saving:
                self._saving = True
                self._spawn("save epochs", self.save_epochs)
            return
        segment.indexes.settle(position)

    # -- making and opening files

    def prepare_soon(self, segment: Segment) -> None:
        """Open the indexes of a segment that is appended to for the first time."""
        segment.prepare()
        self._spawn("prepare", partial(self._prepare, segment))

    async def _prepare(self, segment: Segment) -> None:
        if segment.state is not SegmentState.OPEN:
            return
        await self.open_indexes(segment, writable=True)
        await self._blocking(segment.directory.sync)
        segment.space.extend_from(segment.space.allocated_end - PREALLOCATE_BYTES_MIN // 2)
        self.on_progress(segment, 0)

    async def open_indexes(
        self, segment: Segment, *, writable: bool, is_patient: bool = True
    ) -> None:
        """Open the index files, unless they are; the lock is held."""
        if segment.index.is_open:
            return
        run = self.shortage.run if is_patient else self._state.services.engine.run
        # Bound anew for each try: what the segment knows of its entries changes between them.
        try:
            opened = await run(partial(segment.open_indexes, writable=writable))
        except BadEntriesError as error:
            await self.reindex(segment, error, is_patient=is_patient)
            opened = await run(partial(segment.open_indexes, writable=writable))
        segment.indexes.attach(opened)
        if writable:
            # Flushes that ended meanwhile could not note it.
            segment.index.mark(segment.flushed_position)

    async def reindex(
        self, segment: Segment, error: BadEntriesError, *, is_patient: bool = False
    ) -> None:
        """Make the indexes of a segment anew, which are not open; the lock is held."""
        run = self.shortage.run if is_patient else self._state.services.engine.run
        interval_bytes = self._state.config.index_interval_bytes
        made = await run(partial(reindex, known_of(segment), interval_bytes))
        segment.rebuild_indexes((made.index_count, made.times_count), made.max_timestamp_ms)
        log.warning(
            "Rebuilt indexes from the segment file=%s entries=%d damaged_position=%s reason=%s",
            segment.path,
            made.index_count,
            made.damaged_position,
            error,
        )

    def create_soon(self, segment: Segment) -> None:
        """Make the file of a segment that was rolled to."""
        self._spawn("create segment", partial(self._create, segment))

    async def _create(self, segment: Segment) -> None:
        if segment.state is not SegmentState.CREATING:
            return
        made = await self.shortage.run(segment.create_file)
        try:
            await self._preallocate_first(segment, made)
        except OSError:
            made.close()  # a disk that failed: whoever looks after it wants to unmount it
            raise
        segment.open_with(made)
        self._kick()

    async def _preallocate_first(self, segment: Segment, made: File) -> None:
        config = self._state.config
        if segment.durable and config.preallocate_bytes:
            # Nothing can have been written yet, so the first step begins at the start.
            length = max(segment.bytes_expected, PREALLOCATE_BYTES_MIN)
            length = min(length, config.preallocate_bytes, config.segment_bytes) & _BLOCK_MASK
            await self._preallocate(segment, made, 0, length)

    # -- space ahead of the tail

    def _extend_soon(self, segment: Segment) -> None:
        segment.space.pause_extending()
        if not segment.durable or not self._state.config.preallocate_bytes:
            return
        if not self._extending:
            self._extending = True
            self._spawn("preallocate", partial(self._extend, segment))

    async def _extend(self, segment: Segment) -> None:
        self._extending = False
        file, config = segment.file, self._state.config
        if segment.state is not SegmentState.OPEN or file is None:
            return
        end = (segment.tail.end + ALIGNMENT - 1) & _BLOCK_MASK
        start = max(segment.space.allocated_end, end + PREPARE_DISTANCE_BYTES) & _BLOCK_MASK
        step = min(config.preallocate_bytes, max(start, PREALLOCATE_BYTES_MIN))
        stop = min(start + step, config.segment_bytes) & _BLOCK_MASK
        if stop <= start:
            return
        # What is prepared may be overwritten with zeros: no write may go there meanwhile.
        segment.space.hold_writes(start)
        try:
            await self._preallocate(segment, file, start, stop - start)
        finally:
            segment.space.hold_writes()
            self._kick()

    async def _preallocate(self, segment: Segment, file: File, start: int, length: int) -> None:
        """Take space on the disk; a disk that has none is no error yet."""
        if not length:
            return
        try:
            await self._blocking(partial(file.preallocate, start, length))
        except OSError as error:
            if error.errno not in NO_SPACE and error.errno != errno.EOPNOTSUPP:
                raise
            log.warning("Could not preallocate space file=%s error=%s", file.path, error)
            return
        segment.space.note_allocated(start, length, zeroes=file.direct)

    def _zero_soon(self, segment: Segment) -> None:
        segment.space.pause_zeroing()
        self._spawn("zero", partial(self._zero, segment))

    async def _zero(self, segment: Segment) -> None:
        """Write zeros over preallocated space: small durable writes there are faster then.

        docs/decisions/0002-preallocation.md.
        """
        file = segment.file
        if segment.state is not SegmentState.OPEN or file is None:
            return
        end = (segment.tail.end + ALIGNMENT - 1) & _BLOCK_MASK
        start = max(segment.space.zeroed_end, end + PREPARE_DISTANCE_BYTES)
        stop = min(
            start + min(max(end, ZERO_BYTES_MIN), ZERO_BYTES_MAX), segment.space.allocated_end
        )
        if stop <= start:
            return
        future: asyncio.Future[OSError | None] = self._state.services.loop.create_future()

        def done(error: OSError | None) -> None:
            if not future.done():
                future.set_result(error)

        segment.space.hold_writes(start)
        try:
            zero_ahead(self._state.services.engine, file, start, stop - start, done)
            error = await self._state.answer(future)
        finally:
            segment.space.hold_writes()
            self._kick()
        if error is None:
            segment.space.note_zeroed(stop, stop - (stop - start) // 2 - PREPARE_DISTANCE_BYTES)
        elif error.errno not in NO_SPACE:
            raise error

    # -- flush policy

    def change_policy(self, segment: Segment) -> None:
        """Write an empty segment as the settings say now; known on disk before the next is made."""
        try:
            segment.set_policy(self._state.config.durable, self._state.config.direct_writes)
        except OSError as error:
            self._state.fail(error)
            return
        self._spawn("keep policy", partial(self._keep_policy, segment))

    async def _keep_policy(self, segment: Segment) -> None:
        if segment.index.file is not None:
            await self._blocking(segment.index.file.sync)

    # -- leader epochs

    def note_epoch(self) -> None:
        """The history of leader epochs has changed."""
        self._epochs_saved = False

    async def save_epochs(self) -> None:
        """Bring the leader epochs to stable storage, unless they are there; the lock is held."""
        self._saving = False
        if self._epochs_saved:
            return
        data = self._state.epochs.encode()
        await self.shortage.run(
            partial(
                checkpoint_files.replace_file, self._state.directory, leader_epochs.FILE_NAME, data
            )
        )
        # Only now may entries follow, and not when another epoch began meanwhile.
        self._epochs_saved = data == self._state.epochs.encode()

    # -- syncing and sealing

    def _sync_later(self) -> None:
        if self._sync_timer is None:
            delay_s = self._state.config.flush_interval_ms / 1000
            self._sync_timer = self._state.services.loop.call_later(delay_s, self.sync_soon)

    def sync_soon(self) -> None:
        """Bring what was written weakly to stable storage."""
        if self._sync_timer is not None:
            self._sync_timer.cancel()
            self._sync_timer = None
        if self._state.is_working and not self._syncing:
            self._syncing = True
            self._spawn("sync", self._sync)

    async def _sync(self) -> None:
        """Sync the oldest segment that is not sealed; older ones are, by the order of jobs."""
        self._syncing = False
        state = self._state
        segment = state.segment_of(state.flushed_offset)
        if segment.durable or segment.file is None:
            return
        position, offset = segment.written_position, segment.written_offset
        await self._blocking(segment.file.sync)
        self._on_synced(segment, position, offset)

    def _on_synced(self, segment: Segment, position: int, offset: int) -> None:
        segment.note_flushed(position)
        self._settle(segment, segment.flushed_position)
        state = self._state
        if offset > state.flushed_offset and state.failed is None:
            state.advance(offset, state.promised_offset)
        if state.flush_waiters and state.flushed_offset < state.promised_offset:
            self.sync_soon()
        self._kick()

    def seal_soon(self, segment: Segment) -> None:
        """Finish a rolled segment that is completely written."""
        self._spawn("seal", partial(self._seal, segment))

    async def _seal(self, segment: Segment) -> None:
        if segment.state is not SegmentState.OPEN or segment is self._state.active:
            return
        await self.finish(segment)
        segment.seal()
        state = self._state
        state.services.open_segments.add(segment, partial(self.unused.close_soon, segment))
        state.on_sealed(segment)

    async def finish(self, segment: Segment) -> None:
        """Make a completely written segment durable and as short as its data; the lock is held."""
        assert segment.file is not None
        if not segment.durable:
            await self._blocking(segment.file.sync)
        await self.save_epochs()
        await self.open_indexes(segment, writable=True)
        self._on_synced(segment, segment.tail.end, self._state.end_offset_of(segment))
        end_offset = self._state.end_offset_of(segment)
        files = await self.shortage.do(partial(segment.close_indexes, end_offset))
        await self._blocking(partial(segment.finish_files, files))

    def stop(self) -> None:
        """Start no timer any more, and wait for nothing."""
        self.shortage.hurry()
        if self._sync_timer is not None:
            self._sync_timer.cancel()
            self._sync_timer = None
