"""Learner of true timestamps of segments, from records and not from heads of batches.

A closed segment is read once, and its time index is replaced by one that is made of records. Of
others what was learned stays in memory (`dlogd.storage.segment.record_timestamps`). One batch at a
time is decompressed, by a work thread of the disk's engine, as the searches of the same directory
do.

A batch whose records cannot be decoded counts with the largest timestamp in its head. Damage is
passed over; what was learned around it stays in memory, because the place may be mended.
Owner: the event loop's thread; one for each log.
"""

import asyncio
import errno
import logging
from array import array
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from dlog.errors import KafkaStorageError, WireError
from dlogd.storage.io.checkpoint_files import TEMPORARY, remove_file
from dlogd.storage.io.errnos import SHORTAGES
from dlogd.storage.log.log_jobs import LogJobs
from dlogd.storage.log.log_reader import LogReader
from dlogd.storage.log.log_state import LogState
from dlogd.storage.log.segment_opener import guarded
from dlogd.storage.segment import time_index
from dlogd.storage.segment.batch_times import Looked, Marking, look
from dlogd.storage.segment.index_files import load_entries, replace_entries
from dlogd.storage.segment.record_timestamps import INTERVAL_BYTES, TrueTimes
from dlogd.storage.segment.segment import Segment, SegmentState
from dlogd.storage.segment.segment_names import TDX, file_name
from dlogd.storage.segment.sparse_index import EntryHeader, OpenedEntries

log = logging.getLogger(__name__)

PIECE_BYTES = 256 * 1024
"""Read at once; a batch that is larger is read as a whole."""

Read = Callable[[int, int], Awaitable[bytes]]
"""`read(position, length)`: bytes of a segment."""


