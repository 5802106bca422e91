"""Sessions of all followers: admission, and the start offset of each partition.

Owner: the event loop's thread; made by `dlogd.node.replication_setup`. A follower's history is
compared with this log before anything is sent: the largest epoch that both know has to end where
the follower's does, or later.
"""

import asyncio
import logging

from dlog.errors import (
    FencedLeaderEpochError,
    NotLeaderOrFollowerError,
    ProtocolError,
    UnknownTopicIdError,
    WireError,
)
from dlog.types import NodeId
from dlog.wire.frame import RequestHeader
from dlogd.internal import messages
from dlogd.metadata.state.image import ClusterImage
from dlogd.net.disk_reader import HeldReads
from dlogd.net.frame_memory import FrameMemory
from dlogd.net.frame_reader import RECEIVE_BYTES
from dlogd.replication.leader.divergence_check import difference, other_history
from dlogd.replication.leader.follower_partition import FollowerPartition
from dlogd.replication.leader.follower_session import FollowerSession
from dlogd.replication.leader.isr import IsrKeeper
from dlogd.replication.partition.partition import Partition
from dlogd.replication.placement_diff import Key
from dlogd.replication.protocol import Refusal, Subscription
from dlogd.replication.rate_limiter import RateLimiter
from dlogd.replication.replica_manager import ReplicaManager
from dlogd.runtime.clock import Clock
from dlogd.runtime.tasks import Tasks
from dlogd.storage.io.io_engine import Engine

log = logging.getLogger(__name__)

FRAMES_BYTES_MAX = 64 << 20
HELD_READS_MAX = 8
SWEEP_S = 1.0
SILENCE_S_MAX = 6.0
"""A follower says something each second; one that is silent for so long is gone."""


