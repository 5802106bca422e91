"""Log of one partition: append, read, truncate, trim, roll, flush.

    plog = await PartitionLog.open(topic_partition, topic_id, directory, config, services, clean=no)
    base_offset = plog.append(batch, fields, leader_epoch=3)     # None: no memory, when_writable
    read = plog.read(offset, max_bytes, plog.promised_offset)    # None: await plog.locate(offset)

An append reads the head of a batch and patches two fields of the copy. Owner: the loop's thread.
"""

import logging
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Self

from dlog.batch import header
from dlog.batch.header import BATCH_STRUCT, LOG_APPEND_TIME_BIT, BatchHeader, follows_on
from dlog.batch.record_times import CLAIMS_MASK, age_of
from dlog.errors import (
    InvalidRecordError,
    KafkaStorageError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    WireError,
)
from dlog.types import LeaderEpoch, Offset, TopicId, TopicPartition
from dlogd.storage.io.files import Directory, close_files
from dlogd.storage.log.flusher import Flusher
from dlogd.storage.log.header_replay import headers_from
from dlogd.storage.log.log_config import FLUSH_BYTES_MAX, LogConfig
from dlogd.storage.log.log_jobs import LogJobs
from dlogd.storage.log.log_reader import LogReader, Read
from dlogd.storage.log.log_recovery import recover
from dlogd.storage.log.log_state import LogServices, LogState
from dlogd.storage.log.recovered_state import adopt
from dlogd.storage.log.timestamp_lookup import TimestampOffset, TimestampSearch
from dlogd.storage.log.truncation import Truncation
from dlogd.storage.segment.offset_index import RELATIVE_OFFSET_MAX
from dlogd.storage.segment.segment import Segment

log = logging.getLogger(__name__)


