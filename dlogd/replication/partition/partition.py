"""Partition with a replica on this node: leader or follower.

A leader checks before the append and acknowledges after it: acks=1 when its own log has promised,
acks=all when the high watermark has passed (`leader_state`). A follower appends what its leader
sends, verbatim, and never gives out an offset. Nothing is acknowledged by a node that is no longer
surely the leader: whether it is one is decided outside (`lead`, `follow`), and the time at which
its lease ends is looked at with each acknowledgement.
Owner: the event loop's thread; made by `dlogd.replication.replica_manager`.
"""

import asyncio
from collections.abc import Iterable

from dlog.batch.header import BATCH_STRUCT, patch_log_append_time, producer_of
from dlog.errors import (
    FencedLeaderEpochError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OffsetNotAvailableError,
    UnknownLeaderEpochError,
    WireError,
)
from dlog.types import NO_EPOCH, LeaderEpoch, NodeId, Offset, TopicId, TopicPartition
from dlogd.replication.partition.batch_validation import PartitionSettings, check_produced
from dlogd.replication.partition.fetch_waiters import FetchWaiters, Wakes
from dlogd.replication.partition.leader_state import (
    ALONE,
    FollowerProgress,
    Leadership,
    LeaderState,
)
from dlogd.replication.partition.lease import ENDLESS, Lease
from dlogd.replication.partition.pending_acks import PendingAcks, late_error
from dlogd.replication.partition.pending_trims import PendingTrims
from dlogd.replication.partition.producer_state import ProducerStates
from dlogd.replication.partition.waiters import AckWaiter, Reporter, Subscriber
from dlogd.runtime.clock import Clock
from dlogd.storage.log.partition_log import PartitionLog

Appended = tuple[int, int, int]
"""Base offset, end offset (exclusive), log append time in ms or -1."""

ALL = -1
"""acks=all."""


