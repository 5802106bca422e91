"""Truncation of a log: at its end after divergence, at its start by retention.

Each step leaves a whole log on disk, whatever becomes of the next one. The order: what would
contradict the cut (index entries, the flushed mark) goes first, then the data. Durable on return.
"""

import errno
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from dlog.errors import KafkaStorageError, OffsetOutOfRangeError, WireError
from dlog.types import Offset
from dlogd.storage.io import checkpoint_files
from dlogd.storage.io.emergency_space import EmergencySpace
from dlogd.storage.io.errnos import NO_SPACE
from dlogd.storage.io.files import Directory, File
from dlogd.storage.io.io_engine import ALIGNMENT
from dlogd.storage.log.flusher import Flusher
from dlogd.storage.log.log_jobs import LogJobs
from dlogd.storage.log.log_reader import LogReader
from dlogd.storage.log.log_recovery import LOG_START, encode_log_start
from dlogd.storage.log.log_state import LogState
from dlogd.storage.segment.segment import Segment, SegmentState
from dlogd.storage.segment.segment_names import SUFFIXES, file_name
from dlogd.storage.segment.time_index import NO_TIMESTAMP

Run = Callable[[Callable[[], None]], Awaitable[None]]
"""How blocking work is done: by the engine, patiently or not."""