class FollowerSessions:
    """The replication streams of a leader. Life: `start`, then `stop` once."""

    def __init__(
        self,
        replicas: ReplicaManager,
        keeper: IsrKeeper,
        *,
        node_id: NodeId,
        loop: asyncio.AbstractEventLoop,
        engine: Engine,
        clock: Clock,
        tasks: Tasks,
    ) -> None:
        self.engine = engine
        self.clock = clock
        self.tasks = tasks
        self.frames = FrameMemory(FRAMES_BYTES_MAX)
        self.receive = bytearray(RECEIVE_BYTES)
        self.held = HeldReads(HELD_READS_MAX)
        self.limiter = RateLimiter()
        """How much throttled followers that catch up may be sent."""
        self.feeds: dict[FollowerSession, None] = {}
        self.image = ClusterImage()
        """The newest; set by whoever hears of it."""
        self._replicas = replicas
        self._keeper = keeper
        self._node_id = node_id
        self._loop = loop
        self._sweep: asyncio.TimerHandle | None = None
        self._ended_bytes_total = 0

    def start(self, image: ClusterImage) -> None:
        """Look for silent followers from now on."""
        self.image = image
        self._sweep = self._loop.call_later(SWEEP_S, self._sweep_silent)

    def stop(self) -> None:
        """End all streams."""
        if self._sweep is not None:
            self._sweep.cancel()
        for feed in list(self.feeds):
            feed.abort("")

    @property
    def sent_bytes_total(self) -> int:
        """Bytes of records that followers were sent."""
        return self._ended_bytes_total + sum(each.sent_bytes_total for each in self.feeds)

    def on_image(self, image: ClusterImage) -> None:
        """End streams of earlier lives of nodes (KIP-903), and of removed nodes."""
        self.image = image
        for feed in list(self.feeds):
            node = image.nodes.get(feed.node_id)
            if node is None or node.node_epoch > feed.node_epoch:
                feed.abort(f"node {feed.node_id} has begun another life")

    def _sweep_silent(self) -> None:
        self._sweep = self._loop.call_later(SWEEP_S, self._sweep_silent)
        now_s = self._loop.time()
        for feed in list(self.feeds):
            if now_s - feed.heard_s > SILENCE_S_MAX:
                feed.abort("the follower is silent")

    # -- letting in

    def adopt(
        self, header: RequestHeader, payload: memoryview, peer: str
    ) -> tuple[bytes, asyncio.BufferedProtocol | None]:
        """Turn a connection into a stream. Raises ProtocolError."""
        request = messages.decode_replicate(payload, header.body_position, len(payload))
        node = self.image.nodes.get(request.node_id)
        earlier = [each for each in self.feeds if each.node_id == request.node_id]
        # What the image says, and what a later life of the node has said already.
        epochs = [each.node_epoch for each in earlier] + ([node.node_epoch] if node else [])
        code = messages.NONE
        if request.leader_id != self._node_id:
            code = messages.NOT_LEADER_OR_FOLLOWER
        elif any(request.node_epoch < each for each in epochs):
            code = messages.STALE_BROKER_EPOCH
        answer = messages.encode_replicate_answer(code, header.correlation_id)
        if code != messages.NONE:
            return answer, None
        for each in earlier:
            each.abort("")
        feed = FollowerSession(self, self._loop, request.node_id, request.node_epoch, peer)
        self.feeds[feed] = None
        log.info("Follower connected node=%d peer=%s", request.node_id, peer)
        return answer, feed

    def on_close(self, feed: FollowerSession) -> None:
        """Forget a stream."""
        if feed in self.feeds:
            del self.feeds[feed]
            self._ended_bytes_total += feed.sent_bytes_total

    def on_progress(self, fed: FollowerPartition) -> None:
        """A follower has promised more: it may have caught up."""
        self._keeper.on_progress(fed.key, fed.partition, fed.progress)

    def wait_us(self, fed: FollowerPartition, size: int) -> int:
        """Return how long a follower has to wait for `size` bytes; 0: they are counted.

        Who is in sync never waits: producers would wait for it (KIP-73).
        """
        limiter, partition = self.limiter, fed.partition
        throttled = partition.settings.leader_throttled
        if not limiter.is_limited or not throttled.holds(fed.key[1], self._node_id):
            return 0
        now_us = self.clock.now_us()
        leader = partition.leader
        if leader is not None and fed.progress.node_id in leader.isr:
            limiter.count(size, now_us)
            return 0
        return limiter.may_send(size, now_us)

    def accept(
        self, feed: FollowerSession, subscription: Subscription
    ) -> FollowerPartition | Refusal:
        """Let a follower begin to follow a partition, or say why not."""
        key = (subscription.topic_id, subscription.partition)
        handle = subscription.handle
        self._replicas.roles.check_lease()
        partition = self._replicas.by_id.get(key)
        try:
            if partition is None:
                raise self._why_absent(key)
            if subscription.leader_epoch < 0:
                raise FencedLeaderEpochError("A follower without a leader epoch")
            partition.check_serving(subscription.leader_epoch)
            leader = partition.leader
            progress = None if leader is None else leader.followers.get(feed.node_id)
            if progress is None:
                raise NotLeaderOrFollowerError(f"Node {feed.node_id} has no replica of it")
        except WireError as error:
            return Refusal(handle, error.code, -1, -1, -1, -1)
        refusal = difference(partition, subscription)
        if refusal is None and not self._is_counted(partition, key, feed.node_id):
            refusal = other_history(partition, subscription)
        if refusal is not None:
            return refusal
        offset = subscription.fetch_offset
        fed = FollowerPartition(feed, key, handle, partition, progress, offset)
        partition.subscribe(fed)
        progress.begin(feed.node_epoch)
        promised = min(subscription.promised_offset, offset)
        start = subscription.log_start_offset
        try:
            fed.on_progress(promised, offset, start, self.clock.now_ms())
        except ProtocolError:
            fed.leave()  # its feed does not know it yet, and is about to end
            raise
        return fed

    def _is_counted(self, partition: Partition, key: Key, node_id: NodeId) -> bool:
        """Whether a replica may be elected, so that it must keep what it has."""
        topic, leader = self.image.topics_by_id.get(key[0]), partition.leader
        known = None if topic is None else topic.partition(key[1])
        if known is None or leader is None:
            return True
        return node_id in (*known.isr, *known.elr, *leader.isr, *leader.pending)

    def _why_absent(self, key: tuple[object, int]) -> WireError:
        if key[0] in self.image.topics_by_id:
            return NotLeaderOrFollowerError("The partition is not open here")
        return UnknownTopicIdError("This node knows no such topic")
