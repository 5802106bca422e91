"""View of a cluster at one moment: nodes, partitions, metadata voters.

`look` gathers it; the rest judges and is pure. What an older node or Apache Kafka cannot tell is
left out.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import click

from dlog.client.admin_views import (
    Drain,
    MaintenanceLock,
    NodeState,
    QuorumReplica,
    QuorumView,
    Resource,
)
from dlog.client.blocking import BlockingClient
from dlog.client.views import ClusterView, PartitionView
from dlog.errors import DlogError, TransportError, UnsupportedVersionError, WireError
from dlogctl import exit_codes

MIN_ISR = "min.insync.replicas"
QUORUM_PATIENCE_S = 2.0
"""How long to wait for somebody who leads the metadata."""
SILENCE_MS = 5_000
"""A voter that has not been heard of for so long is called silent."""


class NoNodeError(click.ClickException):
    """The cluster has no node of this id."""

    exit_code = exit_codes.UNREACHABLE


class NodeDownError(click.ClickException):
    """The cluster has this node, and it is down."""

    exit_code = exit_codes.UNHEALTHY


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What was found."""

    view: ClusterView
    nodes: Mapping[int, NodeState]
    quorum: QuorumView | None = None
    quorum_problem: str | None = None
    # What only `look_closely` asks for.
    min_isr: Mapping[str, int] = field(default_factory=dict)
    """`min.insync.replicas` by topic."""
    reassigning: Sequence[tuple[str, int]] = ()
    """Partitions whose replicas move."""
    maintenance: MaintenanceLock | None = None
    """Who works on the cluster."""

    @property
    def controller_id(self) -> int:
        """The node that leads the metadata; -1 when there is none."""
        if self.quorum is not None:
            return self.quorum.leader_id
        return -1 if self.quorum_problem else self.view.controller_id

    def partitions(self) -> Iterator[tuple[str, PartitionView]]:
        """Yield all partitions with the names of their topics, in order."""
        for name in sorted(self.view.topics):
            for each in self.view.topics[name].partitions:
                yield name, each

    def held_by(self, node_id: int) -> Iterator[tuple[str, PartitionView]]:
        """Yield the partitions that have a replica on a node."""
        for name, each in self.partitions():
            if node_id in each.replicas:
                yield name, each

    def leaderless(self) -> list[str]:
        """Return the names of the partitions without a leader."""
        return [f"{name}-{each.partition}" for name, each in self.partitions() if each.leader < 0]

    def others_fenced(self, node_id: int) -> list[int]:
        """Return the fenced nodes but for one."""
        return [
            each.node_id
            for each in self.nodes.values()
            if each.is_fenced and each.node_id != node_id
        ]

    def node(self, node_id: int) -> NodeState:
        """Return one node; raise NoNodeError when the cluster has none of this id."""
        if node_id not in self.nodes:
            there = ", ".join(map(str, self.nodes))
            raise NoNodeError(
                f"the cluster has no node {node_id}; its nodes: {there}; see: dlogctl node list"
            )
        return self.nodes[node_id]

    def voter(self, node_id: int) -> QuorumReplica | None:
        """Return a node that votes on the metadata, None when it does not."""
        voters = self.quorum.voters if self.quorum is not None else ()
        return next((each for each in voters if each.node_id == node_id), None)

    def can_be_controller(self, node_id: int) -> bool:
        """Whether a voter is a node that runs: it may follow the metadata before it has registered.

        Until then it grants no leases, whoever elected it.
        """
        node = self.nodes.get(node_id)
        return node is not None and not node.is_fenced

    def part_of(self, node_id: int) -> str | None:
        """Return what a node is for the metadata: controller, voter or observer."""
        if self.quorum is None:
            return None
        if node_id == self.quorum.leader_id:
            return "controller"
        # First: a voter's node that lost its disk is both, and does not vote.
        if any(each.node_id == node_id for each in self.quorum.observers):
            return "observer"
        return "voter" if self.voter(node_id) is not None else None

    def state_of(self, node: NodeState) -> str:
        """Return how a node is, in one word."""
        if node.is_fenced:
            return "fenced"
        if node.drain is Drain.NONE:
            return "active"
        held = self.held_by(node.node_id)
        if node.drain is Drain.LEADERS:
            left = any(each.leader == node.node_id for _, each in held)
        else:
            left = any(True for _ in held)
        return "draining" if left else "drained"

    def can_lead_instead(self, partition: PartitionView, node_id: int) -> bool:
        """Whether another node that is up, not drained and in sync could lead a partition."""
        return any(
            self.nodes[each].drain is Drain.NONE for each in self.others_up(partition, node_id)
        )

    def others_up(self, partition: PartitionView, node_id: int) -> list[int]:
        """Return the other nodes that are up and in sync, drained or not."""
        return [
            each
            for each in partition.isr
            if each != node_id and each in self.nodes and not self.nodes[each].is_fenced
        ]


