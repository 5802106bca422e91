"""Produce: batches from the socket into the logs, answers when they are as safe as promised.

The hot path. A request is appended at once, in the order of its arrival; its answer is parked on
the partitions and leaves with the flush that covers it. When append memory is short the connection
stops reading and the request goes on where it stood; likewise when the topic wants its compressed
records checked first.
"""

from collections.abc import Callable, Sequence

from dlog.compression import Codec
from dlog.errors import (
    InvalidRequiredAcksError,
    UnsupportedCompressionTypeError,
    WireError,
)
from dlog.types import TopicId
from dlog.wire import produce
from dlog.wire.leaders import CurrentLeader
from dlog.wire.topics import TopicKey
from dlogd.net.reply_slot import ReplySlot
from dlogd.replication.partition.partition import Partition
from dlogd.replication.partition.record_validation import UnopenedError
from dlogd.replication.partition.waiters import Drainable
from dlogd.replication.replica_manager import ReplicaManager
from dlogd.runtime.clock import Clock
from dlogd.runtime.log_events import Event
from dlogd.server.batch_unpacker import (
    SMALL_BYTES,
    SMALL_ENTRIES,
    SMALL_PACKED_BYTES,
    BatchUnpacker,
    Outcome,
    outcome_within,
)
from dlogd.server.connection import Connection
from dlogd.server.leader_hints import LeaderHints
from dlogd.server.request_turns import PIECE_ENTRIES, RequestTurns
from dlogd.telemetry.metrics import Telemetry

ZSTD_VERSION_MIN = 7
"""Produce versions below this may not carry zstd (KIP-110)."""

Result = tuple[int, int, int, int, int, str | None]
"""Partition, error code, base offset, log append time in ms, log start offset, error message."""

ACKS_ALLOWED = (0, 1, -1)
WAITING_ACKS = (1, -1)
_NO_BUFFER = bytearray()


class ProduceHandler:
    """Handles Produce requests of all connections."""

    def __init__(
        self,
        replicas: ReplicaManager,
        clock: Clock,
        telemetry: Telemetry,
        hints: LeaderHints,
        unpacker: BatchUnpacker,
    ) -> None:
        self._hints = hints
        self.unpacker = unpacker
        self._replicas = replicas
        self._by_name = replicas.by_name
        self._by_id = replicas.by_id
        self.clock = clock
        self.turns = RequestTurns()
        """Where requests for many partitions rest; the router gives one for all requests."""
        self.api = telemetry.api("PRODUCE")
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
        """Append what the request in `buffer[position:end]` holds. Raises ProtocolError."""
        request = produce.parse_request(memoryview(buffer), position, end, version)
        self.api.requests += 1
        topics = request.topics
        if (
            len(topics) == 1
            and len(topics[0][1]) == 1
            and request.acks in WAITING_ACKS
            and version >= ZSTD_VERSION_MIN
            and self._handle_single(connection, version, correlation_id, buffer, request)
        ):
            return
        ProduceWork(self, connection, version, correlation_id, buffer, request).run()

    def _handle_single(
        self,
        connection: Connection,
        version: int,
        correlation_id: int,
        buffer: bytearray,
        request: produce.ProduceRequest,
    ) -> bool:
        """Handle one partition that asks for an answer; False when it cannot be done at once."""
        _, acks, timeout_ms, ((topic, ((index, start, end),)),) = request
        key = (topic, index)
        partition = self._by_name.get(key) or self._by_id.get(key)  # type: ignore[arg-type]
        if partition is None:
            return False
        refused = connection.refused
        try:
            if refused:
                refused.check(topic, index, buffer, start, end, partition.producers)
            appended = partition.append_as_leader(buffer, start, end, acks)
        except WireError as error:
            refused.note(topic, index, buffer, start, end, error)
            self.api.seconds.observe((self.clock.now_us() - connection.received_us) / 1e6)
            topics = [(topic, [self.refusal(index, error)])]
            connection.replies.reply(self.encode(version, correlation_id, topics))
            return True
        except UnopenedError:
            return False
        if appended is None:
            return False
        base_offset, end_offset, append_time_ms = appended
        replies = connection.replies
        single = SingleProduce(replies)
        single.handler = self
        single.head = (version, correlation_id, topic, index)
        single.base_offset = base_offset
        single.append_time_ms = append_time_ms
        single.log_start_offset = partition.log.log_start_offset
        single.started_us = connection.received_us
        replies.reserve(single)
        if partition.is_safe(end_offset, acks):
            partition.acknowledge(single)
            replies.drain()
        else:
            partition.wait(end_offset, acks, timeout_ms, single)
        return True

    def refusal(self, index: int, error: WireError) -> Result:
        """Return the result for a partition that refused, and count it."""
        self.api.on_error(error.name)
        return (index, error.code, -1, -1, -1, str(error))

    def encode(
        self, version: int, correlation_id: int, topics: Sequence[tuple[TopicKey, list[Result]]]
    ) -> bytes:
        """Return the response frame; who leads what this node does not is in it (KIP-951)."""
        leaders: dict[tuple[TopicKey, int], CurrentLeader] = {}
        if version >= produce.LEADER_VERSION:
            for topic, results in topics:
                for result in results:
                    leader = self._hints.after(result[1], topic, result[0])
                    if leader is not None:
                        leaders[topic, result[0]] = leader
        endpoints = self._hints.endpoints(leaders.values())
        return produce.encode_response(version, correlation_id, topics, 0, leaders, endpoints)


