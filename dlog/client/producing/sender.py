"""Sender: batches to leaders, grouped into requests, and the meaning of their answers.

Everything happens in `_pump`, which runs on the loop whenever something has changed: a batch was
opened or filled, an answer came, a leader was found, a time has come. It takes from each partition
what may be sent, at most one batch per partition and request, and leaves waiting what has to.
Answers and errors come as callbacks. No coroutine and no task per batch.

The decisions are in `dlog.client.producing.partition_queue` and
`dlog.client.producing.batch_results`, finding things out in `dlog.client.producing.sender_tasks`.
`lock` guards the accumulator where records are appended by other threads; it is held for moments,
never over encoding, a write or a log line.
"""

import asyncio
import logging
import math
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from dlog.client.cluster.cluster import Cluster
from dlog.client.cluster.log_lines import log_event
from dlog.client.cluster.node import NodeClient
from dlog.client.futures import NO_OFFSET
from dlog.client.producing.accumulator import Accumulator
from dlog.client.producing.batch_results import BatchResults, ProducerCounters, Tell
from dlog.client.producing.partition_queue import ACKS_NONE, Batch, PartitionQueue
from dlog.client.producing.producer_identity import ProducerIdentity
from dlog.client.producing.sender_tasks import AcksOf, Link, NeedsIt, SenderTasks
from dlog.client.views import PartitionLeader, TopicView
from dlog.errors import NONE, ProtocolError, WireError, error_for
from dlog.types import ZERO_TOPIC_ID
from dlog.wire import produce_client
from dlog.wire.apis import ApiKey
from dlog.wire.produce import TOPIC_ID_VERSION, ProducedPartition
from dlog.wire.topics import TopicKey

