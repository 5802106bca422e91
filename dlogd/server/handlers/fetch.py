"""Fetch: ranges of logs to consumers, at once or when there is enough (KIP-74, long poll).

The hot path of reading. Nothing is copied: the answer names ranges of segments, which the
connection streams. A request that finds too little is parked on its partitions and looks again when
high watermarks have advanced far enough. Sessions are declined (KIP-227): the id is always 0.
"""

import asyncio
from collections.abc import Callable
from operator import itemgetter

from dlog.errors import (
    ERRORS,
    NONE,
    FetchSessionIdNotFoundError,
    WireError,
)
from dlog.types import NO_EPOCH, NO_NODE, NodeId, TopicId
from dlog.wire import fetch
from dlog.wire.leaders import CurrentLeader
from dlog.wire.topics import TopicKey
from dlogd.net.reply_slot import Piece, ReplySlot
from dlogd.replication.partition.partition import Partition
from dlogd.replication.replica_manager import ReplicaManager
from dlogd.runtime.clock import Clock
from dlogd.runtime.tasks import Tasks
from dlogd.server.connection import Connection
from dlogd.server.handlers.fetch_answers import (
    LogDivergedError,
    bounded,
    check_history,
    check_replica,
    holds_more,
    interleave,
    readable_end,
    without_records,
)
from dlogd.server.handlers.fetch_waiting import Waiting, WatchBudget
from dlogd.server.leader_hints import LeaderHints
from dlogd.storage.log.disk_search import DiskSearch
from dlogd.storage.log.log_reader import Read
from dlogd.storage.log.partition_log import PartitionLog
from dlogd.storage.segment.segment import SegmentRange
from dlogd.telemetry.metrics import Telemetry

ENTRIES = itemgetter(1)
"""Of a topic in a request. A request that names none is answered at once, as in Kafka."""
MAX_WAIT_MS_MAX = 5 * 60 * 1000
"""Longer waits are cut: a client that asks for more is answered empty and asks again."""

UNWATCHED_WAIT_MS = 1000
"""How long the next Fetch of a connection rests when too many partitions are watched, at most."""

ReadReplica = Callable[[Partition, str, int], NodeId]
"""Says which follower a consumer in a rack should read an offset from; NO_NODE: the leader."""


def _leader_only(_: Partition, __: str, ___: int) -> NodeId:
    return NO_NODE


class FetchHandler:
    """Handles Fetch requests of all connections."""

    def __init__(
        self,
        replicas: ReplicaManager,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        tasks: Tasks,
        telemetry: Telemetry,
        hints: LeaderHints,
    ) -> None:
        self.clock = clock
        self.hints = hints
        self._replicas = replicas
        self._by_name = replicas.by_name
        self._by_id = replicas.by_id
        self.loop = loop
        self.tasks = tasks
        # In order of arrival, so that stopping answers them in a fixed order.
        self.parked: dict[FetchWork, None] = {}
        self.is_stopping = False
        self.read_replica: ReadReplica = _leader_only
        self.wakes = replicas.wakes
        self.watches = WatchBudget(loop)
        self.check_lease = replicas.roles.check_lease
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
        request = bounded(fetch.parse_request(memoryview(buffer), position, end, version))
        self.api.requests += 1
        FetchWork(self, connection, version, correlation_id, request).start(end - position)

    def stop(self) -> None:
        """Answer every parked request with what there is, and park no more."""
        self.is_stopping = True
        for work in list(self.parked):
            work.expire()