class Truncation:
    """The cuts of one log; each holds the lock of its maintenance."""

    __slots__ = ("_flusher", "_maintenance", "_reader", "_state")

    def __init__(
        self, state: LogState, flusher: Flusher, maintenance: LogJobs, reader: LogReader
    ) -> None:
        self._state = state
        self._flusher = flusher
        self._maintenance = maintenance
        self._reader = reader

    async def _blocking(self, work: Callable[[], None]) -> None:
        await self._maintenance.shortage.run(work, for_space=False)

    def _check(self) -> None:
        if self._state.failed is not None:
            raise self._state.failed.with_traceback(None)
        if self._state.closed:
            raise KafkaStorageError(f"{self._state.topic_partition} is closed")

    # -- at the end

    async def truncate_to(self, offset: int) -> None:
        """Drop the batches that hold `offset` or more; the log must be flushed up to `offset`.

        Raises CorruptMessageError when the batch that holds it is damaged, KafkaStorageError.
        """
        state = self._state
        self._maintenance.shortage.check()  # who waits for space or descriptors has the lock
        async with self._maintenance.lock:
            self._check()
            if offset >= state.log_end_offset:
                return
            if not state.log_start_offset <= offset <= state.flushed_offset:
                raise OffsetOutOfRangeError(
                    f"Cannot truncate {state.topic_partition} to {offset}: it holds"
                    f" [{state.log_start_offset}, {state.flushed_offset}) on stable storage"
                )
            place = self._reader.position_of(offset)
            if place is None:
                state.damage.check(offset)
                raise KafkaStorageError(f"Nobody located offset {offset} before the truncation")
            if place[1] < state.log_start_offset:
                # Of that batch only the second half counts, and it goes: nothing is left.
                start = state.log_start_offset
                await self._cut(start, lambda: self._start_at(start))
            else:
                await self._cut(place[1], partial(self._truncate, *place))

    async def _cut(self, ceiling: int, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do `work`, which may leave no more than what is below `ceiling`."""
        state = self._state
        state.cut_ceiling = Offset(ceiling)
        try:
            await state.on_cut(state)
            await self._with_frozen_flushes(work())
            state.cut_count, state.cut_offset = state.cut_count + 1, Offset(ceiling)
        finally:
            state.cut_ceiling = None
            state.change_policy()  # it may have been told meanwhile

    async def _with_frozen_flushes(self, work: Coroutine[Any, Any, None]) -> None:
        state = self._state
        await self._flusher.freeze()
        if self._flusher.in_flight:  # it has been given up, and may look at its memory yet
            work.close()
            raise state.failed or KafkaStorageError(f"{state.topic_partition} is closed")
        try:
            await work
        except (OSError, WireError) as error:
            # Half of it may be done: the file is shorter than the log says. What is no error of the
            # system says nothing about the disk.
            state.fail(error if isinstance(error, OSError) else OSError(errno.EINVAL, str(error)))
            raise KafkaStorageError(f"{state.topic_partition}: {error}") from error
        finally:
            self._flusher.thaw()

    async def _truncate(self, segment: Segment, offset: int, position: int) -> None:
        state = self._state
        await self._drop_behind(segment)
        file = await self._reopen(segment)
        await self._maintenance.shortage.do(partial(segment.cut_indexes, position, offset))
        await self._blocking(partial(_sync_all, segment.indexes.files))
        prefix = await state.services.engine.run(partial(_cut_file, file, position))
        if state.epochs.truncate_to(Offset(offset)):
            self._maintenance.note_epoch()
        state.last_epoch = state.epochs.latest
        await self._maintenance.save_epochs()
        await self._become_active(segment, offset, position, prefix)

    async def _reopen(self, segment: Segment) -> File:
        """Make a segment writable again, under the present flush policy: all it has is durable."""
        state = self._state
        # Before the head of its index is written again.
        segment.begin_rewrite(state.config.durable, state.config.direct_writes)
        if segment.state is SegmentState.SEALED:
            opened = await self._maintenance.shortage.run(segment.open_file)
            state.services.open_segments.discard(segment)
            self._maintenance.unused.replace(segment, opened)
            segment.reopen()
        await self._maintenance.open_indexes(segment, writable=True)
        # For indexes that were open.
        keep_policy = partial(segment.set_policy, segment.durable, segment.direct)
        await self._maintenance.shortage.do(keep_policy)
        assert segment.file is not None
        return segment.file

    async def _become_active(
        self, segment: Segment, offset: int, position: int, prefix: bytes
    ) -> None:
        state = self._state
        # The time index knows the largest timestamp only up to its last entry.
        last = segment.times.entry(segment.times.count - 1) if segment.times.count else None
        newest = last[0] if last is not None else -1
        segment.cut_to(position, offset, prefix)
        behind = await self._reader.newest_before(segment, offset, position)
        segment.set_newest(max(newest, behind))
        if not position:
            segment.begin_age(NO_TIMESTAMP, state.config.segment_ms)
        state.active = segment
        state.rewind(offset)
        self._flusher.pending.clear()
        self._flusher.pending.append(segment)
        self._flusher.stop_waiting()
        self._reader.forget(offset)
        state.end_flush_waits()

    async def _drop_behind(self, last: Segment | None) -> None:
        """Drop all segments behind one, or all; the newest first: what is left never has a gap.

        By the segment and not by its number: retention may take from the front meanwhile.
        """
        state = self._state
        while state.segments and state.segments[-1] is not last:
            await self._drop(state.segments[-1], self._maintenance.shortage.run)
            state.segments.pop()
            state.bases.pop()

    # -- from the beginning

    async def start_at(self, offset: int) -> None:
        """Drop everything; the log is empty then and begins at `offset`."""
        async with self._maintenance.lock:
            self._check()
            ceiling = min(offset, self._state.log_start_offset)
            await self._cut(ceiling, partial(self._start_at, offset))

    async def _start_at(self, offset: int) -> None:
        state = self._state
        rises = offset > state.log_start_offset
        if rises:
            # First: a crash would else leave less than what was committed, and recovery drops a log
            # that ends before its start as well.
            await self._save_log_start(offset)
        await self._drop_behind(None)
        if not rises:
            await self._save_log_start(offset)
        state.epochs.truncate_to(Offset(0))
        state.last_epoch = state.epochs.latest
        self._maintenance.note_epoch()
        await self._maintenance.save_epochs()
        segment = state.begin_segment(offset)
        segment.open_with(await self._maintenance.shortage.run(segment.create_file))
        state.restart_at(offset)
        self._flusher.pending.clear()
        self._flusher.pending.append(segment)
        self._flusher.stop_waiting()
        self._reader.forget(0)
        state.end_flush_waits()

    # -- at the start

    async def trim_to(self, offset: int, cut_count: int) -> None:
        """Raise the log start offset, and drop the segments that lie wholly below it.

        Decided after so many cuts: what came in since a later one was not meant.
        """
        state = self._state
        shortage = self._maintenance.shortage
        is_locked = False
        while not is_locked:
            if shortage.is_for_space:
                async with shortage.gate:
                    if shortage.is_for_space:
                        await self._make_room(offset, cut_count)
                        return
            # Whoever trims many logs must not wait for one.
            shortage.check()
            is_locked = await shortage.lock_unless_short()
        try:
            self._check()
            if offset <= state.log_start_offset:
                return
            state.check_trim(offset)  # its end may have been cut meanwhile
            state.check_history(offset, cut_count)
            try:
                await self._trim(offset, partial(shortage.run, for_space=False))
            except OSError as error:
                state.fail(error)
                raise KafkaStorageError(f"{state.topic_partition}: {error}") from error
        finally:
            self._maintenance.lock.release()

    async def _make_room(self, offset: int, cut_count: int) -> None:
        """Trim while a job of this log waits for space: only what is sealed, so in nobody's way."""
        state = self._state
        self._check()
        if offset <= state.log_start_offset:
            return
        state.check_history(offset, cut_count)
        if state.cut_ceiling is not None and offset > state.cut_ceiling:
            # The job that waits is a cut: the log must not begin behind the end that it gets.
            raise KafkaStorageError(
                f"{state.topic_partition} is being cut back to {state.cut_ceiling}"
            )
        try:
            await self._trim(offset, state.services.engine.run, is_sealed_only=True)
        except OSError as error:
            state.fail_read(error)
            raise KafkaStorageError(f"{state.topic_partition}: {error}") from error
        self._maintenance.shortage.try_again()

    async def _trim(self, offset: int, run: Run, *, is_sealed_only: bool = False) -> None:
        state = self._state
        spare = state.services.spare
        try:
            await run(partial(_save_with, spare, partial(self._replace_log_start, offset)))
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            # Nothing has changed; who wants this will ask again.
            raise KafkaStorageError(f"The disk of {state.topic_partition} is full") from error
        state.raise_start(offset)
        if state.epochs.trim_to(Offset(offset)):
            self._maintenance.note_epoch()
        while len(state.segments) > 1 and state.bases[1] <= offset:
            if is_sealed_only and state.segments[0].state is not SegmentState.SEALED:
                break
            segment = state.segments.pop(0)
            state.bases.pop(0)
            if segment in self._flusher.pending:
                self._flusher.pending.remove(segment)
            await self._drop(segment, run)
            state.services.metrics.segments_deleted_total += 1
        if spare is not None:
            # At once, before somebody else takes what became free.
            await run(spare.keep)

    def _replace_log_start(self, offset: int) -> None:
        data = encode_log_start(Offset(offset))
        checkpoint_files.replace_file(self._state.directory, LOG_START, data)

    async def _save_log_start(self, offset: int) -> None:
        # On a full disk only what is dropped afterwards may become free.
        save = partial(self._replace_log_start, offset)
        await self._maintenance.shortage.run(partial(_save_with, self._state.services.spare, save))

    async def _drop(self, segment: Segment, run: Run) -> None:
        """Remove a segment's files; who reads it may go on."""
        segment.drop()
        self._state.services.open_segments.discard(segment)
        segment.tail.forget_all()
        await run(partial(remove_segment, segment.directory, segment.base_offset))
        self._maintenance.unused.close_soon(segment)


def remove_segment(directory: Directory, base_offset: int) -> None:
    """Remove the files of a segment for good. Blocks."""
    for suffix in SUFFIXES:
        name = file_name(base_offset, suffix)
        if directory.exists(name):
            directory.unlink(name)
    directory.sync()


def _save_with(spare: EmergencySpace | None, save: Callable[[], None]) -> None:
    """Save, with the help of the spare space where there is no other. Blocks."""
    try:
        save()
    except OSError as error:
        if error.errno not in NO_SPACE or spare is None:
            raise
        spare.give()
        save()


def _sync_all(files: list[File]) -> None:
    for file in files:
        file.sync()


def _cut_file(file: File, position: int) -> bytes:
    """Cut the file durably; return the bytes of the last partial block. Blocks."""
    file.truncate(position)
    file.sync()
    length = position % ALIGNMENT
    return file.pread(length, position - length) if length else b""