class SingleProduce(ReplySlot):
    """A Produce request for one partition that waits for its acknowledgement: its own slot."""

    __slots__ = (
        "append_time_ms",
        "base_offset",
        "handler",
        "head",
        "log_start_offset",
        "started_us",
    )

    handler: ProduceHandler
    head: tuple[int, int, str | TopicId, int]  # version, correlation id, topic, partition
    base_offset: int
    append_time_ms: int
    log_start_offset: int
    started_us: int

    def on_acked(self, index: int, error: WireError | None, now_us: int) -> Drainable | None:
        """Fill the slot with the answer; return whose replies may leave."""
        handler = self.handler
        handler.api.seconds.observe((now_us - self.started_us) / 1e6)
        if error is None:
            data = produce.encode_single(
                *self.head, 0, self.base_offset, self.append_time_ms, self.log_start_offset
            )
        else:
            version, correlation_id, topic, partition = self.head
            topics = [(topic, [handler.refusal(partition, error)])]
            data = handler.encode(version, correlation_id, topics)
        return self.fill((data,))


class ProduceWork:
    """One Produce request from parse to answer."""

    __slots__ = (
        "_acks",
        "_buffer",
        "_connection",
        "_correlation_id",
        "_cursor",
        "_handler",
        "_outcome",
        "_parts",
        "_request",
        "_results",
        "_shift",
        "_slot",
        "_started_us",
        "_version",
        "_waiting",
    )

    def __init__(
        self,
        handler: ProduceHandler,
        connection: Connection,
        version: int,
        correlation_id: int,
        buffer: bytearray,
        request: produce.ProduceRequest,
    ) -> None:
        self._handler = handler
        self._connection = connection
        self._version = version
        self._correlation_id = correlation_id
        self._buffer = buffer
        self._request = request
        self._acks = request.acks
        self._slot: ReplySlot | None = connection.replies.open() if request.acks else None
        self._parts = [
            (topic, index, start, end)
            for topic, partitions in request.topics
            for index, start, end in partitions
        ]
        self._results: list[Result] = []
        self._started_us = connection.received_us
        self._cursor = 0
        self._shift = 0
        self._outcome: Outcome | None = None
        """Of the compressed records of the part at the cursor, once they were checked."""
        # One more than the parts that wait, until all of them are appended.
        self._waiting = 1

    def run(self) -> None:
        """Append the parts that are left; park where memory or a flush must be waited for."""
        parts, refused = self._parts, self._connection.refused
        tired_at = min(self._cursor + PIECE_ENTRIES, len(parts))
        while self._cursor < tired_at:
            topic, index, start, end = parts[self._cursor]
            place = start + self._shift, end + self._shift
            try:
                partition = self._handler.find(topic, index)
                if refused:
                    refused.check(topic, index, self._buffer, *place, partition.producers)
                if not self._append(partition, index, start, end):
                    self._stall(partition.log.when_writable)
                    return
            except UnopenedError:
                if not self._check_now():
                    return
                continue
            except WireError as error:
                refused.note(topic, index, self._buffer, *place, error)
                self._results.append(self._handler.refusal(index, error))
            self._cursor += 1
            self._outcome = None
        if tired_at < len(parts):
            self._stall(self._handler.turns.ask)
            return
        self._buffer = _NO_BUFFER  # it is not counted any more, and this may wait for long
        self._waiting -= 1
        if self._waiting == 0:
            replies = self._finish()
            if replies is not None:
                replies.drain()

    def _append(self, partition: Partition, index: int, start: int, end: int) -> bool:
        acks = self._acks
        if acks not in ACKS_ALLOWED:
            raise InvalidRequiredAcksError(f"acks={acks} is none of 0, 1, -1")
        shift = self._shift
        if self._version < ZSTD_VERSION_MIN and end - start > 22:
            codec = self._buffer[start + shift + 22] & 0x07
            if codec == Codec.ZSTD:
                raise UnsupportedCompressionTypeError("zstd needs Produce version 7 (KIP-110)")
        outcome = self._outcome
        if isinstance(outcome, WireError):
            raise outcome
        place = start + shift, end + shift
        appended = partition.append_as_leader(self._buffer, *place, acks, outcome)
        if appended is None:
            return False
        base_offset, end_offset, append_time_ms = appended
        results = self._results
        results.append(
            (index, 0, base_offset, append_time_ms, partition.log.log_start_offset, None)
        )
        if acks:
            self._waiting += 1
        if acks and partition.is_safe(end_offset, acks):
            partition.acknowledge(self, len(results) - 1)
        elif acks:
            timeout_ms = self._request.timeout_ms
            partition.wait(end_offset, acks, timeout_ms, self, len(results) - 1)
        return True

    def _check_now(self) -> bool:
        """Check compressed records; False when that must be waited for."""
        turns = self._handler.turns
        if turns.is_spent:
            self._stall(turns.ask)
            return False
        turns.spend(SMALL_ENTRIES)
        _, _, start, end = self._parts[self._cursor]
        if end - start <= SMALL_PACKED_BYTES:
            self._outcome = outcome_within(self._packed(), SMALL_BYTES)
        if self._outcome is None:
            unpacker, connection = self._handler.unpacker, self._connection
            self._stall(lambda _: unpacker.ask(connection, self._packed, self._take))
        return self._outcome is not None

    def _packed(self) -> bytes:
        """Copy the batch of the part at the cursor."""
        _, _, start, end = self._parts[self._cursor]
        return bytes(memoryview(self._buffer)[start + self._shift : end + self._shift])

    def _take(self, outcome: Outcome) -> None:
        self._outcome = outcome

    def _stall(self, until: Callable[[Callable[[], None]], object]) -> None:
        """Go on when what is handed to `until` is called."""
        self._buffer, shift = self._connection.stall(self.run)
        self._shift += shift
        until(self._connection.unstall)

    def on_acked(self, index: int, error: WireError | None, now_us: int) -> Drainable | None:
        """Settle one part; return whose replies may leave when it was the last."""
        if error is not None:
            self._results[index] = self._handler.refusal(self._results[index][0], error)
        self._waiting -= 1
        return self._finish() if self._waiting == 0 else None

    def _finish(self) -> Drainable | None:
        api = self._handler.api
        api.seconds.observe((self._handler.clock.now_us() - self._started_us) / 1e6)
        slot = self._slot
        if slot is None:
            # A producer with acks=0 hears of an error by its connection only, as with Kafka.
            errors = [result for result in self._results if result[1]]
            if errors:
                self._connection.abort(
                    Event("Closed connection after a failed produce", acks=0, error=errors[0][5])
                )
            return None
        results = iter(self._results)
        topics = [
            (topic, [next(results) for _ in partitions])
            for topic, partitions in self._request.topics
        ]
        data = self._handler.encode(self._version, self._correlation_id, topics)
        self._connection.replies.count((data,))
        return slot.fill((data,))