class Partition:
    """A replica on this node. It leads while `closed` is None, and then only has a `leader` state.

    Invariant: log_start_offset <= high_watermark <= log_end_offset; the watermark of a leader never
    moves back, that of a follower only with its log.
    """

    __slots__ = (
        "_acks",
        "_clock",
        "_led",
        "_subscribers",
        "appended_bytes",
        "appended_records",
        "closed",
        "cutting",
        "fetches",
        "high_watermark",
        "is_cutting",
        "is_ended",
        "is_in_sync",
        "leader",
        "leader_epoch",
        "log",
        "producers",
        "reporter",
        "settings",
        "topic_id",
        "topic_partition",
        "trims",
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
        high_watermark: Offset | None = None,
        wakes: Wakes | None = None,
    ) -> None:
        """It is led, by an ISR of this node alone, until somebody says otherwise.

        `high_watermark`: as it was known last; without it, what the log promises.
        """
        self.log = log
        self.topic_partition: TopicPartition = log.topic_partition
        self.topic_id: TopicId = log.topic_id
        self.producers = producers
        self.settings = settings
        self.leader_epoch = leader_epoch
        known = log.promised_offset if high_watermark is None else high_watermark
        self.high_watermark = Offset(min(max(known, log.log_start_offset), log.log_end_offset))
        self.closed: WireError | None = None
        """Why this node does not lead."""
        self.is_ended = False
        """Whether that is for ever."""
        self.is_in_sync = False
        """Whether this follower surely is in the ISR; else nobody should read it (KIP-392)."""
        self._led = LeaderState(leader_epoch, log.log_end_offset)  # the last one
        self.leader: LeaderState | None = self._led
        self.reporter: Reporter | None = None
        """Who tells the leader how far this follower is."""
        self.cutting = asyncio.Lock()
        """Held while the log is cut, or the producers are written as of its end."""
        self.is_cutting = False
        self.appended_bytes = 0
        self.appended_records = 0
        # Appended since the producer state was written last.
        self.unsnapshotted_bytes = 0
        self._clock = clock
        self._acks = PendingAcks(loop, clock, lease, self._late)
        self.trims = PendingTrims(loop)
        self.fetches = FetchWaiters(log, wakes or Wakes(loop))
        """Who waits for the high watermark to move."""
        self._subscribers: dict[NodeId, Subscriber] = {}
        log.on_promised = self.on_promised

    # -- roles

    def check_serving(self, current_leader_epoch: int = -1) -> None:
        """Raise when this node may not serve the partition, or the caller's epoch is another.

        The epoch comes first, as with Kafka: who has an old one asks for metadata anyway.
        """
        self.check_readable(current_leader_epoch)
        if self.closed is not None:
            raise self.closed.with_traceback(None)

    def check_readable(self, current_leader_epoch: int = -1) -> None:
        """Raise when this replica cannot be read, led here or not (KIP-392)."""
        if self.is_ended or self.log.failed is not None:
            error = self.closed or self.log.failed
            assert error is not None
            raise error.with_traceback(None)
        if current_leader_epoch != -1 and current_leader_epoch != self.leader_epoch:
            if current_leader_epoch < self.leader_epoch:
                raise FencedLeaderEpochError(f"The leader epoch is {self.leader_epoch}")
            raise UnknownLeaderEpochError(f"The leader epoch is only {self.leader_epoch}")

    def check_watermark(self) -> None:
        """Raise while nobody knows how far records are committed in this epoch (KIP-207)."""
        leader = self.leader
        if leader is not None and self.high_watermark < leader.epoch_start_offset:
            raise OffsetNotAvailableError(
                f"{self.topic_partition} has a new leader that waits for its followers"
            )

    def lead(self, leader_epoch: LeaderEpoch, facts: Leadership = ALONE) -> None:
        """Serve clients in `leader_epoch`; it and the rest are those of the image."""
        assert not self.is_ended and not self.is_cutting
        leader = self.leader
        if leader is None or self.closed is not None or leader_epoch != leader.leader_epoch:
            # What was appended in an earlier epoch may be gone in this one.
            self._end_epoch(NotLeaderOrFollowerError("The leader epoch has changed"))
            if leader_epoch == self._led.leader_epoch:
                self._led.begin_again(self.log.log_end_offset)
            else:
                self._led = LeaderState(leader_epoch, self.log.log_end_offset)
                # Nothing is acknowledged that is not safe here yet: an unclean leader may lack it.
                self.high_watermark = min(self.high_watermark, self.log.promised_offset)
            leader = self.leader = self._led
        self.leader_epoch = leader_epoch
        self.closed = None
        leader.update(facts, self._clock.now_ms())
        for node_id in [each for each in self._subscribers if each not in leader.followers]:
            gone = self._subscribers.pop(node_id)
            gone.on_end(NotLeaderOrFollowerError("The node has no replica of the partition"))
        self._advance()

    def follow(
        self, leader_epoch: LeaderEpoch, why: WireError, *, is_in_sync: bool = False
    ) -> None:
        """Serve no producer until `lead`, and readers only in sync; whoever waits hears `why`."""
        assert not self.is_ended
        was_leading, was_in_sync = self.closed is None, self.is_in_sync
        self.leader_epoch, self.closed = leader_epoch, why
        self.leader, self.is_in_sync = None, is_in_sync
        if was_leading:
            self._end_epoch(why)
        if was_leading or (was_in_sync and not is_in_sync):
            self.fetches.wake_all()

    def _end_epoch(self, error: WireError) -> None:
        self._acks.fail(error)
        self.trims.fail(error)
        subscribers, self._subscribers = self._subscribers, {}
        for each in subscribers.values():
            each.on_end(error)

    # -- appending

    def append_as_leader(
        self,
        buffer: bytearray,
        start: int,
        end: int,
        acks: int,
        times: tuple[int, int] | None = None,
    ) -> Appended | None:
        """Check one batch and append a copy of it; None when there is no append memory now.

        Then the caller waits by `log.when_writable`. A batch that its producer has sent before is
        not appended again: the old offsets are returned. Raises WireError when the batch is
        refused, UnopenedError when compressed records must be checked first (`times` are theirs);
        nothing was changed then.
        """
        error = self.closed or self.log.failed
        if error is not None:
            raise error.with_traceback(None)
        leader, settings, clock = self.leader, self.settings, self._clock
        assert leader is not None
        now_ms = clock.timestamp_ms()
        fields = check_produced(settings, buffer, start, end, now_ms, times)
        if leader.isr_count < leader.min_isr and (acks == ALL or settings.acks_floor == ALL):
            raise NotEnoughReplicasError(
                f"min.insync.replicas is {leader.min_isr}, {leader.isr_count} in sync"
            )
        producer_id, epoch, sequence, count = producer_of(fields)
        if producer_id >= 0:
            known = self.producers.check(producer_id, epoch, sequence, count)
            if known is not None:
                return known[0], known[1] + 1, known[2]
        append_time_ms = now_ms if settings.stamps_append_time else -1
        if settings.stamps_append_time:
            patch_log_append_time(buffer, start, end - start, append_time_ms)
            fields = BATCH_STRUCT.unpack_from(buffer, start)
        # First, so that it leaves for followers before this node's own flush is prepared: what they
        # do with it takes longer.
        for each in self._subscribers.values():
            each.on_append()
        base_offset = self.log.append(
            memoryview(buffer)[start:end], fields, leader_epoch=self.leader_epoch
        )
        if base_offset is None:
            return None
        end_offset = base_offset + count
        if producer_id >= 0:
            self.producers.update(
                producer_id, epoch, sequence, count,
                base_offset, end_offset - 1, append_time_ms, now_ms,
            )  # fmt: skip
        self.appended_bytes += end - start
        self.unsnapshotted_bytes += end - start
        self.appended_records += count
        return base_offset, end_offset, append_time_ms

    # -- acknowledging

    def is_safe(self, end_offset: int, acks: int) -> bool:
        """Return whether all below `end_offset` is as safe as `acks` asks for."""
        return end_offset <= (
            self.high_watermark if self._waits_for_all(acks) else self.log.promised_offset
        )

    def _waits_for_all(self, acks: int) -> bool:
        return acks == ALL or self.settings.acks_floor == ALL

    def wait(
        self, end_offset: int, acks: int, timeout_ms: int, waiter: AckWaiter, index: int = 0
    ) -> None:
        """Call `waiter.on_acked` when all below `end_offset` is as safe as `acks` asks for.

        `timeout_ms` bounds the wait for other replicas only, as in Kafka. The own flush ends, or
        fails, by itself; an earlier error would make the client write the batch a second time.
        """
        if self._waits_for_all(acks):
            self._acks.all.add(end_offset, timeout_ms, waiter, index)
        else:
            self._acks.own.add(end_offset, None, waiter, index)

    def acknowledge(self, waiter: AckWaiter, index: int = 0) -> None:
        """Call `waiter.on_acked` for what is safe already; its owner drains."""
        self._acks.acknowledge(waiter, index)

    def _late(self, end_offset: int) -> WireError | None:
        return late_error(self.leader, self.log.promised_offset, end_offset)

    def on_promised(self, log: PartitionLog) -> None:
        """The log's promise moved, or its start, or it failed: settle who waits."""
        if self.reporter is not None:
            self.reporter.on_promised()
        error = self.closed or log.failed
        if error is not None:
            self._end_epoch(error)
            self.fetches.wake_all()
            return
        self._acks.own.settle_to(log.promised_offset)
        self._advance()
        if self._acks.all.has_overdue:
            self._acks.all.look_soon()

    @property
    def waiting_count(self) -> int:
        """How many produce requests wait for their acknowledgement."""
        return len(self._acks)

    # -- followers

    def subscribe(self, subscriber: Subscriber) -> None:
        """Feed a follower from now on, in the place of an earlier connection of the same node."""
        node_id = subscriber.progress.node_id
        earlier = self._subscribers.pop(node_id, None)
        if earlier is not None:
            earlier.on_end(NotLeaderOrFollowerError("The node has subscribed again"))
        self._subscribers[node_id] = subscriber
        self._release(node_id)

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Feed it no more."""
        node_id = subscriber.progress.node_id
        if self._subscribers.get(node_id) is subscriber:
            del self._subscribers[node_id]
            self._release(node_id)

    def _release(self, node_id: NodeId) -> None:
        """Nobody waits for a follower that was about to join and is away: at once, not in time."""
        if self.leader is not None and self.leader.release(node_id):
            self._advance()

    def on_progress(self, progress: FollowerProgress, promised: int, end: int, now_ms: int) -> None:
        """A follower that is subscribed holds everything below `promised` safely."""
        progress.on_progress(promised, end, self.log.log_end_offset, now_ms)
        self._advance()

    def settle_trims(self) -> None:
        """Log starts have moved, here or at a follower: let those be answered who wait for it.

        Nobody while the ISR is too small: who has left it may lead, and would show the records.
        """
        if self.trims and self.leader is not None and not self.leader.is_short:
            self.trims.settle_to(self.leader.low_watermark(self.log.log_start_offset))

    def may_join(self, progress: FollowerProgress) -> bool:
        """Return whether a follower may be proposed for the ISR now."""
        leader, start = self.leader, self.log.log_start_offset
        return leader is not None and leader.may_join(progress, self.high_watermark, start)

    def announce(self) -> None:
        """Tell followers what has changed beside records: where the log begins."""
        for each in self._subscribers.values():
            each.on_watermark()

    def _advance(self) -> None:
        """Settle who waits for those that count: they are fewer, or have more, or begin later."""
        leader = self.leader
        if leader is None:
            return
        self.settle_trims()
        mark = leader.watermark(self.log.promised_offset, self.high_watermark)
        if mark == self.high_watermark:
            return
        assert self.high_watermark < mark <= self.log.promised_offset
        self.high_watermark = mark
        self._acks.all.settle_to(mark)
        for each in self._subscribers.values():
            each.on_watermark()
        self.fetches.advance_to(mark)

    def propose_isr(self, joining: Iterable[NodeId]) -> None:
        """Let the watermark wait for members that are about to be proposed."""
        assert self.leader is not None
        self.leader.propose(joining)

    def look_at_watermark(self) -> None:
        """It may wait for fewer than before."""
        self._advance()

    # -- following

    def on_leader_watermark(self, high_watermark: int) -> None:
        """The leader says how far records are committed; this log may end before."""
        mark = Offset(min(high_watermark, self.log.log_end_offset))
        if mark > self.high_watermark and self.leader is None:
            self.high_watermark = mark
            self.fetches.advance_to(mark)

    def close(self, error: WireError | None = None) -> None:
        """Serve no more; whoever waits hears `error`."""
        self.closed = error or NotLeaderOrFollowerError("The partition is closing on this node")
        self.is_ended = True
        self.leader = None
        self._end_epoch(self.closed)
        self.fetches.wake_all()
