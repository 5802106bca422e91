"""Partition in a follower's session: what was sent, what the follower confirmed.

Made by `dlogd.replication.leader.follower_sessions` for a `Feed`. What may be sent is everything
appended, flushed here or not: it counts when the follower has promised it.
"""

from typing import NamedTuple, Protocol

from dlog.errors import KafkaStorageError, ProtocolError, WireError
from dlog.types import Offset
from dlogd.net.reply_slot import Piece, RangePiece
from dlogd.replication.partition.leader_state import FollowerProgress
from dlogd.replication.partition.partition import Partition
from dlogd.replication.placement_diff import Key
from dlogd.replication.protocol import MORE, DataRow
from dlogd.storage.log.disk_search import DiskSearch
from dlogd.storage.log.partition_log import PartitionLog
from dlogd.storage.segment.segment import Segment, SegmentRange

COPY_BYTES_MAX = 16 << 10
"""So little is copied into its frame: that costs less than a piece of its own."""
LOAD_BYTES_MAX = 2 << 20
"""So much is read before it is sent; of a larger batch the rest is read as it leaves."""


class Stream(Protocol):
    """The feed that a partition belongs to."""

    def mark(self, fed: "FollowerPartition") -> None:
        """There is something to send about a partition."""

    def mark_watermark(self, fed: "FollowerPartition") -> None:
        """Its watermark has moved."""

    def refuse(self, fed: "FollowerPartition", error: WireError) -> None:
        """It is not fed any more."""


Copy = bytes


class Place(NamedTuple):
    """Where in a segment something begins, as long as nothing is cut off there."""

    segment: Segment
    cut_count: int
    position: int


class Taken(NamedTuple):
    """What of a partition goes into one frame: a copy, or ranges of segments."""

    base_offset: int
    bytes: int
    ranges: list[SegmentRange]
    is_disk: bool
    before: tuple[int, bool, Place | None]  # what to go back to when it is not sent after all
    data: Copy = b""

    def pieces(self) -> list[Piece]:
        """Hold the segments and return what is to be sent."""
        if self.data:
            return [self.data]
        found: list[Piece] = []
        for each in self.ranges:
            each.segment.acquire()
            found.append(RangePiece(each.segment, each.position, each.length))
        return found


