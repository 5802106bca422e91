"""Fetch: ranges of logs to consumers, at once or when there is enough (KIP-74, long poll).

The hot path of reading. Nothing is copied: the answer names ranges of segments, which the
connection streams. A request that finds too little is parked on its partitions and looks again at
each advance of a high watermark. Sessions are declined (KIP-227): every answer has session id 0.
"""

import asyncio

from dlog.errors import (
    NONE,
    FetchSessionIdNotFoundError,
    KafkaStorageError,
    NotLeaderOrFollowerError,
    OffsetOutOfRangeError,
    WireError,
)
from dlog.types import TopicId
from dlog.wire import fetch
from dlogd.replication.manager import ReplicaManager
from dlogd.replication.partition import Partition
from dlogd.server.connection import Connection
from dlogd.server.replies import Piece, RangePiece
from dlogd.storage.reader import Read
from dlogd.storage.segment import SegmentRange
from dlogd.tasks import Tasks
from dlogd.telemetry.metrics import Telemetry

LOCATE_COUNT_MAX = 1000
"""Disk searches of one request: one for each partition, or more where others push them out."""
MAX_WAIT_MS_MAX = 5 * 60 * 1000
"""Longer waits are cut: a client that asks for more is answered empty and asks again."""


class FetchHandler:
    """Handles Fetch requests of all connections."""

    def __init__(
        self,
        replicas: ReplicaManager,
        loop: asyncio.AbstractEventLoop,
        tasks: Tasks,
        telemetry: Telemetry,
    ) -> None:
        self._replicas = replicas
        self._by_name = replicas.by_name
        self._by_id = replicas.by_id
        self.loop = loop
        self.tasks = tasks
        # In order of arrival, so that stopping answers them in a fixed order.
        self.parked: dict[FetchWork, None] = {}
        self.is_stopping = False
        self.api = telemetry.api("FETCH")
        self.server = telemetry.server
        self.storage = telemetry.storage

    def find(self, topic: str | TopicId, index: int) -> Partition:
        """Return the partition that this node leads; raise WireError when it does not."""
        if isinstance(topic, str):
            return self._by_name.get((topic, index)) or self._replicas.partition(topic, index)
        return self._by_id.get((topic, index)) or self._replicas.partition_by_id(topic, index)

    def handle(
        self,
        connection: Connection,
        version: int,
        correlation_id: int,
        buffer: bytearray,
        position: int,
        end: int,
    ) -> None:
        """Answer the request in `buffer[position:end]`, now or later. Raises ProtocolError."""
        request = fetch.parse_request(memoryview(buffer), position, end, version)
        self.api.requests += 1
        FetchWork(self, connection, version, correlation_id, request).start()

    def stop(self) -> None:
        """Answer every parked request with what there is, and park no more."""
        self.is_stopping = True
        for work in list(self.parked):
            work.on_timeout()