class PartitionLog(LogState):
    """One partition's log on one data directory. Life: `open`, then `close` or `delete` once.

    `log_start_offset`, `log_end_offset`, `flushed_offset` (on stable storage), `promised_offset`
    (what the flush policy promises: survives the process, and with `always` a power cut), `failed`
    and `config` are plain attributes to read. Set `on_promised` and `on_failure` after opening.
    `refusal` is the owner's to set: appends raise it until it is None again.
    """

    __slots__ = (
        "_cutter",
        "_defer",
        "_flusher",
        "_interval_bytes",
        "_maintenance",
        "_metrics",
        "_refused_bytes",
        "_run_flusher",
        "_segment_bytes",
        "reader",
        "timestamps",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        directory: Directory,
        config: LogConfig,
        services: LogServices,
    ) -> None:
        super().__init__(topic_partition, topic_id, directory, config, services)
        self._metrics = services.metrics
        self._defer = services.engine.defer
        self._maintenance = LogJobs(self, lambda: self._flusher.kick())
        self._flusher = Flusher(
            self,
            on_complete=self._maintenance.seal_soon,
            on_progress=self._maintenance.on_progress,
        )
        self._run_flusher = self._flusher.run
        self.reader = LogReader(self, self._maintenance)
        self.timestamps = TimestampSearch(self, self.reader, self._maintenance)
        self._cutter = Truncation(self, self._flusher, self._maintenance, self.reader)
        self._segment_bytes = config.segment_bytes
        self._interval_bytes = min(config.index_interval_bytes, FLUSH_BYTES_MAX)
        self._refused_bytes = 0

    # -- life

    @classmethod
    async def open(
        cls,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        directory: Directory,
        config: LogConfig,
        services: LogServices,
        *,
        clean: bool,
        stored_end: int = 0,
        on_progress: Callable[[int], None] = lambda _: None,
    ) -> Self:
        """Recover the log in `directory`; an empty directory becomes an empty log.

        `clean`, `stored_end`: see `recover`. `on_progress` hears of bytes scanned, from another
        thread. Raises KafkaStorageError for damaged data, OSError.
        """
        opened = cls(topic_partition, topic_id, directory, config, services)
        work = partial(recover, directory, config, clean=clean, stored_end=stored_end)
        adopt(opened, await services.engine.run(partial(work, on_progress=on_progress)))
        opened._flusher.pending.append(opened.active)
        opened._maintenance.note_epoch()
        opened.on_sealed = opened.timestamps.learner.remember_soon
        return opened

    def reconfigure(self, config: LogConfig) -> None:
        """Take over new settings; a new way of writing begins with a new segment."""
        old, self.config = self.config, config
        self._segment_bytes = config.segment_bytes
        self._interval_bytes = min(config.index_interval_bytes, FLUSH_BYTES_MAX)
        if not self.is_working:
            return
        self.active.limit_age(config.segment_ms)
        if (old.durable, old.direct_writes) != (config.durable, config.direct_writes):
            self.change_policy()

    def change_policy(self) -> None:
        """Write what comes next as the settings say; a cut that is under way does so in its end."""
        segment, config = self.active, self.config
        if self.cut_ceiling is not None or not self.is_working:
            return
        if (segment.durable, segment.direct) == (config.durable, config.direct_writes):
            return
        if segment.tail.end:
            self.roll()
        else:
            self._maintenance.change_policy(segment)

    async def close(self, clean: bool = True) -> None:
        """End the log; with `clean` all of it is durable and tidy on return.

        Raises KafkaStorageError when that was not possible; the log is closed all the same.
        """
        if self.closed:
            return
        self.hold("closing", KafkaStorageError(f"{self.topic_partition} is closing"))
        self._maintenance.shortage.hurry()
        failure: WireError | None = None
        if clean and self.failed is None:
            try:
                await self._finish()
            except WireError as error:
                failure = error
        await self._end()
        if (failure := failure or (self.failed if clean else None)) is not None:
            raise failure.with_traceback(None)

    async def _finish(self) -> None:
        await self.flush()
        async with self._maintenance.lock:
            if self.failed is not None:
                return
            await self._flusher.freeze()
            segment = self.active
            try:
                if segment.prepared or segment.space.allocated_end > segment.tail.end:
                    await self._maintenance.finish(segment)
            except OSError as error:
                self.fail(error)

    async def _end(self) -> None:
        self.closed = True
        self._flusher.stop()
        self._maintenance.stop()
        self.end_waiting(KafkaStorageError(f"{self.topic_partition} was closed"))
        async with self._maintenance.lock:
            await self._flusher.freeze()
            self.give_memory_back()
            files = []
            for segment in self.segments:
                self.services.open_segments.discard(segment)
                if segment.is_acquired:
                    self._maintenance.unused.close_soon(segment)
                else:
                    files += segment.detach_files()
            if files:
                await self.services.engine.run(partial(close_files, files))

    def give_up(self) -> None:
        """The disk hangs, and the log has failed by that: wait for nothing that is in flight."""
        self._flusher.give_up()

    def give_memory_back(self) -> None:
        self._flusher.give_memory_back()

    async def delete(self) -> None:
        """End the log without flushing; the caller removes the directory.

        Segments that readers hold stay readable until they are released.
        """
        await self.close(clean=False)
        for segment in self.segments:
            segment.drop()

    # -- appending

    def append(
        self, batch: memoryview, fields: tuple[int, ...], *, leader_epoch: LeaderEpoch
    ) -> Offset | None:
        """Copy one checked batch to the end; return its base offset, patched into the copy.

        `fields` are the head of the batch by BATCH_STRUCT; its base offset and leader epoch do not
        matter. None: no append memory, retry by `when_writable`. Raises WireError when refused.
        """
        if self.blocked is not None or self.refusal is not None:
            self._refuse()
        segment = self.active
        tail = segment.tail
        position = tail.end
        size = len(batch)
        base_offset = self.log_end_offset
        next_offset = base_offset + fields[header.LAST_DELTA] + 1
        timestamp_ms = fields[header.MAX_TIME]
        if position and (
            position + size > self._segment_bytes
            or timestamp_ms > segment.roll_at_ms
            or next_offset - segment.base_offset > RELATIVE_OFFSET_MAX
        ):
            self.roll()
            segment = self.active
            tail = segment.tail
            position = 0
        if not tail.append(batch, size, base_offset, leader_epoch):
            self._wait_for_memory(size)
            return None
        if position - segment.indexed_position >= self._interval_bytes:
            segment.add_entry(base_offset, position, position + size)
        if timestamp_ms > segment.max_timestamp_ms:
            segment.set_newest(timestamp_ms)
        if 0 < fields[header.ATTRIBUTES] & CLAIMS_MASK < LOG_APPEND_TIME_BIT:
            segment.known_times.claim()
        if leader_epoch != self.last_epoch:
            self._begin_epoch(leader_epoch, base_offset)
        if not segment.prepared:
            self._first_append(segment, position, fields)
        self.extend_to(next_offset)
        flusher = self._flusher
        if not flusher.busy:
            flusher.busy = True
            self._defer(self._run_flusher)
        metrics = self._metrics
        metrics.append_batches_total += 1
        metrics.append_bytes_total += size
        metrics.append_records_total += fields[header.RECORD_COUNT]
        return base_offset

    def append_verbatim(self, batch: memoryview) -> Offset | None:
        """Append a batch as its leader made it, at `log_end_offset`, as `append` does."""
        fields = BATCH_STRUCT.unpack_from(batch)
        if not follows_on(fields, self.log_end_offset):
            raise InvalidRecordError(
                f"{self.topic_partition} ends at {self.log_end_offset}, not at"
                f" {fields[header.BASE_OFFSET]}"
            )
        offset = self.append(batch, fields, leader_epoch=LeaderEpoch(fields[header.LEADER_EPOCH]))
        if not fields[header.ATTRIBUTES] & LOG_APPEND_TIME_BIT:
            self.active.known_times.claim()  # an older version may have led
        return offset

    def when_writable(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, in its turn, when an append that got None may be tried again."""
        self.services.memory.when_available(callback, self._refused_bytes)

    def _refuse(self) -> None:
        error = self.blocked or self.refusal
        assert error is not None
        if self.blocked is None:
            self._metrics.append_refusals_total += 1
        raise error.with_traceback(None)

    def _wait_for_memory(self, size: int) -> None:
        pool_bytes = self.services.memory.pool.total_bytes
        if size > pool_bytes // 2:
            raise RecordTooLargeError(
                f"A batch of {size} bytes needs more than half of append.memory.bytes={pool_bytes}"
            )
        self._metrics.append_waits_total += 1
        self._refused_bytes = size + self.active.tail.kept_bytes

    def _first_append(self, segment: Segment, position: int, fields: tuple[int, ...]) -> None:
        """A segment is appended to for the first time since it was made or opened."""
        if not position:
            segment.begin_age(age_of(fields), self.config.segment_ms)
        self._maintenance.prepare_soon(segment)

    def _begin_epoch(self, leader_epoch: LeaderEpoch, offset: Offset) -> None:
        if self.epochs.assign(leader_epoch, offset):
            self._maintenance.note_epoch()
        self.last_epoch = leader_epoch

    def roll(self) -> None:
        """Begin a new segment; appends go on at once. Not after an empty one, nor during a cut."""
        old = self.active
        if not old.tail.end or not self.is_working or self.cut_ceiling is not None:
            return
        old.end_at(self.log_end_offset)
        segment = self.begin_segment(self.log_end_offset)
        segment.expect(old.tail.end)
        self._flusher.pending.append(segment)
        self._maintenance.create_soon(segment)
        self._metrics.segments_rolled_total += 1
        self._flusher.kick()

    def maybe_roll(self, timestamp_ms: int) -> None:
        """Roll when the active segment has reached its age by the wall clock."""
        if self.is_working and timestamp_ms > self.active.roll_at_ms:
            self.roll()

    async def flush(self) -> None:
        """Return when all appended so far is on stable storage; raise WireError if not now."""
        if self._flusher.waits_for_space:
            raise self.blocked or KafkaStorageError(f"{self.topic_partition} cannot be written")
        end = self.log_end_offset
        if self.failed is None and self.flushed_offset < end:
            self._flusher.kick()
            if not self.active.durable or not self.segment_of(self.flushed_offset).durable:
                self.check_shortage()  # it would wait for the same lock
                self._maintenance.sync_soon()
        await self.flushed_to(end)

    def check_shortage(self) -> None:
        """Raise KafkaStorageError while a job of the log waits, for space or descriptors."""
        self._maintenance.shortage.check()

    # -- reading

    def read(
        self, offset: int, max_bytes: int, end_offset: int, *, minimum_one: bool = True
    ) -> Read | None:
        """Find whole batches below `end_offset`, as `LogReader.read` does; None: `locate` first."""
        return self.reader.read(offset, max_bytes, end_offset, minimum_one=minimum_one)

    async def locate(self, offset: int) -> tuple[Segment, int, int] | None:
        """Find segment, base offset, position of a batch: the next `read` there need not wait."""
        return await self.reader.locate(offset)

    async def offset_for_timestamp(
        self, timestamp_ms: int, owner: str = ""
    ) -> TimestampOffset | None:
        """Return the first record with this timestamp or a later one; owners take turns."""
        return await self.timestamps.first_at(timestamp_ms, owner)

    async def offset_of_max_timestamp(self, owner: str = "") -> TimestampOffset | None:
        """Return the first of the records with the largest timestamp in the log."""
        return await self.timestamps.first_newest(owner)

    def replay(self, offset: int) -> AsyncIterator[BatchHeader]:
        """Yield the heads of the batches that end after `offset`, of all that is written so far."""
        return headers_from(self, offset)

    # -- cutting

    async def truncate_to(self, offset: int) -> None:
        """Drop the batches that hold `offset` or more; durable on return.

        `log_end_offset` is then at most `offset`. Nobody may append meanwhile. Raises
        OffsetOutOfRangeError below `log_start_offset`, KafkaStorageError.
        """
        if offset >= self.log_end_offset:
            return
        if offset < self.log_start_offset:
            raise OffsetOutOfRangeError(
                f"{self.topic_partition} begins at {self.log_start_offset}, after {offset}"
            )
        if offset > self.flushed_offset or not self._flusher.waits_for_space:
            await self.flush()  # memory may hold the only copy of what stays
        await self.reader.locate(offset)
        await self._cutter.truncate_to(offset)

    async def start_at(self, offset: int) -> None:
        """Drop everything and begin anew, empty, at `offset`; durable on return."""
        await self._cutter.start_at(offset)

    async def trim_to(self, offset: int) -> None:
        """Make `offset` the log start offset unless it is beyond that; durable on return.

        Segments wholly below it are dropped. Raises OffsetOutOfRangeError beyond what is promised.
        """
        self.check_trim(offset)
        if offset <= self.log_start_offset:
            return
        if offset == self.log_end_offset:
            self.roll()  # so that the active segment can go as well
        cut_count = self.cut_count
        if offset > self.flushed_offset:
            await self.flush()
        await self._cutter.trim_to(offset, cut_count)
