"""One partition with a replica here: checks before the append, acknowledgement after it.

Until replication exists the high watermark is what the log's flush policy promises, and an ISR of
more than this node is not written to: its other members would lead without the records. Nothing is
acknowledged before it is promised, nor by a node that is no longer surely the leader: whether it is
one is decided outside (`lead`, `follow`), and the time at which its lease ends is looked at with
each acknowledgement. Owner: the event loop's thread; made by `dlogd.replication.manager`.
"""

import asyncio
import math
from collections import deque
from dataclasses import dataclass

from dlog.batch.header import BATCH_STRUCT, HEADER_BYTES, patch_log_append_time, verify_crc
from dlog.errors import (
    CorruptMessageError,
    FencedLeaderEpochError,
    InvalidRecordError,
    InvalidTimestampError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    PolicyViolationError,
    RecordTooLargeError,
    RequestTimedOutError,
    TransactionalIdAuthorizationFailedError,
    UnknownLeaderEpochError,
    WireError,
)
from dlog.types import NO_EPOCH, LeaderEpoch, Offset, TopicId, TopicPartition
from dlogd.clock import Clock
from dlogd.replication.lease import ENDLESS, Lease
from dlogd.replication.producers import ProducerStates
from dlogd.replication.waiters import AckWaiter, Drainable, FetchWaiter
from dlogd.storage.log import PartitionLog

_CODEC_MASK = 0x07
_CODEC_MAX = 4  # zstd
_TRANSACTIONAL = 0x10
RECORD_BYTES_MIN = 7
"""A record of nothing: length, attributes, two deltas, null key, null value, no headers."""
EXPANSION_MAX = 64
"""Records in a byte of compressed batch; a hundred thousand empty ones in zstd come to 1.7."""
_CONTROL = 0x20

Appended = tuple[int, int, int]
"""Base offset, end offset (exclusive), log append time in ms or -1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSettings:
    """What a topic's configs mean for appends."""

    batch_bytes_max: int
    acks_floor: int
    """0, 1 or -1."""
    stamps_append_time: bool
    timestamp_before_ms_max: int
    timestamp_after_ms_max: int