_Ready = dict[tuple[int, int], list[PartitionQueue]]
"""By leader and acks: a request has one of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """How batches are sent."""

    linger_s: float
    request_bytes: int
    request_timeout_s: float
    gapless: bool


class _Request:
    """The batches of one request on its way."""

    __slots__ = ("acks", "batches", "link", "node", "version")

    def __init__(self, link: Link, node: NodeClient, acks: int, batches: list[Batch]) -> None:
        self.link = link
        self.node = node
        self.acks = acks
        self.batches = batches
        self.version = link.version
        if any(each.queue.topic_id == ZERO_TOPIC_ID for each in batches):
            self.version = min(link.version, TOPIC_ID_VERSION - 1)

    def key_of(self, queue: PartitionQueue) -> TopicKey:
        """Return how the request names a topic.

        By its id where it can be: a leader that has not heard yet of a topic's end and of another
        one with its name must not take the records of that one (KIP-516).
        """
        return queue.topic_id if self.version >= TOPIC_ID_VERSION else queue.topic


class Sender:
    """Sends what an accumulator gathers. Owner: the loop's thread. Life: until `close`."""

    def __init__(
        self,
        cluster: Cluster,
        accumulator: Accumulator,
        sending: Sending,
        *,
        identity: ProducerIdentity | None,
        acks_of: AcksOf,
        loop: asyncio.AbstractEventLoop,
        rng: random.Random,
        lock: AbstractContextManager[object],
        counters: ProducerCounters,
        on_released: Callable[[], None],
    ) -> None:
        self.errands = SenderTasks(
            cluster,
            identity,
            loop=loop,
            rng=rng,
            wake=self.wake,
            acks_of=acks_of,
            on_topic=self._on_topic,
            on_refused=self._on_refused,
        )
        self._outcomes = BatchResults(accumulator, counters, rng, gapless=sending.gapless)
        self._outcomes.policy = cluster.policy
        self._cluster = cluster
        self._accumulator = accumulator
        self._sending = sending
        self._loop = loop
        self._lock = lock
        self._counters = counters
        self._on_released = on_released
        self._is_scheduled = False
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None

    async def close(self) -> None:
        """Stop. What is not done ends as refused, or as unknown where it may have been written."""
        with self._lock:
            self._is_closed = True
            tell = self._outcomes.end_all("the producer was closed")
        if self._timer is not None:
            self._timer.cancel()
        self._tell(tell)
        await self.errands.close()

    # When

    def wake(self) -> None:
        """Look at everything again, soon; from the loop's thread."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._pump)

    def wake_from_thread(self) -> None:
        """Do what `wake` does from another thread, which holds the lock."""
        if not self._is_scheduled and not self._is_closed:
            self._is_scheduled = True
            self._loop.call_soon_threadsafe(self._pump)

    def _pump(self) -> None:
        """Send whatever may be sent now, and see to it that this runs again in time."""
        now_s = self._loop.time()
        tell: Tell = []
        with self._lock:
            self._is_scheduled = False
            if self._is_closed:
                return
            next_s, ready = self._look(now_s, tell)
            requests: list[_Request] = []
            for (node_id, acks), queues in ready.items():
                requests += self._take(self.errands.link(node_id), acks, queues)
        for request in requests:
            tell += self._encode(request)
            self._send(request)
        self._tell(tell)
        self._set_timer(next_s)

    def _set_timer(self, next_s: float) -> None:
        if self._timer is not None:
            if self._timer.when() == next_s:
                return
            self._timer.cancel()
            self._timer = None
        if next_s < math.inf:
            self._timer = self._loop.call_at(next_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.wake()

    def _tell(self, tell: Tell) -> None:
        """Tell those who wait, without the lock: they may send the next record."""
        self._on_released()  # before the log, which may take its time
        for callback in tell:
            callback()

    # What

    def _look(self, now_s: float, tell: Tell) -> tuple[float, _Ready]:
        """Return when something will be due next, and per leader the partitions that are now."""
        next_s = math.inf
        ready: _Ready = {}
        accumulator = self._accumulator
        linger_s = self._sending.linger_s
        for queue in list(accumulator.active):
            if queue.is_retired:
                tell += self._outcomes.refuse([queue], "records sent before it were not written")
            if queue.deadline_s() <= now_s:
                trouble = self.errands.trouble(queue.topic)
                tell += self._outcomes.expire(queue, now_s, trouble)
            due_s = queue.due_s(now_s, linger_s, accumulator.memory_is_wanted)
            if due_s <= now_s:
                leader = self._leader_of(queue)
                if leader is not None and queue.follow((leader.node_id, leader.leader_epoch)):
                    ready.setdefault((leader.node_id, queue.acks), []).append(queue)
                due_s = math.inf  # if it cannot go now, an event will say when, and not the time
            if queue.open is not None and queue.open.created_s + linger_s <= now_s:
                # Or a slow leader would get more than its share.
                accumulator.unstick(queue)
            next_s = min(next_s, due_s, queue.deadline_s())
        return next_s, ready

    def _leader_of(self, queue: PartitionQueue) -> PartitionLeader | None:
        """Return where a partition's batches go; None: that is being found out."""
        identity = queue.identity
        if identity is not None and (identity.producer_id < 0 or identity.is_wanted):
            self.errands.want_identity()
            if identity.producer_id < 0:
                return None
        self.errands.refresh_old(queue.topic)
        try:
            return self._cluster.leader_of(queue.topic, queue.partition)
        except WireError:
            self.errands.want_leaders(queue.topic)
            return None

    def _take(self, link: Link, acks: int, queues: list[PartitionQueue]) -> list[_Request]:
        """Take batches off the queues of one leader, for as many requests as it may have now."""
        identity = queues[0].identity
        node = self.errands.open_node(link, queues[0].topic, queues[0].partition)
        requests: list[_Request] = []
        if node is None:
            return requests
        room = node.connection.options.inflight_max - link.inflight_count
        while queues and len(requests) < room:
            batches: list[Batch] = []
            left: list[PartitionQueue] = []
            size = 0
            for queue in queues:
                if batches and size >= self._sending.request_bytes:
                    left.append(queue)
                    continue
                batch = self._accumulator.take(queue)
                if batch is None:
                    continue
                batches.append(batch)
                size += batch.size_bytes
                self._accumulator.served(queue)
                if queue.waiting:
                    left.append(queue)
            if batches:
                requests.append(_Request(link, node, acks, batches))
            queues = left if batches else []
        link.inflight_count += len(requests)
        if identity is not None and identity.is_wanted:
            self.errands.want_identity()
        return requests

    def _encode(self, request: _Request) -> Tell:
        """Make the bytes of a request's batches; those that cannot be made end, the others go."""
        tell: Tell = []
        for batch in list(request.batches):
            try:
                batch.encoded()
            except Exception as error:  # noqa: BLE001 - a codec's own, or of memory
                request.batches.remove(batch)
                with self._lock:
                    tell += self._outcomes.not_encoded(batch, error)
        return tell

    def _send(self, request: _Request) -> None:
        """Write one request; its answer comes by callback."""
        if not request.batches:
            request.link.inflight_count -= 1
            self.wake()
            return
        topics: dict[TopicKey, list[tuple[int, bytearray]]] = {}
        for batch in request.batches:
            data = batch.encoded()
            self._counters.bytes_sent += len(data)
            key = request.key_of(batch.queue)
            topics.setdefault(key, []).append((batch.queue.partition, data))
        self._counters.requests_sent += 1
        self._counters.batches_sent += len(request.batches)
        connection = request.node.connection
        acks = request.acks
        timeout_s = self._sending.request_timeout_s

        def encode(correlation_id: int) -> bytes:
            return produce_client.encode_request(
                request.version,
                correlation_id,
                connection.options.client_id,
                acks,
                int(timeout_s * 1000),
                list(topics.items()),
            )

        def on_error(error: Exception) -> None:
            self._on_error(request, error)

        deadline = self._loop.time() + timeout_s
        request.node.send_request(
            ApiKey.PRODUCE,
            request.version,
            encode,
            lambda frame, position: self._on_answer(request, frame, position),
            on_error,
            deadline,
            answered=acks != ACKS_NONE,
        )

    # Answers

    def _on_answer(self, request: _Request, frame: memoryview, position: int) -> None:
        if request.acks == ACKS_NONE:
            response, answers = None, {}
        else:
            response = produce_client.parse_response(frame, position, len(frame), request.version)
            answers = {
                (topic, each[0]): each
                for topic, partitions in response.topics
                for each in partitions
            }
        outcomes: list[tuple[Batch, ProducedPartition | None, Exception | None]] = []
        for batch in request.batches:
            answer = answers.get((request.key_of(batch.queue), batch.queue.partition))
            error = None
            if response is not None and (answer is None or answer[1] != NONE):
                error = _error_of(answer, request.node)
                self._on_refusal(request, batch.queue, response, error)
            outcomes.append((batch, answer, error))
        tell: Tell = []
        now_s = self._loop.time()
        with self._lock:
            request.link.inflight_count -= 1
            for batch, answer, error in outcomes:
                if error is not None:
                    tell += self._outcomes.failed(batch, error, now_s)
                elif answer is not None:
                    tell += self._outcomes.written(batch, answer[2], answer[3])
                else:
                    # Nobody will say anything about it: take it that all is well.
                    tell += self._outcomes.written(batch, NO_OFFSET, -1)
        if response is not None:
            self.errands.throttle(request.link, response.throttle_ms)
        self._tell(tell)
        self.wake()

    def _on_refusal(
        self,
        request: _Request,
        queue: PartitionQueue,
        response: produce_client.ProduceResponse,
        error: Exception,
    ) -> None:
        known = self._cluster.known_topic(queue.topic)
        leader = response.leaders.get((request.key_of(queue), queue.partition))
        if known is None or known.topic_id != queue.topic_id:
            leader = None  # of a life that is over: its epochs say nothing of the present one
        self._cluster.on_error(
            queue.topic,
            queue.partition,
            request.link.node_id,
            error,
            leader=leader,
            endpoints=response.endpoints,
        )

    def _on_error(self, request: _Request, error: Exception) -> None:
        """Take in that a request got no answer."""
        for batch in request.batches:
            self._cluster.on_error(
                batch.queue.topic, batch.queue.partition, request.link.node_id, error
            )
        now_s = self._loop.time()
        tell: Tell = []
        with self._lock:
            request.link.inflight_count -= 1
            for batch in request.batches:
                tell += self._outcomes.failed(batch, error, now_s)
        self._tell(tell)
        self.wake()

    # Errands

    def _on_topic(self, view: TopicView, acks: int) -> None:
        available = [each.partition for each in view.partitions if each.leader >= 0]
        with self._lock:
            retired = self._accumulator.update_topic(
                view.name, len(view.partitions), available, topic_id=view.topic_id, acks=acks
            )
            tell = self._outcomes.retire(retired, "the topic was deleted and recreated")
        if retired:
            log_event(logging.WARNING, "Topic was created again", topic=view.name, id=view.topic_id)
        self._tell(tell)

    def _on_refused(self, reason: str, needs_it: NeedsIt) -> None:
        """End what cannot be sent without what could not be found out."""
        with self._lock:
            queues = [each for each in self._accumulator.active if needs_it(each)]
            tell = self._outcomes.refuse(queues, reason)
        self._tell(tell)


def _error_of(answer: ProducedPartition | None, node: NodeClient) -> Exception:
    if answer is None:
        return ProtocolError(f"{node.address} answered a produce without its partition")
    return error_for(answer[1], answer[5] or "")
