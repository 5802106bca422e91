"""Replication parts of a cluster node: following, leading, ISR.

Part of the composition: `dlogd.node.broker` makes one beside its `ClusterNode`.
"""

import asyncio
from collections.abc import Mapping
from functools import partial

from dlog.types import NO_NODE, NodeId
from dlogd.internal import messages
from dlogd.metadata.state.delta import ImageDelta
from dlogd.metadata.state.effective_configs import throttled_rates
from dlogd.metadata.state.image import ClusterImage, PartitionImage
from dlogd.node.cluster_node import ClusterNode
from dlogd.replication.follower.divergence import Divergence
from dlogd.replication.follower.fetch_services import FetchCounters, FetchServices
from dlogd.replication.follower.fetcher_manager import FetcherManager
from dlogd.replication.follower.followed_partition import FollowedPartition
from dlogd.replication.follower.leader_connection import ConnectionMemory
from dlogd.replication.follower.leader_fetcher import LeaderFetcher
from dlogd.replication.leader.follower_sessions import FollowerSessions
from dlogd.replication.leader.isr import IsrCounters, IsrKeeper
from dlogd.replication.partition.partition import Partition
from dlogd.replication.partition.replica_selector import read_replica
from dlogd.replication.placement_diff import Key, others_have_it
from dlogd.replication.rate_limiter import RateLimiter
from dlogd.replication.replica_manager import ReplicaManager
from dlogd.replication.replica_repair import RepairCounters, ReplicaRepair
from dlogd.runtime.clock import Clock
from dlogd.runtime.randomness import Rng
from dlogd.runtime.tasks import Tasks
from dlogd.server.connection import Router
from dlogd.server.context import ServerContext
from dlogd.server.handlers.fetch import FetchHandler
from dlogd.server.node_requests import NodeRequests
from dlogd.server.replica_reader import ReplicaReader
from dlogd.storage.io.io_engine import Engine
from dlogd.telemetry.metrics import ServerMetrics


class ReplicationSetup:
    """Life: `start` when the node has registered; it ends with its tasks and the listener."""

    def __init__(
        self,
        clustering: ClusterNode,
        replicas: ReplicaManager,
        *,
        loop: asyncio.AbstractEventLoop,
        engine: Engine,
        clock: Clock,
        rng: Rng,
        tasks: Tasks,
    ) -> None:
        self.counters = FetchCounters()
        self._limiter = RateLimiter()
        self._clock = clock
        self._clustering = clustering
        self._replicas = replicas
        self._tasks = tasks
        node_id = clustering.node_id
        self.keeper = IsrKeeper(
            clustering.store,
            node_id,
            replicas.by_id,
            clock=clock,
            tasks=tasks,
            new_id=clustering.new_id,
            node_epoch=clustering.own_epoch,
        )
        self.feeds = FollowerSessions(
            replicas,
            self.keeper,
            node_id=node_id,
            loop=loop,
            engine=engine,
            clock=clock,
            tasks=tasks,
        )
        self.fetching = FetcherManager(
            FetchServices(
                node_id=node_id,
                loop=loop,
                defer=engine.defer,
                clock=clock,
                rng=rng,
                tasks=tasks,
                memory=ConnectionMemory(),
                cutter=Divergence(clock, self._others_have_it),
                counters=self.counters,
                limiter=self._limiter,
                is_in_sync=self._is_in_sync,
                address=clustering.address_of,
                introduce=clustering.introduce,
                on_cut=self._on_cut,
            )
        )
        self._loop, self._engine = loop, engine
        reader = ReplicaReader(clustering.open_requests)
        self.mender = ReplicaRepair(node_id, replicas.by_id, self._image, reader.read, loop)
        replicas.roles.subscribe(self._on_role)
        replicas.on_closed = self.fetching.leave
        clustering.server.adopters[messages.REPLICATE] = self.feeds

    def _image(self) -> ClusterImage:
        return self._clustering.store.image

    @property
    def isr_counters(self) -> IsrCounters:
        """Changes of ISRs."""
        return self.keeper.counters

    @property
    def mend_counters(self) -> RepairCounters:
        """Damaged places."""
        return self.mender.counters

    @property
    def sent_bytes_total(self) -> int:
        """Bytes of records that followers were sent."""
        return self.feeds.sent_bytes_total

    @property
    def fetchers(self) -> Mapping[NodeId, LeaderFetcher]:
        """Leaders that are followed."""
        return self.fetching.fetchers

    def attach(
        self, fetch: FetchHandler, context: ServerContext, router: Router, metrics: ServerMetrics
    ) -> None:
        """Let clients read from followers, and other nodes send requests."""
        fetch.read_replica = self.read_replica
        context.until_settled = self.fetching.until_settled
        self._clustering.server.adopters[messages.NODE_REQUESTS] = NodeRequests(
            self._loop,
            self._engine,
            router,
            self._clock,
            metrics,
            node_id=self._clustering.node_id,
            image=self._image,
        )

    def start(self, image: ClusterImage) -> None:
        """Keep ISRs and feed followers from now on."""
        self.feeds.start(image)
        self._set_rates(image)
        self.keeper.start()
        self._tasks.spawn("mend damaged logs", self.mender.run())

    def on_image(self, new: ClusterImage, delta: ImageDelta) -> None:
        """The image has changed; partitions have their roles already."""
        self.feeds.image = new
        if delta.configs_changed:
            self._set_rates(new)
        if delta.nodes_changed:
            self.feeds.on_image(new)
            self.fetching.nudge()
            self.keeper.on_image()

    def _set_rates(self, image: ClusterImage) -> None:
        rates = throttled_rates(image.configs, self._clustering.node_id)
        now_us = self._clock.now_us()
        self.feeds.limiter.set_rate(rates.leader, now_us)
        self._limiter.set_rate(rates.follower, now_us)

    def _is_in_sync(self, key: Key) -> bool:
        found = self._partition_image(key)
        return found is not None and self._clustering.node_id in found.isr

    def _others_have_it(self, key: Key) -> bool:
        found = self._partition_image(key)
        return found is not None and others_have_it(found, self._clustering.node_id)

    def _partition_image(self, key: Key) -> PartitionImage | None:
        topic = self._image().topics_by_id.get(key[0])
        return None if topic is None else topic.partition(key[1])

    def read_replica(self, partition: Partition, rack: str, offset: int) -> NodeId:
        """Return the follower that a consumer in a rack should read from, or NO_NODE."""
        leader = partition.leader
        if leader is None:
            return NO_NODE
        image = self._clustering.store.image
        return read_replica(image, self._clustering.node_id, leader, rack, offset)

    def _on_role(self, partition: Partition, key: Key, image: PartitionImage) -> None:
        self._watch_damage(partition, key)
        leader, node_id = image.leader, self._clustering.node_id
        # Who has no place any more tells nobody how much it has: its log is about to be deleted.
        if partition.leader is not None or leader == node_id or node_id not in image.replicas:
            leader = NO_NODE
        self.fetching.follow(key, partition, leader, image.leader_epoch)
        if partition.leader is not None:
            self.keeper.look_at(key)

    def _watch_damage(self, partition: Partition, key: Key) -> None:
        damage = partition.log.damage
        if not damage.is_watched:
            damage.is_watched = True
            damage.on_note = partial(self.mender.on_damage, key)

    def _on_cut(self, following: FollowedPartition) -> None:
        self._replicas.roles.assign(following.partition, following.key[1])
        self.fetching.on_cut(following)
