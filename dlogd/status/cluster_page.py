"""Cluster part of the status: leases, Raft, controller, gossip, image.

Read when somebody asks; nothing is kept but counts of an image that has not changed since.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from dlog.types import NodeId
from dlogd.config.schema import Config
from dlogd.controller.driver import ControllerDriver
from dlogd.controller.lease_keeper import LeaseKeeper
from dlogd.controller.own_lease import OwnLease
from dlogd.internal.node_listener import NodeListener
from dlogd.membership.gossip import Gossip
from dlogd.metadata.machine.election import rules_of
from dlogd.metadata.raft.progress import RaftProgress
from dlogd.metadata.state.image import ClusterImage, Drain
from dlogd.runtime.clock import Clock
from dlogd.telemetry import metrics
from dlogd.telemetry.metrics import Sample
from dlogd.telemetry.peer_metrics import PEERS_REFUSED


class Store(Protocol):
    """The metadata, as the report sees them."""

    @property
    def image(self) -> ClusterImage:
        """The newest image."""

    @property
    def progress(self) -> RaftProgress:
        """Where Raft is."""


class Clustered(Protocol):
    """`dlogd.node.cluster_node`, as the report sees it."""

    lease: OwnLease
    keeper: LeaseKeeper
    server: NodeListener
    driver: ControllerDriver
    gossip: Gossip | None
    node_id: NodeId

    @property
    def store(self) -> Store:
        """The metadata."""


@dataclass(slots=True)
class PartitionCounts:
    """What is not as it should be, over all partitions of the cluster."""

    leaderless: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    not_preferred: int = 0
    reassigning: int = 0
    offline_replicas: int = 0


def count_partitions(image: ClusterImage) -> PartitionCounts:
    """Look at every partition."""
    found = PartitionCounts()
    for topic in image.topics.values():
        rules = rules_of(image, topic)
        for partition in topic.partitions:
            settled = len(partition.replicas) - len(partition.adding)
            found.leaderless += not partition.has_leader
            found.under_replicated += len(partition.isr) < settled
            found.under_min_isr += len(partition.isr) < rules.min_isr_of(partition)
            found.not_preferred += (
                partition.has_leader and partition.leader != partition.replicas[0]
            )
            found.reassigning += bool(partition.adding or partition.removing)
            found.offline_replicas += len(partition.offline)
    return found


class ClusterReport:
    """The part of a node's report that is about its cluster."""

    def __init__(self, clustering: Clustered, config: Config, clock: Clock) -> None:
        self._clustering = clustering
        self._config = config
        self._clock = clock
        self._counted: tuple[object, object] = (None, None)
        self._counts = PartitionCounts()

    # -- for /status

    def status(self) -> dict[str, Any]:
        """Return facts for people and programs."""
        clustering, image = self._clustering, self._clustering.store.image
        table = clustering.driver.table
        return {
            "lease": self.lease(),
            "fenced_nodes": sorted(int(n) for n, node in image.nodes.items() if node.fenced),
            "nodes": [self._node(image, node_id) for node_id in image.nodes],
            "raft": self._raft(),
            "acting_controller": table is not None,
            "controller_epoch": image.controller.epoch,
            "unclean_elections": image.unclean_elections,
            "cluster_partitions": {
                name: getattr(self._partition_counts(image), name)
                for name in PartitionCounts.__slots__
            },
            "membership": self._membership(image),
        }

    def lease(self) -> dict[str, Any]:
        """Return facts about the lease of this node."""
        lease, now_ms = self._clustering.lease, self._clock.now_ms()
        valid = lease.is_valid(now_ms)
        return {
            "valid": valid,
            "left_ms": lease.valid_until_ms - now_ms if valid else 0,
            "node_epoch": lease.node_epoch,
            "problem": self._clustering.keeper.problem,
        }

    def _node(self, image: ClusterImage, node_id: NodeId) -> dict[str, Any]:
        node = image.nodes[node_id]
        state = "active"
        if node.shutting_down and not node.fenced:
            state = "shutting down"
        elif node.fenced:
            state = "returning" if node.returning else "fenced"
        return {
            "node_id": int(node_id),
            "state": state,
            "drain": Drain(node.drain).name.lower(),
            "node_epoch": node.node_epoch,
            "rack": node.rack,
            "version": node.version,
            "failed_directories": [str(each) for each in node.failed_directory_ids],
        }

    def _raft(self) -> dict[str, Any]:
        progress = self._clustering.store.progress
        return {
            "role": progress.role,
            "leader": progress.leader_id,
            "term": progress.term,
            "commit_index": progress.commit_index,
            "last_index": progress.last_index,
            "snapshot_index": progress.snapshot_index,
            "log_bytes": progress.log_bytes,
            "voters": list(progress.voters),
            "connected": list(progress.connected),
        }

    def _membership(self, image: ClusterImage) -> dict[str, Any] | None:
        gossip = self._clustering.gossip
        if gossip is None:
            return None
        return {
            "kind": str(self._config.membership.kind),
            "problem": gossip.membership.problem,
            "members": {
                str(each.node_id): each.state.value for each in gossip.membership.members()
            },
            "disagreements": [
                f"node {each.node_id}: {each.message}" for each in gossip.disagreements(image)
            ],
        }

    def _partition_counts(self, image: ClusterImage) -> PartitionCounts:
        sight = (image.topics, image.configs)
        if self._counted[0] is not sight[0] or self._counted[1] is not sight[1]:
            self._counted, self._counts = sight, count_partitions(image)
        return self._counts

    def problems(self) -> list[str]:
        """Return why an operator should look, in sentences."""
        clustering = self._clustering
        progress = clustering.store.progress
        found = []
        if clustering.lease.node_epoch >= 0 and not clustering.lease.is_valid(self._clock.now_ms()):
            why = clustering.keeper.problem or "it was not asked for yet"
            found.append(f"no lease: {why}; this node leads nothing")
        absent = absent_voters(progress, int(clustering.node_id))
        if progress.leader_id is None:
            found.append(
                "the metadata has no leader that can be reached"
                + (f": voters {', '.join(progress.absent)} are away" if absent else "")
            )
        elif absent and len(absent) * 2 >= len(progress.voters):
            away = ", ".join(progress.absent)
            found.append(f"the quorum of the metadata is lost: voters {away} are away")
        configured = {each.node_id for each in self._config.controllers or ()}
        own = int(clustering.node_id)
        if own in configured and progress.role == "observer" and progress.voters:
            add = f"dlogctl controller add {own}"
            found.append(
                "this node is configured as a controller and is no voter: "
                + (
                    "its metadata directory is another one than before: dlogctl controller remove "
                    f"{own}, then {add}"
                    if own in progress.voters
                    else f"it was removed: take it out of `controllers`, or let it vote: {add}"
                )
            )
        if clustering.gossip is not None and clustering.gossip.membership.problem is not None:
            found.append(f"membership: {clustering.gossip.membership.problem}")
        return found

    # -- for /metrics

    def samples(self) -> Iterable[Sample]:
        """Yield what is known at scrape time."""
        clustering, image = self._clustering, self._clustering.store.image
        lease, counters = self.lease(), clustering.keeper.counters
        yield Sample(metrics.LEASE_VALID, (), float(lease["valid"]))
        yield Sample(metrics.LEASE_LEFT, (), lease["left_ms"] / 1000)
        yield Sample(metrics.LEASE_HEARTBEATS, (), counters.sent_total)
        yield Sample(metrics.LEASE_FAILURES, (), counters.failed_total)
        yield Sample(metrics.LEASE_LOST, (), counters.lost_total)
        progress = clustering.store.progress
        yield Sample(metrics.RAFT_LEADER, (), float(progress.role == "leader"))
        yield Sample(metrics.RAFT_TERM, (), progress.term)
        yield Sample(metrics.RAFT_COMMIT, (), progress.commit_index)
        yield Sample(metrics.RAFT_LAST, (), progress.last_index)
        yield Sample(metrics.RAFT_SNAPSHOT, (), progress.snapshot_index)
        yield Sample(metrics.RAFT_BYTES, (), progress.log_bytes)
        yield Sample(metrics.RAFT_CONNECTED, (), len(progress.connected))
        refused = {"internal": clustering.server.refusals.counts, "raft": progress.refused}
        for listener, counts in refused.items():
            for reason, count in sorted(counts.items()):
                yield Sample(PEERS_REFUSED, (listener, reason), count)
        yield Sample(metrics.METADATA_VERSION, (), image.version)
        yield from self._controller_samples(image)
        yield from self._membership_samples(image)

    def _controller_samples(self, image: ClusterImage) -> Iterable[Sample]:
        driver = self._clustering.driver
        table = driver.table
        yield Sample(metrics.CONTROLLER_ACTIVE, (), float(table is not None))
        yield Sample(metrics.CONTROLLER_PLANS, (), driver.plans_total)
        yield Sample(metrics.CONTROLLER_ELECTIONS, (), driver.elections_total)
        yield Sample(metrics.UNCLEAN_ELECTIONS, (), image.unclean_elections)
        if table is None:
            return
        for why, count in table.condemned_total.items():
            yield Sample(metrics.CONTROLLER_CONDEMNED, (why.value,), count)
        fenced = sum(node.fenced for node in image.nodes.values())
        yield Sample(metrics.CLUSTER_NODES, (), len(image.nodes))
        yield Sample(metrics.CLUSTER_FENCED, (), fenced)
        counts = self._partition_counts(image)
        for name in PartitionCounts.__slots__:
            yield Sample(metrics.CLUSTER_PARTITIONS, (name,), getattr(counts, name))

    def _membership_samples(self, image: ClusterImage) -> Iterable[Sample]:
        gossip = self._clustering.gossip
        if gossip is None:
            return
        yield Sample(metrics.MEMBERSHIP_UP, (), float(gossip.membership.problem is None))
        found = len(gossip.disagreements(image))
        yield Sample(metrics.MEMBERSHIP_DISAGREEMENTS, (), found)


def absent_voters(progress: RaftProgress, own: int) -> list[int]:
    """Return the voters that this node has no connection with."""
    return [each for each in progress.voters if each != own and each not in progress.connected]