class Partition:
    """A partition with a replica on this node; led here while `closed` is None.

    Invariant: log_start_offset <= high_watermark <= log_end_offset; the watermark never moves back.
    """

    __slots__ = (
        "_acks",
        "_clock",
        "_fetches",
        "_lease",
        "_loop",
        "_timer",
        "_timer_at_s",
        "appended_bytes",
        "appended_records",
        "closed",
        "high_watermark",
        "is_ended",
        "isr_count",
        "leader_epoch",
        "log",
        "min_isr",
        "producers",
        "settings",
        "topic_id",
        "topic_partition",
        "unsnapshotted_bytes",
    )

    def __init__(
        self,
        log: PartitionLog,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        producers: ProducerStates,
        settings: PartitionSettings,
        leader_epoch: LeaderEpoch = NO_EPOCH,
        lease: Lease = ENDLESS,
    ) -> None:
        """It is led, by an ISR of this node alone, until somebody says otherwise."""
        self.log = log
        self.topic_partition: TopicPartition = log.topic_partition
        self.topic_id: TopicId = log.topic_id
        self.producers = producers
        self.settings = settings
        self.leader_epoch = leader_epoch
        self.high_watermark: Offset = log.promised_offset
        self.closed: WireError | None = None
        """Why nobody is served."""
        self.is_ended = False
        """Whether that is for ever."""
        self.isr_count = self.min_isr = 1
        self.appended_bytes = 0
        self.appended_records = 0
        # Appended since the producer state was written last.
        self.unsnapshotted_bytes = 0
        self._loop = loop
        self._clock = clock
        self._lease = lease
        self._acks: deque[tuple[int, float, AckWaiter, int]] = deque()
        self._fetches: dict[FetchWaiter, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = math.inf
        log.on_promised = self.on_promised

    def check_serving(self, current_leader_epoch: int = -1) -> None:
        """Raise when this node may not serve the partition, or the caller's epoch is another.

        The epoch comes first, as with Kafka: who has an old one asks for metadata anyway.
        """
        if self.is_ended or self.log.failed is not None:
            error = self.closed or self.log.failed
            assert error is not None
            raise error.with_traceback(None)
        if current_leader_epoch != -1 and current_leader_epoch != self.leader_epoch:
            if current_leader_epoch < self.leader_epoch:
                raise FencedLeaderEpochError(f"The leader epoch is {self.leader_epoch}")
            raise UnknownLeaderEpochError(f"The leader epoch is only {self.leader_epoch}")
        if self.closed is not None:
            raise self.closed.with_traceback(None)

    def lead(self, leader_epoch: LeaderEpoch, isr_count: int, min_isr: int) -> None:
        """Serve clients in `leader_epoch`; it and the ISR are those of the image."""
        assert not self.is_ended
        if leader_epoch != self.leader_epoch and self._acks:
            # What was appended in an earlier epoch may be gone in this one (rule 2.11).
            self._fail_waiting(NotLeaderOrFollowerError("The leader epoch has changed"))
        self.leader_epoch, self.isr_count, self.min_isr = leader_epoch, isr_count, min_isr
        if self.closed is not None:
            self.closed = None
            self.high_watermark = max(self.high_watermark, self.log.promised_offset)

    def follow(self, leader_epoch: LeaderEpoch, why: WireError) -> None:
        """Serve nobody until `lead`; whoever waits hears `why`."""
        assert not self.is_ended
        was_leading = self.closed is None
        self.leader_epoch, self.closed = leader_epoch, why
        if was_leading:
            self._fail_waiting(why)
            self.wake_fetches()

    def _fail_waiting(self, error: WireError) -> None:
        self._disarm()
        entries = list(self._acks)
        self._acks.clear()
        self._settle(entries, error)

    def append_as_leader(
        self, buffer: bytearray, start: int, end: int, acks: int
    ) -> Appended | None:
        """Check one batch and append a copy of it; None when there is no append memory now.

        Then the caller waits by `log.when_writable`. A batch that its producer has sent before is
        not appended again: the old offsets are returned. Raises WireError when the batch is
        refused; nothing was changed then.
        """
        error = self.closed or self.log.failed
        if error is not None:
            raise error.with_traceback(None)
        settings = self.settings
        fields = self._check_batch(buffer, start, end)
        if self.isr_count < self.min_isr and (acks == -1 or settings.acks_floor == -1):
            raise NotEnoughReplicasError(
                f"min.insync.replicas is {self.min_isr}, {self.isr_count} in sync"
            )
        if self.isr_count > 1:
            if self._clock.now_us() >= self._lease.valid_until_us:
                raise self._lease_ended()
            raise PolicyViolationError(
                "Records are not replicated yet, and another node could lead without them: use a"
                " topic with replication factor 1"
            )
        producer_id = fields[9]
        if producer_id >= 0:
            known = self.producers.check(producer_id, fields[10], fields[11], fields[12])
            if known is not None:
                return known[0], known[1] + 1, known[2]
        append_time_ms = -1
        if settings.stamps_append_time:
            append_time_ms = self._clock.timestamp_ms()
            patch_log_append_time(buffer, start, end - start, append_time_ms)
            fields = BATCH_STRUCT.unpack_from(buffer, start)
        log = self.log
        base_offset = log.append(
            memoryview(buffer)[start:end], fields, leader_epoch=self.leader_epoch
        )
        if base_offset is None:
            return None
        end_offset = base_offset + fields[6] + 1
        if producer_id >= 0:
            self.producers.update(
                producer_id,
                fields[10],
                fields[11],
                fields[12],
                base_offset,
                end_offset - 1,
                append_time_ms,
                self._clock.timestamp_ms(),
            )
        self.appended_bytes += end - start
        self.unsnapshotted_bytes += end - start
        self.appended_records += fields[12]
        return base_offset, end_offset, append_time_ms

    def _check_batch(self, buffer: bytearray, start: int, end: int) -> tuple[int, ...]:
        size = end - start
        if size > self.settings.batch_bytes_max:
            raise RecordTooLargeError(
                f"A batch of {size} bytes is over max.message.bytes={self.settings.batch_bytes_max}"
            )
        if size < HEADER_BYTES:
            raise CorruptMessageError(f"{size} bytes are no record batch")
        fields: tuple[int, ...] = BATCH_STRUCT.unpack_from(buffer, start)
        if fields[3] != 2:
            raise InvalidRecordError(f"Message format {fields[3]} is not served, only 2")
        if fields[1] + 12 != size:
            raise InvalidRecordError("A produce request holds exactly one batch per partition")
        count = fields[12]
        if count < 1 or fields[6] != count - 1:
            raise InvalidRecordError(
                f"record count {count} and last offset delta {fields[6]} do not fit"
            )
        self._check_attributes(fields)
        if not verify_crc(buffer, start, size):
            raise CorruptMessageError("The checksum of the batch does not fit its bytes")
        self._check_timestamps(fields)
        return fields

    def _check_attributes(self, fields: tuple[int, ...]) -> None:
        attributes = fields[5]
        # Offsets are given out by this count; of compressed records only a bound is known.
        bytes_each = RECORD_BYTES_MIN if attributes & _CODEC_MASK == 0 else 1 / EXPANSION_MAX
        if fields[12] * bytes_each > fields[1]:
            raise InvalidRecordError(f"{fields[12]} records do not fit into {fields[1]} bytes")
        if attributes & _CODEC_MASK > _CODEC_MAX:
            raise InvalidRecordError(f"Compression {attributes & _CODEC_MASK} is unknown")
        if attributes & _CONTROL:
            raise InvalidRecordError("Clients may not write control batches")
        if attributes & _TRANSACTIONAL:
            raise TransactionalIdAuthorizationFailedError("Transactions are not served yet")
        if fields[9] >= 0 and (fields[10] < 0 or fields[11] < 0):
            raise InvalidRecordError("An idempotent batch without epoch or sequence")

    def _check_timestamps(self, fields: tuple[int, ...]) -> None:
        settings = self.settings
        if settings.stamps_append_time:
            return
        max_timestamp_ms = fields[8]
        if max_timestamp_ms < -1:
            raise InvalidTimestampError(f"Timestamp {max_timestamp_ms} ms is impossible")
        if max_timestamp_ms == -1:
            return
        now_ms = self._clock.timestamp_ms()
        if max_timestamp_ms > now_ms + settings.timestamp_after_ms_max:
            raise InvalidTimestampError(
                f"Timestamp {max_timestamp_ms} ms is further ahead than"
                f" message.timestamp.after.max.ms={settings.timestamp_after_ms_max}"
            )
        if fields[7] < now_ms - settings.timestamp_before_ms_max:
            raise InvalidTimestampError(
                f"Timestamp {fields[7]} ms is older than"
                f" message.timestamp.before.max.ms={settings.timestamp_before_ms_max}"
            )

    def wait(self, end_offset: int, timeout_ms: int, waiter: AckWaiter, index: int = 0) -> None:
        """Call `waiter.on_acked` when all below `end_offset` is promised, or cannot be."""
        deadline_s = self._loop.time() + timeout_ms / 1000
        self._acks.append((end_offset, deadline_s, waiter, index))
        if deadline_s < self._timer_at_s:
            self._arm(deadline_s)

    def acknowledge(self, waiter: AckWaiter, index: int = 0) -> None:
        """Call `waiter.on_acked` for what is promised already; its owner drains."""
        now_us = self._clock.now_us()
        if now_us < self._lease.valid_until_us:
            waiter.on_acked(index, None, now_us)
        else:
            waiter.on_acked(index, self._lease_ended(), now_us)

    @staticmethod
    def _lease_ended() -> WireError:
        # Somebody else may lead already (rule 2.10), whatever this node has heard.
        return NotLeaderOrFollowerError("The lease of this node has ended")

    def _arm(self, deadline_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_s = deadline_s
        self._timer = self._loop.call_at(deadline_s, self._on_deadline)

    def _on_deadline(self) -> None:
        self._disarm()
        now_s = self._loop.time()
        expired = [entry for entry in self._acks if entry[1] <= now_s]
        if expired:
            self._acks = deque(entry for entry in self._acks if entry[1] > now_s)
            error = RequestTimedOutError("The batch was appended but not yet acknowledged in time")
            self._settle(expired, error)
        if self._acks:
            self._arm(min(self._timer_at_s, *(entry[1] for entry in self._acks)))

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._timer_at_s = math.inf

    def _settle(
        self, entries: list[tuple[int, float, AckWaiter, int]], error: WireError | None
    ) -> None:
        touched: dict[Drainable, None] = {}
        now_us = self._clock.now_us()
        if now_us >= self._lease.valid_until_us and error is None:
            error = self._lease_ended()
        for _, _, waiter, index in entries:
            replies = waiter.on_acked(index, error, now_us)
            if replies is not None:
                touched[replies] = None
        for replies in touched:
            replies.drain()

    def on_promised(self, log: PartitionLog) -> None:
        """The log's promise moved, or the log failed: settle who waits."""
        error = self.closed or log.failed
        acks = self._acks
        if error is not None:
            entries = list(acks)
            acks.clear()
            self._settle(entries, error)
        else:
            promised = log.promised_offset
            assert promised >= self.high_watermark, "a high watermark never moves back"
            self.high_watermark = promised
            if acks:
                ready = []
                while acks and acks[0][0] <= promised:
                    ready.append(acks.popleft())
                self._settle(ready, None)
        if self._fetches:
            self.wake_fetches()

    @property
    def waiting_count(self) -> int:
        """How many produce requests wait for their acknowledgement."""
        return len(self._acks)

    def add_fetch(self, waiter: FetchWaiter, number: int) -> None:
        """Call `waiter.on_data(number)` at every advance until it is removed."""
        self._fetches[waiter] = number

    def remove_fetch(self, waiter: FetchWaiter) -> None:
        """Forget `waiter`."""
        self._fetches.pop(waiter, None)

    def wake_fetches(self) -> None:
        """Let every waiting fetch look again."""
        for waiter, number in list(self._fetches.items()):
            waiter.on_data(number)

    def close(self, error: WireError | None = None) -> None:
        """Serve no more; whoever waits hears `error`."""
        self.closed = error or NotLeaderOrFollowerError("The partition is closing on this node")
        self.is_ended = True
        self._fail_waiting(self.closed)
        self.wake_fetches()
