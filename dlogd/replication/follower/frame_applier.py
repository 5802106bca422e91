"""Applier of a leader's frames: records, high watermarks, log starts, refusals.

Part of `dlogd.replication.follower.leader_fetcher`. A batch is appended when its checksum fits and
it follows on; what does not is asked for again after a rest, never skipped. Where the histories
differ the log is cut and the leader asked again, until they agree.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from dlog.errors import (
    ERRORS,
    NONE,
    OffsetOutOfRangeError,
    ProtocolError,
    RecordTooLargeError,
    WireError,
)
from dlog.types import NodeId, Offset
from dlogd.replication import protocol
from dlogd.replication.follower.divergence import Divergence, divergence
from dlogd.replication.follower.fetch_throttle import FetchThrottle
from dlogd.replication.follower.followed_partition import NO_HANDLE, FollowedPartition
from dlogd.replication.follower.follower_append import append_as_follower
from dlogd.replication.follower.frame_cursor import FrameCursor
from dlogd.replication.follower.leader_connection import LeaderConnection
from dlogd.replication.follower.log_start_sync import LogStartSync
from dlogd.replication.follower.retry_backoff import RetryBackoff
from dlogd.replication.placement_diff import Key
from dlogd.replication.protocol import Refusal
from dlogd.replication.rate_limiter import RateLimiter
from dlogd.runtime.clock import Clock
from dlogd.runtime.tasks import Tasks

log = logging.getLogger(__name__)


@dataclass(slots=True)
class FetchCounters:
    """What happened since the start; plain values that metrics read."""

    bytes_total: int = 0
    connects_total: int = 0
    failures_total: int = 0
    refusals_total: int = 0
    truncations_total: int = 0


class FrameApplier:
    """What comes over one connection at a time. Life: `begin`, `take` any number, `end`; again."""

    def __init__(
        self,
        leader_id: NodeId,
        cutter: Divergence,
        tasks: Tasks,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        counters: FetchCounters,
        limiter: RateLimiter,
        *,
        node_id: NodeId,
        is_in_sync: Callable[[Key], bool],
        subscribe: Callable[[FollowedPartition], None],
        report: Callable[[FollowedPartition], None],
        on_taken: Callable[[int, bool], None],
        on_cut: Callable[[FollowedPartition], None],
    ) -> None:
        """`on_taken` hears of each frame: its bytes, and whether the leader has to hear at once."""
        self.by_handle: dict[int, FollowedPartition] = {}
        self._leader_id = leader_id
        self._cutter = cutter
        self._tasks = tasks
        self._loop = loop
        self._clock = clock
        self.throttle = FetchThrottle(limiter, loop, clock, node_id, is_in_sync, self._go_on)
        self._counters = counters
        self._subscribe = subscribe
        self._report = report
        self._on_taken = on_taken
        self._on_cut = on_cut
        self._link: LeaderConnection | None = None
        self._resting = RetryBackoff(loop, subscribe)
        self._trimming = LogStartSync(tasks, report, self._begin_anew)
        self._is_in_vain = False  # a row of this frame leads to no report

    def begin(self, link: LeaderConnection) -> None:
        """A connection is ready."""
        self._link = link
        self._is_in_vain = False

    def end(self) -> None:
        """It has ended."""
        self._link = None
        self.by_handle.clear()
        self.throttle.clear()

    def forget(self, handle: int) -> bool:
        """Take nothing more for a handle; return whether the leader knows it."""
        following = self.by_handle.pop(handle, None)
        if following is not None:
            self.throttle.forget(following)
        return following is not None

    def take(self, buffer: bytearray, start: int, end: int) -> bool:
        """Take a frame; False when it is held, to be gone on with later. Raises ProtocolError."""
        view = memoryview(buffer)
        kind, count, position = protocol.parse_kind(view, start, end)
        if kind == protocol.DATA:
            rows, records = protocol.parse_data(view, position, end, count)
            return self._take_rows(FrameCursor(buffer, start, end, rows, records))
        if kind != protocol.REFUSED:
            raise ProtocolError(f"a leader sent a frame of kind {kind}")
        for refusal in protocol.parse_refused(view, position, end, count):
            following = self.by_handle.get(refusal.handle)
            self.forget(refusal.handle)
            if following is not None and following.handle == refusal.handle:
                following.handle = NO_HANDLE
                self._on_refusal(following, refusal)
        return True

    # -- records

    def _take_rows(self, cursor: FrameCursor) -> bool:
        rows = cursor.rows
        while cursor.index < len(rows):
            row = rows[cursor.index]
            following = self.by_handle.get(row[0])
            if cursor.row_end == cursor.position:
                cursor.row_end = cursor.position + row[4]
                if following is not None:
                    self.throttle.on_row(following, row[1], row[4])
            if following is None or not following.is_current:
                self._is_in_vain = True
            elif not self._take_row(following, row, cursor):
                return False
            cursor.position = cursor.row_end
            cursor.index += 1
        # Few frames may be under way, so one that nobody took must not be left so for long.
        is_in_vain, self._is_in_vain = self._is_in_vain, False
        self._on_taken(cursor.size, is_in_vain)
        return True

    def _take_row(
        self, following: FollowedPartition, row: tuple[int, ...], cursor: FrameCursor
    ) -> bool:
        _, high_watermark, log_start, base_offset, size, flags = row
        partition = following.partition
        plog = partition.log
        if size:
            if base_offset < plog.log_end_offset == plog.log_start_offset:
                # The leader's log begins within a batch; this one has to begin with all of it.
                return self._begin_log(following, Offset(base_offset), cursor)
            try:
                reached = append_as_follower(
                    partition,
                    cursor.buffer,
                    cursor.position,
                    cursor.row_end,
                    self._clock.timestamp_ms(),
                )
            except WireError as error:
                if plog.refuses_appends:  # its history is the leader's, only its disk is full
                    self._hear(following, high_watermark, log_start)
                self._on_append_error(following, error)
                return True
            self._counters.bytes_total += reached - cursor.position
            cursor.position = reached
            if reached < cursor.row_end:
                self._hear(following, high_watermark, log_start)
                return self._await_memory(following, row, cursor)
            following.ceiling = None
            following.rest_s, following.error = 0.0, None
        self._hear(following, high_watermark, log_start)
        if flags & protocol.MORE:
            if plog.log_end_offset >= high_watermark or self.throttle.may_ask(following):
                self._report(following)
            else:
                following.ceiling = base_offset
        return True

    def _hear(self, following: FollowedPartition, high_watermark: int, log_start: int) -> None:
        """Take what is said beside the records, whether those can be taken or not."""
        following.partition.on_leader_watermark(high_watermark)
        self._trimming.on_log_start(following, log_start)

    def _go_on(self, following: FollowedPartition) -> None:
        """The throttle lets it ask for more."""
        if following.handle == NO_HANDLE:
            self._subscribe(following)
        else:
            following.ceiling = None
            self._report(following)

    def _await_memory(
        self, following: FollowedPartition, row: tuple[int, ...], cursor: FrameCursor
    ) -> bool:
        """Go on when there is append memory, which the directory's own disk gives back."""
        plog = following.partition.log
        if plog.services.memory in self._resting.hanging:
            self._leave(following)
            return True
        if row[5] & protocol.MORE:
            # The leader would send on from within what is still to be taken.
            following.ceiling = row[3]
        plog.when_writable(self._hold(cursor, following))
        return False

    def _hold(self, cursor: FrameCursor, following: FollowedPartition) -> Callable[[], None]:
        """Hold a frame; return what goes on with it once, unless its connection has ended.

        Of several directories one may hang, and a full disk takes nothing until something is
        deleted, which has to be heard: the partition gives up its turn after a while.
        """
        link, memory = self._link, following.partition.log.services.memory
        assert link is not None
        cursor.move(*link.hold())
        is_done = False
        timer: asyncio.TimerHandle

        def resume() -> None:
            nonlocal is_done
            if is_done or link is not self._link:
                return
            is_done = True
            try:
                is_taken = self._take_rows(cursor)
            except ProtocolError as error:
                link.close(error)
                return
            if is_taken:
                link.go_on()

        def go_on() -> None:
            self._resting.hanging.discard(memory)
            timer.cancel()
            resume()

        def give_up() -> None:
            nonlocal timer
            if is_done or link is not self._link:
                return
            if not memory.may_hang:  # only a slow disk, so far
                timer = self._loop.call_later(following.hold_s, give_up)
                return
            self._resting.hanging.add(memory)
            self._leave(following)
            resume()

        timer = self._loop.call_later(following.hold_s, give_up)
        return go_on

    def _begin_log(self, following: FollowedPartition, offset: Offset, cursor: FrameCursor) -> bool:
        """Begin the log with the batch at hand; False when that is held until then."""
        partition = following.partition
        if partition.log.services.memory in self._resting.hanging:
            self._leave(following)
            return True
        go_on = self._hold(cursor, following)
        partition.is_cutting = True

        async def begin() -> None:
            done = await self._cut(following, self._cutter.start_at(partition, offset))
            if following.handle == NO_HANDLE and following.is_current:
                # Too late, or on another connection: all of this begins anew with the batch.
                following.hold_s *= 2
                self._subscribe(following)
            elif not done and following.handle != NO_HANDLE:
                self._leave(following)
            go_on()

        self._tasks.spawn("begin follower's log", begin())
        return False

    def _on_append_error(self, following: FollowedPartition, error: WireError) -> None:
        is_news = type(error) is not type(following.error)
        following.error = error
        if isinstance(error, RecordTooLargeError):
            if is_news:
                log.error(
                    "Replica stays behind because its node has too little append memory; set"
                    " append.memory.bytes as on the other nodes partition=%s leader=%d error=%s",
                    following.partition.topic_partition,
                    self._leader_id,
                    error,
                )
        else:
            log.warning(
                "Could not append replicated records partition=%s leader=%d leader_epoch=%d"
                " log_end_offset=%d"
                " error=%s",
                following.partition.topic_partition,
                self._leader_id,
                following.leader_epoch,
                following.partition.log.log_end_offset,
                error,
            )
        self._give_up(following)
        self._resting.rest_after_append(following, error)

    def _leave(self, following: FollowedPartition) -> None:
        """Give the present subscription up, and subscribe anew after a rest."""
        self._give_up(following)
        self._resting.rest(following)

    def _give_up(self, following: FollowedPartition) -> None:
        self._is_in_vain = True
        handle, following.handle = following.handle, NO_HANDLE
        if self.forget(handle) and self._link is not None:
            self._link.send(protocol.encode_unsubscribe((handle,)))

    def _begin_anew(self, following: FollowedPartition) -> None:
        """Drop all of a log: what its leader has is fetched again."""
        self._give_up(following)
        start = Offset(following.leader_start)
        self._spawn_cut(following, self._cutter.start_at(following.partition, start))

    # -- refusals

    def _on_refusal(self, following: FollowedPartition, refusal: Refusal) -> None:
        if not following.is_current:
            return
        self._counters.refusals_total += 1
        plog = following.partition.log
        if refusal.error_code == NONE and refusal.epoch >= 0:
            if 0 <= refusal.end_offset < plog.log_start_offset and refusal.log_start_offset >= 0:
                # They part below all that is here, and the leader has what is missing.
                start = Offset(refusal.log_start_offset)
                self._spawn_cut(following, self._cutter.start_at(following.partition, start))
                return
            target = divergence(plog, refusal.epoch, refusal.end_offset)
            if target < plog.log_end_offset:
                self._spawn_cut(following, self._cutter.truncate_to(following.partition, target))
                return
        elif refusal.error_code in (NONE, OffsetOutOfRangeError.code):
            # A leader of an earlier version that knows no epoch: what it deleted has counted.
            self._on_out_of_range(following, refusal)
            return
        else:
            log.debug(
                "Leader refused partition=%s leader=%d error=%s",
                following.partition.topic_partition,
                self._leader_id,
                ERRORS[refusal.error_code].name,
            )
        self._resting.rest(following)

    def _on_out_of_range(self, following: FollowedPartition, refusal: Refusal) -> None:
        partition = following.partition
        end = partition.log.log_end_offset
        if end > refusal.log_end_offset >= partition.log.log_start_offset:
            target = Offset(refusal.log_end_offset)
            self._spawn_cut(following, self._cutter.truncate_to(partition, target))
        elif refusal.log_start_offset >= 0:
            target = Offset(refusal.log_start_offset)
            self._spawn_cut(following, self._cutter.start_at(partition, target))
        else:
            self._resting.rest(following)

    def _spawn_cut(self, following: FollowedPartition, work: Awaitable[None]) -> None:
        # From now on, not from when the work begins: nobody may lead or be followed meanwhile.
        following.partition.is_cutting = True

        async def cut() -> None:
            done = await self._cut(following, work)
            if not following.is_current:
                return
            if done:
                self._subscribe(following)
            else:
                self._resting.rest(following)

        self._tasks.spawn("cut follower's log", cut())

    async def _cut(self, following: FollowedPartition, work: Awaitable[None]) -> bool:
        """Do the work; return whether it was done."""
        self._counters.truncations_total += 1
        try:
            await work
        except (WireError, OSError) as error:
            log.warning(
                "Could not truncate log partition=%s error=%s",
                following.partition.topic_partition,
                error,
            )
            return False
        finally:
            self._on_cut(following)
        return True