class FetchWork:
    """One Fetch request from parse to answer."""

    __slots__ = (
        "_connection",
        "_correlation_id",
        "_expired",
        "_handler",
        "_locate_count",
        "_locating",
        "_request",
        "_slot",
        "_timer",
        "_version",
        "_watched",
    )

    def __init__(
        self,
        handler: FetchHandler,
        connection: Connection,
        version: int,
        correlation_id: int,
        request: fetch.FetchRequest,
    ) -> None:
        self._handler = handler
        self._connection = connection
        self._version = version
        self._correlation_id = correlation_id
        self._request = request
        self._slot = connection.replies.open()
        self._timer: asyncio.TimerHandle | None = None
        self._watched: list[Partition] = []
        self._expired = request.max_wait_ms <= 0 or handler.is_stopping
        self._locating = False
        self._locate_count = 0

    def start(self) -> None:
        """Answer now, or park."""
        if self._request.session_id != 0 and self._request.session_epoch > 0:
            self._refuse(FetchSessionIdNotFoundError.code)
            return
        if not self._look():
            self._park()

    def _park(self) -> None:
        """Wait for data on every partition; their time began when the request first waited."""
        handler = self._handler
        if self in handler.parked:
            return
        for topic, partitions in self._request.topics:
            for entry in partitions:
                partition = handler.find(topic, entry[0])
                partition.add_fetch(self)
                self._watched.append(partition)
        handler.parked[self] = None
        handler.server.parked_fetches = len(handler.parked)
        wait_ms = min(self._request.max_wait_ms, MAX_WAIT_MS_MAX)
        self._timer = handler.loop.call_later(wait_ms / 1000, self.on_timeout)

    def on_data(self) -> None:
        """A partition has more, or has failed: look again."""
        if not self._connection.is_open:
            self._unpark()
        elif not self._locating:
            self._look()

    def on_timeout(self) -> None:
        """The client has waited long enough."""
        self._expired = True
        if not self._locating:
            self._look()

    def _unpark(self) -> None:
        self._handler.parked.pop(self, None)
        self._handler.server.parked_fetches = len(self._handler.parked)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for partition in self._watched:
            partition.remove_fetch(self)
        self._watched.clear()

    def _look(self) -> bool:
        """Answer when there is enough, an error, or no time left; True unless it must wait."""
        request = self._request
        rows: list[list[fetch.FetchedPartition]] = []
        ranges: list[SegmentRange] = []
        total = 0
        failed = not request.topics
        for topic, partitions in request.topics:
            row: list[fetch.FetchedPartition] = []
            for entry in partitions:
                try:
                    partition = self._handler.find(topic, entry[0])
                    read = self._read(partition, entry, request.max_bytes - total, total == 0)
                except WireError as error:
                    failed = True
                    self._handler.api.on_error(error.name)
                    row.append(fetch.FetchedPartition(entry[0], error.code, -1, -1, -1, 0))
                    continue
                if read is None:
                    self._locate(partition, entry[2])
                    return True
                total += read.bytes
                ranges += read.ranges
                watermark = partition.high_watermark
                log_start = partition.log.log_start_offset
                row.append(
                    fetch.FetchedPartition(entry[0], 0, watermark, watermark, log_start, read.bytes)
                )
            rows.append(row)
        if not (failed or self._expired or total >= request.min_bytes):
            return False
        self._answer(rows, ranges, total)
        return True

    def _read(
        self, partition: Partition, entry: fetch.FetchPartition, bytes_max: int, is_first: bool
    ) -> Read | None:
        """Find what one partition has to send; None when the disk must be asked where it is."""
        _, leader_epoch, offset, _, _, partition_bytes_max = entry
        partition.check_serving(leader_epoch)
        if self._request.replica_id >= 0:
            raise NotLeaderOrFollowerError("Followers are not served yet")
        watermark = partition.high_watermark
        size = max(0, min(bytes_max, partition_bytes_max))
        if offset == watermark or (size == 0 and not is_first):
            # The offset is still checked, so that an impossible one is an error at once.
            return partition.log.read(offset, 0, offset, minimum_one=False)
        if offset > watermark:
            raise OffsetOutOfRangeError(f"Offset {offset} is beyond the high watermark {watermark}")
        return partition.log.read(offset, size, watermark, minimum_one=is_first)

    def _locate(self, partition: Partition, offset: int) -> None:
        self._locating = True
        self._handler.tasks.spawn("locate offset", self._locate_then_look(partition, offset))

    async def _locate_then_look(self, partition: Partition, offset: int) -> None:
        self._locate_count += 1
        try:
            await partition.log.locate(offset)
        except WireError:
            pass  # the read that follows meets the same error and answers with it
        self._locating = False
        if not self._connection.is_open:
            self._unpark()
        elif self._locate_count > LOCATE_COUNT_MAX:
            self._refuse(KafkaStorageError.code)
        elif not self._look():
            self._park()

    def _answer(
        self, rows: list[list[fetch.FetchedPartition]], ranges: list[SegmentRange], total: int
    ) -> None:
        self._unpark()
        self._handler.storage.fetch_bytes_total += total
        topics = [(topic, row) for (topic, _), row in zip(self._request.topics, rows, strict=True)]
        parts = fetch.encode_response_parts(self._version, self._correlation_id, 0, NONE, 0, topics)
        pieces: list[Piece] = []
        found = iter(ranges)
        for part in parts:
            if isinstance(part, bytes):
                pieces.append(part)
                continue
            left = part
            while left > 0:
                each = next(found)
                each.segment.acquire()
                pieces.append(RangePiece(each.segment, each.position, each.length))
                left -= each.length
        self._slot.fill(pieces).drain()

    def _refuse(self, code: int) -> None:
        """Answer with an error for the whole request."""
        self._unpark()
        parts = fetch.encode_response_parts(self._version, self._correlation_id, 0, code, 0, ())
        self._slot.fill([part for part in parts if isinstance(part, bytes)]).drain()