def _leader(quorum: QuorumView) -> QuorumReplica | None:
    return next((each for each in quorum.voters if each.node_id == quorum.leader_id), None)


def lag_of(quorum: QuorumView, each: QuorumReplica) -> int | None:
    """Return how many entries a node lacks, None where that is unknown."""
    if each.log_end_offset < 0:
        return None
    leader = _leader(quorum)
    end = quorum.high_watermark if leader is None else leader.log_end_offset
    return max(0, end - each.log_end_offset)


def silence_ms(quorum: QuorumView, each: QuorumReplica) -> int | None:
    """Return for how long a node has not been heard of, None where nobody knows."""
    leader = _leader(quorum)
    if leader is None or each.last_fetch_ms < 0:
        return None
    return max(0, leader.last_fetch_ms - each.last_fetch_ms)


def is_healthy(quorum: QuorumView, each: QuorumReplica) -> bool:
    """Whether a node follows the metadata closely, as far as is known."""
    if _leader(quorum) is None:
        return True
    silent_ms = silence_ms(quorum, each)
    return silent_ms is not None and silent_ms < SILENCE_MS


def quorum_problems(cluster: Cluster) -> list[str]:
    """Return what is wrong with those who keep the metadata, in sentences."""
    if cluster.quorum_problem is not None:
        return [f"no controller leads: {cluster.quorum_problem}"]
    if cluster.quorum is None:
        return []
    return [
        f"voter {each.node_id} of the metadata is silent"
        for each in cluster.quorum.voters
        if not is_healthy(cluster.quorum, each)
    ]


async def look(client: BlockingClient) -> Cluster:
    """Ask any node for all of it; raise DlogError when nobody answers."""
    view = await client.admin.describe_topics()
    nodes: Mapping[int, NodeState]
    try:
        nodes = await client.admin.describe_nodes()
    except UnsupportedVersionError:
        nodes = {
            each.node_id: NodeState(each.node_id, each.address, each.rack, False, Drain.NONE)
            for each in view.nodes.values()
        }
    quorum, problem = await _quorum(client)
    return Cluster(view=view, nodes=nodes, quorum=quorum, quorum_problem=problem)


async def expect_up(client: BlockingClient, node_id: int) -> None:
    """Raise NoNodeError or NodeDownError: what only the node itself tells cannot be asked for."""
    if (await look(client)).node(node_id).is_fenced:
        raise NodeDownError(
            f"node {node_id} is down, and only the node itself tells this. Start it, on its host:"
            " sudo systemctl start dlogd.service; then repeat the command, see: dlogctl node list"
        )


async def look_closely(client: BlockingClient) -> Cluster:
    """Look, and ask also for min.insync.replicas, for moves, and who works on the cluster."""
    cluster = await look(client)
    values = await client.admin.describe_values(
        Resource.TOPIC, list(cluster.view.topics), [MIN_ISR]
    )
    try:
        moving = await client.admin.list_reassignments()
    except UnsupportedVersionError:
        moving = []
    return replace(
        cluster,
        min_isr={topic: int(found[MIN_ISR]) for topic, found in values.items()},
        reassigning=[(each.topic, each.partition) for each in moving],
        maintenance=await client.admin.describe_maintenance(),
    )


async def _quorum(client: BlockingClient) -> tuple[QuorumView | None, str | None]:
    """Return the quorum, or why there is none."""
    try:
        async with asyncio.timeout(QUORUM_PATIENCE_S):
            return await client.admin.describe_quorum(), None
    except UnsupportedVersionError:
        return None, None
    except (WireError, TransportError) as error:
        return None, str(error)
    except (TimeoutError, DlogError):
        return None, f"no answer within {QUORUM_PATIENCE_S:g} s"


def known_quorum(cluster: Cluster) -> QuorumView:
    """Return who keeps the metadata; raise click.ClickException when that cannot be told."""
    if cluster.quorum is None:
        reason = cluster.quorum_problem or "the nodes do not tell"
        raise click.ClickException(
            f"the controllers are unknown: {reason}; bring controllers back until most of"
            " them are up, see: dlogctl status"
        )
    return cluster.quorum