class FollowerPartition:
    """Implements `Subscriber`. Invariant: what is below `sent_offset` was sent, in order.

    While `awaits_word` it is not known where the next batch begins: the follower says so when it
    has taken what was sent.
    """

    __slots__ = (
        "_feed",
        "_place",
        "_search",
        "awaits_word",
        "handle",
        "is_marked",
        "is_resting",
        "key",
        "log_start_sent",
        "partition",
        "progress",
        "sent_offset",
        "watermark_sent",
    )

    def __init__(
        self,
        feed: Stream,
        key: Key,
        handle: int,
        partition: Partition,
        progress: FollowerProgress,
        offset: int,
    ) -> None:
        self._feed = feed
        self.key = key
        self.handle = handle
        self.partition = partition
        self.progress = progress
        self.sent_offset = offset
        self.awaits_word = False
        self.is_marked = False
        self.is_resting = False
        self.watermark_sent = self.log_start_sent = -1
        self._search = DiskSearch()
        # Where `sent_offset` is in the active segment, once that has been found out.
        self._place: Place | None = None

    # -- what the partition says

    def on_append(self) -> None:
        """There is more to send, or is about to be."""
        if not (self.is_marked or self.awaits_word or self.is_resting):
            self._feed.mark(self)

    def on_watermark(self) -> None:
        """The high watermark has moved."""
        self._feed.mark_watermark(self)

    def on_end(self, error: WireError) -> None:
        """Nothing more comes from this leader epoch."""
        self.progress.end()
        self._feed.refuse(self, error)

    def leave(self) -> None:
        """The follower follows no more, or nobody hears it any more."""
        self.progress.end()
        self.partition.unsubscribe(self)

    # -- what is sent

    @property
    def has_more(self) -> bool:
        """Whether there is something to send that can be sent now."""
        return (
            not (self.awaits_word or self.is_resting)
            and self.sent_offset < self.partition.log.log_end_offset
        )

    @property
    def has_news(self) -> bool:
        """Whether the follower does not know of the newest watermark or log start."""
        partition = self.partition
        return (self.watermark_sent, self.log_start_sent) != (
            partition.high_watermark,
            partition.log.log_start_offset,
        )

    def take(self, bytes_max: int, *, is_first: bool) -> Taken | None:
        """Take what is sent next; None when a disk has to be asked first. Raises WireError."""
        plog = self.partition.log
        offset, end = self.sent_offset, plog.log_end_offset
        before = (offset, self.awaits_word, self._place)
        if not self.has_more:
            return Taken(offset, 0, [], False, before)
        place = self._place
        if place is not None:
            fresh = self._take_on(plog, place, bytes_max)
            if fresh is not None:
                return fresh
            self._place = None
        read = plog.read(offset, max(bytes_max, 1), end, minimum_one=is_first)
        if read is None:
            self._search.check(plog, offset)
            self.is_resting = True
            return None
        self._search.end()
        if not read.bytes:
            return Taken(offset, 0, [], False, before)
        last = read.ranges[-1]
        segment, sent_to = last.segment, last.position + last.length
        if sent_to == segment.tail.end and not self._is_metered():
            self.sent_offset = plog.end_offset_of(segment)
            self._place = Place(segment, segment.cut_count, sent_to)
        else:
            self.awaits_word = True
        is_disk = not segment.tail.holds(read.ranges[0].position)
        return Taken(read.base_offset, read.bytes, read.ranges, is_disk, before)

    def _is_metered(self) -> bool:
        """Whether the follower says itself when it takes more: it is throttled on its side.

        Who is in sync never is: producers would wait for it (KIP-73).
        """
        throttled = self.partition.settings.follower_throttled
        leader, node_id = self.partition.leader, self.progress.node_id
        return (
            throttled.holds(self.key[1], node_id)
            and leader is not None
            and node_id not in leader.isr
        )

    def _take_on(self, plog: PartitionLog, place: Place, bytes_max: int) -> Taken | None:
        """Take all that came after what was taken last, from memory and without a search.

        None when that is not possible: the log is asked then.
        """
        segment, cut_count, position = place
        tail, offset = segment.tail, self.sent_offset
        end = tail.end
        size = end - position
        if (
            segment is not plog.active
            or segment.cut_count != cut_count
            or size > bytes_max
            or offset < plog.log_start_offset
            or plog.failed is not None
            or not tail.holds(position)
        ):
            return None
        data, ranges = b"", []
        if size <= COPY_BYTES_MAX:
            data = tail.copy(position, size) or b""
        if not data:
            ranges = [SegmentRange(segment, position, size, end)]
        before = (offset, False, place)
        self.sent_offset = plog.log_end_offset
        self._place = Place(segment, cut_count, end)
        plog.services.metrics.tail_reads_total += 1
        return Taken(offset, size, ranges, False, before, data)

    def put_back(self, taken: Taken) -> None:
        """It is not sent now."""
        self.sent_offset, self.awaits_word, self._place = taken.before

    def row(self, taken: Taken) -> DataRow:
        """Return what the follower is told with the records."""
        watermark = self.watermark_sent = self.partition.high_watermark
        log_start = self.log_start_sent = self.partition.log.log_start_offset
        flags = MORE if self.awaits_word and taken.bytes else 0
        return self.handle, watermark, log_start, taken.base_offset, taken.bytes, flags

    @property
    def disk(self) -> object:
        """What stands for the directory that its log is in."""
        return self.partition.log.services.engine

    async def load(self, taken: Taken) -> list[Piece] | WireError:
        """Read what was taken; return what is to be sent, or what went wrong."""
        (found,) = taken.ranges
        segment, cut_count = found.segment, found.segment.cut_count
        length = min(found.length, LOAD_BYTES_MAX)
        segment.acquire()  # so that its file stays open
        try:
            parts = await self.partition.log.reader.parts_of(segment, found.position, length)
            if sum(map(len, parts)) < length or segment.cut_count != cut_count:
                return KafkaStorageError(f"{segment.path} has changed at {found.position}")
            pieces: list[Piece] = [memoryview(each) for each in parts]
            if length < found.length:
                segment.acquire()
                left = RangePiece(segment, found.position + length, found.length - length)
                pieces.append(left)
            return pieces
        except WireError as error:
            return error
        finally:
            self.is_resting = False
            segment.release()

    async def locate(self) -> WireError | None:
        """Search the disk for what is sent next; return what went wrong."""
        plog = self.partition.log
        try:
            await self._search.locate([(plog, self.sent_offset)])
        finally:
            self.is_resting = False
        return self._search.refusal(plog)

    # -- what the follower says

    def on_progress(self, promised: int, end: int, start: int, now_ms: int) -> None:
        """Credit the follower with what it has promised. Raises ProtocolError for nonsense."""
        progress, partition = self.progress, self.partition
        if not progress.promised_offset <= promised <= end <= partition.log.log_end_offset:
            raise ProtocolError(
                f"{partition.topic_partition}: promised {promised} of {end} after"
                f" {progress.promised_offset}, the leader has {partition.log.log_end_offset}"
            )
        progress.log_start_offset = Offset(start)
        partition.on_progress(progress, promised, end, now_ms)
        if self.awaits_word and end > self.sent_offset:
            self.awaits_word = False
            self.sent_offset = Offset(end)