class TimestampLearner:
    """What one log knows of the timestamps of its records, and how it comes to know more."""

    __slots__ = ("_lock", "_maintenance", "_reader", "_state")

    def __init__(self, state: LogState, reader: LogReader, maintenance: LogJobs) -> None:
        self._state = state
        self._reader = reader
        self._maintenance = maintenance
        self._lock = asyncio.Lock()  # one segment of a log at a time

    def newest_ms(self, segment: Segment) -> int | None:
        """Return the largest timestamp of the segment's records; None: it is not known."""
        return segment.known_times.newest_ms(segment.tail.end, segment.max_timestamp_ms)

    def older_than(self, segment: Segment, timestamp_ms: int) -> int:
        """Return an offset below which no record of an open segment is that new or newer."""
        known = segment.known_times
        offset = None
        if known.is_true or not known.is_claimed:
            offset = segment.times.older_than(timestamp_ms)
        elif known.learned is not None:
            offset = known.learned.older_than(timestamp_ms)
        return segment.base_offset if offset is None else offset

    async def learn(
        self, segment: Segment, until_ms: int | None = None, *, owner: str = ""
    ) -> None:
        """Learn what the segment holds at present.

        `until_ms`: of one that is not closed only up to a record of that time, if there is one.
        `owner`: who asks; owners take turns at unpacking.
        Raises KafkaStorageError when the segment was cut or dropped meanwhile.
        """
        async with self._lock:
            if self.newest_ms(segment) is not None:
                return
            if segment.state is SegmentState.SEALED:
                await self._learn_closed(segment, owner)
            else:
                await self._learn_open(segment, until_ms, owner)

    def remember_soon(self, segment: Segment) -> None:
        """Learn in the background what a segment holds that was just closed."""
        if not segment.known_times.is_true:
            name = f"learn timestamps {segment.path}"
            self._state.services.tasks.spawn(name, self._remember_patiently(segment))

    async def _remember_patiently(self, segment: Segment) -> None:
        """Do as `remember` in the turn of the data directory, for at most half of the time."""
        services = self._state.services
        async with services.remembering:
            begun_s = services.loop.time()
            try:
                if self._state.is_working:
                    await self.remember(segment)
            except (OSError, WireError) as error:
                log.info(
                    "Could not read timestamps of a segment file=%s reason=%s", segment.path, error
                )
            await asyncio.sleep(services.loop.time() - begun_s)

    async def remember(self, segment: Segment) -> None:
        """Learn what a closed segment holds, and let its time index say so, unless it does.

        Raises KafkaStorageError as `learn` does.
        """
        async with self._lock:
            if segment.state is SegmentState.SEALED and not segment.known_times.is_true:
                await self._learn_closed(segment, "")

    # -- a segment that is written

    async def _learn_open(self, segment: Segment, until_ms: int | None, owner: str) -> None:
        known = segment.known_times
        if known.learned is None:
            known.learn(TrueTimes(segment.base_offset))
        times = known.learned
        assert times is not None
        end_position, cut_count = segment.tail.end, segment.cut_count
        await self._reader.open(segment)
        read = partial(self._reader.bytes_of, segment)
        segment.acquire()  # it may be closed meanwhile, and its files stay open
        try:
            while times.position < end_position:
                if until_ms is not None and times.newest_ms >= until_ms:
                    return
                await self._step(segment, times, end_position, cut_count, read, owner)
        finally:
            segment.release()

    # -- a closed segment

    async def _learn_closed(self, segment: Segment, owner: str) -> None:
        await self._reader.open(segment)
        segment.acquire()  # so that its files stay open
        try:
            cut_count = segment.cut_count
            load = partial(_load_offsets, segment)
            offsets = await guarded(self._state, self._state.services.engine.run(load), segment)
            self._check(segment, cut_count)
            times = TrueTimes(segment.base_offset, Marking(INTERVAL_BYTES, offsets))
            while times.position < segment.tail.end:
                read = partial(self._read_closed, segment)
                await self._step(segment, times, segment.tail.end, cut_count, read, owner)
            if not await self._remember(segment, times, offsets, cut_count):
                segment.known_times.learn(times.thinned())
        finally:
            segment.release()

    async def _read_closed(self, segment: Segment, position: int, length: int) -> bytes:
        """Read from the file; nothing from a block that cannot be read, as in the scrub."""
        try:
            return await self._reader.bytes_in_file(segment, position, length)
        except OSError as error:
            if error.errno != errno.EIO:
                raise self._state.fail_read(error) from error
            return b""

    async def _remember(
        self, segment: Segment, times: TrueTimes, offsets: "array[int]", cut_count: int
    ) -> bool:
        """Replace the time index by what was learned; False where that is not to be, or full."""
        state = self._state
        entries = await state.services.engine.run(partial(times.entries, offsets))
        shortage = self._maintenance.shortage
        if entries is None or times.is_damaged or not await shortage.lock_unless_short():
            return False
        try:
            self._check(segment, cut_count)
            if len(entries) != segment.times.settled or not segment.times.is_open:
                return False
            header = replace(segment.headers()[1], is_true=True, is_decoded=times.is_whole)
            store = partial(_store, segment, header, entries)
            try:
                opened = await state.services.engine.run(store)
            except OSError as error:
                if error.errno in SHORTAGES:
                    return False
                raise state.fail_read(error) from error
            old = segment.times.detach()
            segment.remember_times(opened, times.newest_ms, is_decoded=times.is_whole)
        finally:
            self._maintenance.lock.release()
        if old is not None:
            await state.services.engine.run(old.close)
        return True

    # -- one piece

    async def _step(
        self,
        segment: Segment,
        times: TrueTimes,
        end_position: int,
        cut_count: int,
        read: Read,
        owner: str,
    ) -> None:
        """Learn what the next piece of the segment says."""
        position = times.position
        room = end_position - position
        async with self._state.services.unpacking.held(owner):
            length = min(PIECE_BYTES, room)
            found = await self._look(await read(position, length), times, end_position)
            if found.position == position and length < found.wanted_bytes <= room:
                data = await read(position, found.wanted_bytes)
                found = await self._look(data, times, end_position)
        self._check(segment, cut_count)
        times.take(found)
        if found.is_bad or found.position == position:
            self._pass_over(segment, times, end_position)

    async def _look(self, data: bytes, times: TrueTimes, end_position: int) -> Looked:
        work = partial(look, data, times.begin(), end_position, times.marking)
        return await guarded(self._state, self._state.services.engine.run(work))

    def _pass_over(self, segment: Segment, times: TrueTimes, end_position: int) -> None:
        """Go on where the next entry of the index says that a batch begins."""
        following = segment.index.after_position(times.position)
        if following is None or following[1] >= end_position:
            following = (self._state.end_offset_of(segment), end_position)
        times.pass_over(*following)

    def _check(self, segment: Segment, cut_count: int) -> None:
        if (
            segment.cut_count != cut_count
            or segment.state is SegmentState.DROPPED
            or not self._state.is_working
        ):
            raise KafkaStorageError(f"{segment.path} has changed meanwhile")


def _load_offsets(segment: Segment) -> "array[int]":
    """Return the offsets of all entries of a closed segment's time index. Blocks."""
    header = segment.headers()[1]
    name = file_name(segment.base_offset, TDX)
    loaded = load_entries(segment.directory, name, header, time_index.ENTRY)
    entries = [] if loaded is None else loaded.entries[: loaded.vouched]
    return array("Q", [segment.base_offset + relative for _, relative in entries])


def _store(segment: Segment, header: EntryHeader, entries: list[tuple[int, int]]) -> OpenedEntries:
    """Replace the time index of a closed segment, and open the new one. Blocks."""
    directory, name = segment.directory, file_name(segment.base_offset, TDX)
    try:
        return replace_entries(directory, name, header, time_index.ENTRY, entries)
    except OSError:
        # On a full disk, which others may want to write to.
        with suppress(OSError):
            remove_file(directory, name + TEMPORARY)
        raise
