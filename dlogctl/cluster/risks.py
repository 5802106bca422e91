"""Risks of a node's restart for partitions.

Pure. The rule: where an ISR has no more than `min.insync.replicas` members and the node is one of
them, a restart would stop producers with ack all, and the node must wait. Where the replication
factor itself is that small nothing can be done about it, so it is only listed.
"""

from dataclasses import dataclass, field

from dlog.client.views import PartitionView
from dlogctl.cluster.cluster_view import Cluster, quorum_problems
from dlogctl.cluster.partition_names import some


@dataclass(slots=True)
class Risks:
    """Names of partitions by what a restart of one node would do to them, and what forbids it."""

    reasons: list[str] = field(default_factory=list)
    would_go_offline: list[str] = field(default_factory=list)
    would_refuse_ack_all: list[str] = field(default_factory=list)
    could_lose_ack_leader: list[str] = field(default_factory=list)
    replication_factor_1: list[str] = field(default_factory=list)

    @property
    def may_restart(self) -> bool:
        """Whether nothing forbids it."""
        return not self.reasons


def risks_of(cluster: Cluster, node_id: int) -> Risks:
    """Judge the restart of a node of a cluster that was looked at closely."""
    risks = Risks(reasons=_preconditions(cluster, node_id))
    blocked: list[str] = []
    for topic, partition in cluster.held_by(node_id):
        name = f"{topic}-{partition.partition}"
        wanted = cluster.min_isr.get(topic, 1)
        left = [each for each in partition.isr if each != node_id]
        if len(partition.replicas) == 1:
            risks.replication_factor_1.append(name)
        if not left:
            risks.would_go_offline.append(name)
        if len(left) < wanted:
            risks.would_refuse_ack_all.append(name)
        if partition.leader == node_id and len(partition.replicas) > 1:
            risks.could_lose_ack_leader.append(name)
        if _is_blocked(partition, node_id, wanted):
            blocked.append(name)
    if blocked:
        risks.reasons.append(
            f"{some(blocked)} would have fewer replicas in sync than producers with ack all need"
        )
    return risks


def _is_blocked(partition: PartitionView, node_id: int, wanted: int) -> bool:
    if len(partition.replicas) <= wanted:
        return False  # nothing can be done about it
    in_sync = len(partition.isr)
    return in_sync < wanted or (in_sync == wanted and node_id in partition.isr)


def _preconditions(cluster: Cluster, node_id: int) -> list[str]:
    """Return what is wrong with the cluster, apart from the node itself."""
    fenced = cluster.others_fenced(node_id)
    reasons = [f"node {each} is fenced: bring it back first" for each in fenced]
    if offline := cluster.leaderless():
        reasons.append(f"{some(offline)} have no leader")
    reasons += quorum_problems(cluster)
    reasons += _quorum_after(cluster, node_id)
    if cluster.reassigning:
        moving = [f"{topic}-{number}" for topic, number in cluster.reassigning]
        reasons.append(f"{some(moving)} are being reassigned: wait for them")
    return reasons


def _quorum_after(cluster: Cluster, node_id: int) -> list[str]:
    """Return why the metadata would be without a quorum, unless the node is its only voter."""
    if cluster.quorum is None or cluster.voter(node_id) is None:
        return []
    voters = cluster.quorum.voters
    up = [
        each.node_id
        for each in voters
        if each.node_id != node_id
        and not ((state := cluster.nodes.get(each.node_id)) and state.is_fenced)
    ]
    if len(voters) == 1 or len(up) >= len(voters) // 2 + 1:
        return []
    return [f"the metadata would have no quorum: of its voters only {up} would be up"]