class FetchWork(ReplySlot):
    """One Fetch request from parse to answer: the slot of its own reply."""

    __slots__ = (
        "_connection",
        "_correlation_id",
        "_handler",
        "_is_expired",
        "_is_locating",
        "_leaders",
        "_request",
        "_rest_s",
        "_search",
        "_started_us",
        "_timer",
        "_version",
        "_waiting",
    )

    def __init__(
        self,
        handler: FetchHandler,
        connection: Connection,
        version: int,
        correlation_id: int,
        request: fetch.FetchRequest,
    ) -> None:
        super().__init__(connection.replies)
        self._handler = handler
        self._connection = connection
        self._version = version
        self._correlation_id = correlation_id
        self._request = request
        self._started_us = connection.received_us
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: Waiting | None = None
        self._is_expired = request.max_wait_ms <= 0
        self._is_locating = False
        self._search = DiskSearch()
        self._leaders: list[CurrentLeader] = []
        self._rest_s = 0.0

    def start(self, request_bytes: int) -> None:
        """Answer now, or park."""
        self.replies.reserve(self)
        if self._request.session_id != 0 and self._request.session_epoch > 0:
            self._refuse(FetchSessionIdNotFoundError.code)
            return
        self._look()
        if self.pieces is None:
            self._connection.answering.charge(request_bytes)
            self._connection.is_fetching = True

    # -- waiting

    def _park(
        self, rows: list[list[fetch.FetchedPartition]], ranges: list[SegmentRange], total: int
    ) -> None:
        """Wait for more; if too many partitions are watched, answer and let the next Fetch wait."""
        handler = self._handler
        found = [
            (handler.find(topic, entry[0]), entry, fetched.records_bytes)
            for (topic, partitions), row in zip(self._request.topics, rows, strict=True)
            for entry, fetched in zip(partitions, row, strict=True)
        ]
        self._unwatch()
        address = self._connection.address
        if not handler.watches.take(address, len(found)):
            self._rest_s = min(self._request.max_wait_ms, UNWATCHED_WAIT_MS) / 1000
            self._answer(rows, ranges, total)
            return
        self._waiting = Waiting(self, self._request, found, handler.watches, address)
        if self._timer is None:
            handler.parked[self] = None
            handler.server.parked_fetches = len(handler.parked)
            wait_s = min(self._request.max_wait_ms, MAX_WAIT_MS_MAX) / 1000
            passed_s = (handler.clock.now_us() - self._started_us) / 1e6
            self._timer = handler.loop.call_later(max(0.0, wait_s - passed_s), self._on_timeout)

    def _unwatch(self) -> None:
        if self._waiting is not None:
            self._waiting.end()
            self._waiting = None

    def _unpark(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._handler.parked.pop(self, None)
            self._handler.server.parked_fetches = len(self._handler.parked)
        self._unwatch()

    def on_closed(self) -> None:
        """The connection has ended: wait no more."""
        if self._waiting is not None:
            self._handler.watches.leave(self._waiting)
            self._waiting = None
        self._unpark()

    def on_data(self, number: int) -> None:
        """A partition has more, or has failed: look again when there may be enough now."""
        if self._timer is not None and not self._is_locating:
            self._connection.guard(lambda: self._look_if_enough(number))

    def _on_timeout(self) -> None:
        self._is_expired = True
        self._handler.wakes.wake([(self, 0)])  # in turns: a crowd may have come in one moment

    def expire(self) -> None:
        """The client has waited long enough: answer with what there is."""
        self._is_expired = True
        if not self._is_locating:
            self._connection.guard(self._look)

    def _look_if_enough(self, number: int) -> None:
        if self._is_expired or self._waiting is None or self._waiting.is_over(number):
            self._look()

    # -- reading

    def _look(self) -> None:
        """Answer when there is enough, an error, or no time left; else park, or ask the disk."""
        handler, request = self._handler, self._request
        handler.check_lease()
        rows: list[list[fetch.FetchedPartition]] = []
        ranges: list[SegmentRange] = []
        unknown: list[tuple[PartitionLog, int]] = []
        total = 0
        is_enough = self._is_expired or handler.is_stopping or not any(map(ENTRIES, request.topics))
        for topic, partitions in request.topics:
            row: list[fetch.FetchedPartition] = []
            rows.append(row)
            for entry in partitions:
                try:
                    partition = handler.find(topic, entry[0])
                    read = self._read(partition, entry, request.max_bytes - total, total == 0)
                except WireError as error:
                    is_enough = True
                    row.append(self._refusal(topic, entry[0], error))
                    continue
                except LogDivergedError as found:
                    is_enough = True
                    row.append(without_records(partition, entry[0], diverging_epoch=found.at))
                    continue
                if read is None:
                    unknown.append((partition.log, entry[2]))
                    continue
                elsewhere = NO_NODE
                if request.rack_id and partition.leader is not None:
                    elsewhere = handler.read_replica(partition, request.rack_id, entry[2])
                watermark = partition.high_watermark
                if elsewhere != NO_NODE:
                    is_enough = True
                    # In the consumer's own rack (KIP-392).
                    row.append(
                        without_records(partition, entry[0], preferred_read_replica=elsewhere)
                    )
                    continue
                total += read.bytes
                ranges += read.ranges
                is_enough = is_enough or holds_more(partition, entry, read)
                log_start = partition.log.log_start_offset
                row.append(
                    fetch.FetchedPartition(entry[0], 0, watermark, watermark, log_start, read.bytes)
                )
        if unknown:
            self._locate(unknown)
        elif is_enough or total >= request.min_bytes:
            self._answer(rows, ranges, total)
        else:
            self._park(rows, ranges, total)

    def _refusal(self, topic: TopicKey, index: int, error: WireError) -> fetch.FetchedPartition:
        """Answer for one partition with an error, and with who leads it instead (KIP-951)."""
        self._handler.api.on_error(error.name)
        leader = None
        if self._version >= fetch.ENDPOINTS_VERSION:
            leader = self._handler.hints.after(error.code, topic, index)
        if leader is not None:
            self._leaders.append(leader)
        return fetch.FetchedPartition(index, error.code, -1, -1, -1, 0, current_leader=leader)

    def _read(
        self, partition: Partition, entry: fetch.FetchPartition, bytes_max: int, is_first: bool
    ) -> Read | None:
        """Find what one partition has to send; None when the disk must be asked where it is."""
        _, leader_epoch, offset, last_epoch, _, partition_bytes_max = entry
        check_replica(partition, self._request, offset, leader_epoch)
        if last_epoch not in (NO_EPOCH, partition.leader_epoch):
            check_history(partition, offset, last_epoch)
        watermark = readable_end(
            partition, self._request.replica_id, is_node=self._connection.is_node
        )
        size = max(0, min(bytes_max, partition_bytes_max))
        if offset >= watermark or (size == 0 and not is_first):
            # Nothing; but the offset is checked, so that an impossible one is an error at once. One
            # beyond the watermark is possible: what is there is not acknowledged yet.
            return partition.log.read(offset, 0, offset, minimum_one=False)
        read = partition.log.read(offset, size, watermark, minimum_one=is_first)
        if read is None:
            self._search.check(partition.log, offset)
        return read

    def _locate(self, unknown: list[tuple[PartitionLog, int]]) -> None:
        self._is_locating = True
        self._handler.tasks.spawn("locate offsets", self._locate_then_look(unknown))

    async def _locate_then_look(self, unknown: list[tuple[PartitionLog, int]]) -> None:
        done = False
        try:
            # Without a connection nobody waits for the rest, and more may have come and gone.
            await self._search.locate(unknown, lambda: not self.replies.is_closed)
            done = True
        finally:
            self._is_locating = False
            if not done:
                self._connection.abort(None)  # cut off by a stop, or a bug, which the tasks log
        if not self.replies.is_closed:
            self._connection.guard(self._look)

    # -- answering

    def _answer(
        self, rows: list[list[fetch.FetchedPartition]], ranges: list[SegmentRange], total: int
    ) -> None:
        self._unpark()
        self._handler.storage.fetch_bytes_total += total
        topics = [(topic, row) for (topic, _), row in zip(self._request.topics, rows, strict=True)]
        endpoints = self._handler.hints.endpoints(self._leaders)
        parts = fetch.encode_response_parts(
            self._version, self._correlation_id, 0, NONE, 0, topics, endpoints
        )
        self._fill(interleave(parts, ranges))

    def _refuse(self, code: int) -> None:
        """Answer with an error for the whole request."""
        self._handler.api.on_error(ERRORS[code].name)
        parts = fetch.encode_response_parts(self._version, self._correlation_id, 0, code, 0, ())
        self._fill([part for part in parts if isinstance(part, bytes)])

    def _fill(self, pieces: list[Piece]) -> None:
        """Hand the answer over; how long it took includes what the client was ready to wait."""
        handler = self._handler
        handler.api.seconds.observe((handler.clock.now_us() - self._started_us) / 1e6)
        connection = self._connection
        connection.replies.count(pieces)
        if self._rest_s:
            connection.is_fetching = True
            handler.loop.call_later(self._rest_s, connection.end_fetch)
        elif connection.is_fetching:
            connection.end_fetch()
        self.fill(pieces).drain()
