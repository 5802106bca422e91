"""Applier of a leader's frames: records, high watermarks, log starts, refusals.

Part of `dlogd.replication.follower.leader_fetcher`. A batch is appended when its checksum fits and
it follows on; what does not is asked for again after a rest, never skipped. Where the histories
differ the log is cut and the leader asked again, until they agree. What happens to a partition is
said to `dlogd.replication.follower.subscriptions`.
"""

import logging
from collections.abc import Callable
from functools import partial

from dlog.errors import ERRORS, NONE, ProtocolError, RecordTooLargeError, WireError
from dlog.types import NodeId, Offset
from dlogd.replication import protocol
from dlogd.replication.follower.fetch_services import FetchServices
from dlogd.replication.follower.followed_partition import FollowedPartition
from dlogd.replication.follower.follower_append import append_as_follower
from dlogd.replication.follower.follower_states import Event
from dlogd.replication.follower.frame_cursor import FrameCursor
from dlogd.replication.follower.held_frame import HeldFrame
from dlogd.replication.follower.leader_connection import LeaderConnection
from dlogd.replication.follower.subscriptions import Subscriptions
from dlogd.replication.protocol import Refusal

log = logging.getLogger(__name__)


class FrameApplier:
    """What comes over one connection at a time. Life: `begin`, `take` any number, `end`; again."""

    def __init__(
        self,
        leader_id: NodeId,
        services: FetchServices,
        subscriptions: Subscriptions,
        report: Callable[[FollowedPartition], None],
        on_taken: Callable[[int, bool], None],
    ) -> None:
        """`on_taken` hears of each frame: its bytes, and whether the leader has to hear at once."""
        self._leader_id = leader_id
        self._services = services
        self._subscriptions = subscriptions
        self._report = report
        self._on_taken = on_taken
        self._link: LeaderConnection | None = None
        self._held: HeldFrame | None = None
        self._is_in_vain = False  # a row of this frame leads to no report
        subscriptions.on_cut_over = self._on_cut_over

    def begin(self, link: LeaderConnection) -> None:
        """A connection is ready."""
        self._link = link
        self._is_in_vain = False

    def end(self) -> None:
        """It has ended."""
        self._link = None
        if self._held is not None:
            self._held.end()
            self._held = None

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
            following = self._subscriptions.drop(refusal.handle)
            if following is not None:
                self._on_refusal(following, refusal)
        return True

    # -- records

    def _take_rows(self, cursor: FrameCursor) -> bool:
        rows, by_handle = cursor.rows, self._subscriptions.by_handle
        while cursor.index < len(rows):
            row = rows[cursor.index]
            following = by_handle.get(row[0])
            if cursor.row_end == cursor.position:
                cursor.row_end = cursor.position + row[4]
                if following is not None:
                    self._subscriptions.throttle.on_row(following, row[1], row[4])
            if following is None or not following.is_current:
                self._is_in_vain = True
            elif not self._take_row(following, row, cursor):
                return False
            elif not following.is_subscribed:
                self._is_in_vain = True
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
                    self._services.clock.timestamp_ms(),
                )
            except WireError as error:
                if plog.refuses_appends:  # its history is the leader's, only its disk is full
                    self._hear(following, high_watermark, log_start)
                self._on_append_error(following, error)
                return True
            self._services.counters.bytes_total += reached - cursor.position
            cursor.position = reached
            if reached < cursor.row_end:
                self._hear(following, high_watermark, log_start)
                return self._await_memory(following, row, cursor)
            following.ceiling = None
            following.rest_s, following.error = 0.0, None
        self._hear(following, high_watermark, log_start)
        if flags & protocol.MORE:
            may_ask = self._subscriptions.throttle.may_ask
            if plog.log_end_offset >= high_watermark or may_ask(following):
                self._report(following)
            else:
                following.ceiling = base_offset
        return True

    def _hear(self, following: FollowedPartition, high_watermark: int, log_start: int) -> None:
        """Take what is said beside the records, whether those can be taken or not."""
        following.partition.on_leader_watermark(high_watermark)
        self._subscriptions.log_starts.on_log_start(following, log_start)

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
        self._subscriptions.on(following, Event.NOT_TAKEN)

    # -- frames that are held

    def _await_memory(
        self, following: FollowedPartition, row: tuple[int, ...], cursor: FrameCursor
    ) -> bool:
        """Go on when there is append memory, which the directory's own disk gives back."""
        plog = following.partition.log
        if plog.services.memory in self._subscriptions.backoff.hanging:
            self._subscriptions.on(following, Event.HANGS)
            return True
        if row[5] & protocol.MORE:
            # The leader would send on from within what is still to be taken.
            following.ceiling = row[3]
        self._subscriptions.on(following, Event.NO_MEMORY)
        plog.when_writable(partial(self._on_memory, self._hold(cursor, following)))
        return False

    def _begin_log(self, following: FollowedPartition, offset: Offset, cursor: FrameCursor) -> bool:
        """Begin the log with the batch at hand; False when that is held until then."""
        partition = following.partition
        if partition.log.services.memory in self._subscriptions.backoff.hanging:
            self._subscriptions.on(following, Event.HANGS)
            return True
        self._hold(cursor, following)
        cut = partial(self._services.cutter.start_at, partition, offset)
        self._subscriptions.on(following, Event.BEGINS_WITHIN, cut)
        return False

    def _hold(self, cursor: FrameCursor, following: FollowedPartition) -> HeldFrame:
        """Hold a frame until its partition goes on or gives up, or the connection ends."""
        assert self._link is not None and self._held is None
        cursor.move(*self._link.hold())
        self._held = HeldFrame(self._services.loop, cursor, following, self._on_hang)
        return self._held

    def _on_memory(self, held: HeldFrame) -> None:
        self._subscriptions.backoff.hanging.discard(held.memory)
        if held is self._held:
            self._subscriptions.on(held.following, Event.MEMORY)
            self._go_on()

    def _on_hang(self) -> None:
        assert self._held is not None
        self._subscriptions.backoff.hanging.add(self._held.memory)
        self._subscriptions.on(self._held.following, Event.HANGS)
        self._go_on()

    def _on_cut_over(self, following: FollowedPartition) -> None:
        if self._held is not None and self._held.following is following:
            self._go_on()

    def _go_on(self) -> None:
        held, link = self._held, self._link
        assert held is not None and link is not None
        held.end()
        self._held = None
        try:
            is_taken = self._take_rows(held.cursor)
        except ProtocolError as error:
            link.close(error)
            return
        if is_taken:
            link.go_on()

    # -- refusals

    def _on_refusal(self, following: FollowedPartition, refusal: Refusal) -> None:
        cut = None
        if following.is_current:
            self._services.counters.refusals_total += 1
            cut = self._services.cutter.cut_for(following.partition, refusal)
            if cut is None and refusal.error_code != NONE:
                log.debug(
                    "Leader refused partition=%s leader=%d error=%s",
                    following.partition.topic_partition,
                    self._leader_id,
                    ERRORS[refusal.error_code].name,
                )
        event = Event.REFUSED if cut is None else Event.PARTED
        self._subscriptions.on(following, event, cut)
