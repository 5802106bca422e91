"""Health of a cluster, with reasons.

Pure: judges what `dlogctl.commands.status` gathered from the metadata and from the nodes' /status.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dlog.client.views import PartitionView, TopicView
from dlog.errors import NONE
from dlogctl.cluster.cluster_view import Cluster, quorum_problems
from dlogctl.output.documents import format_bytes

NAMES_SHOWN = 5


def _named(partitions: Sequence[tuple[str, int]]) -> str:
    shown = ", ".join(f"{topic}-{number}" for topic, number in partitions[:NAMES_SHOWN])
    return shown + (", ..." if len(partitions) > NAMES_SHOWN else "")


def _partitions_where(topics: Sequence[TopicView], matches: Any) -> list[tuple[str, int]]:
    return [
        (topic.name, each.partition)
        for topic in topics
        for each in topic.partitions
        if matches(each)
    ]


def _by_min_isr(
    cluster: Cluster, topics: Sequence[TopicView], matches: Callable[[int], bool]
) -> list[tuple[str, int]]:
    """Return partitions by how many replicas they have in sync beyond what must be.

    Where all replicas must be in sync and are, nothing is wrong.
    """
    found = []
    for topic in topics:
        wanted = cluster.min_isr.get(topic.name, 0)
        for each in topic.partitions:
            whole = len(each.isr) == len(each.replicas)
            if wanted and not whole and matches(len(each.isr) - wanted):
                found.append((topic.name, each.partition))
    return found


def partition_counts(cluster: Cluster) -> dict[str, list[tuple[str, int]]]:
    """Return the partitions that are not as they should be, by what is wrong with them."""
    topics = sorted(cluster.view.topics.values(), key=lambda topic: topic.name)

    def leaderless(each: PartitionView) -> bool:
        return each.leader < 0

    def under_replicated(each: PartitionView) -> bool:
        return len(each.isr) < len(each.replicas)

    def has_offline(each: PartitionView) -> bool:
        return bool(each.offline)

    def non_preferred(each: PartitionView) -> bool:
        return each.leader >= 0 and bool(each.replicas) and each.leader != each.replicas[0]

    return {
        "leaderless": _partitions_where(topics, leaderless),
        "under_replicated": _partitions_where(topics, under_replicated),
        "under_min_isr": _by_min_isr(cluster, topics, lambda spare: spare < 0),
        "at_min_isr": _by_min_isr(cluster, topics, lambda spare: spare == 0),
        "offline_replicas": _partitions_where(topics, has_offline),
        "reassigning": sorted(cluster.reassigning),
        "non_preferred_leader": _partitions_where(topics, non_preferred),
    }


def _reasons_of_node(node_id: int, status: Mapping[str, Any] | None) -> list[str]:
    if status is None:
        return []
    return [f"node {node_id}: {problem}" for problem in status.get("problems", ())]


def gossip_notes(statuses: Mapping[int, Mapping[str, Any] | None]) -> list[str]:
    """Return where gossip and metadata disagree, and who says so. It decides nothing."""
    said: dict[str, list[int]] = {}
    for node_id in sorted(statuses):
        membership = (statuses[node_id] or {}).get("membership") or {}
        for each in membership.get("disagreements", ()):
            said.setdefault(each, []).append(node_id)
    return [f"{each} (says {', '.join(map(str, nodes))})" for each, nodes in said.items()]


def reasons_against(
    cluster: Cluster,
    statuses: Mapping[int, Mapping[str, Any] | None],
    unreachable: Sequence[int] = (),
) -> list[str]:
    """Return why the cluster is not healthy; nothing when it is. Unknown is not unhealthy."""
    view = cluster.view
    counts = partition_counts(cluster)
    reasons = quorum_problems(cluster)
    if not reasons and cluster.controller_id < 0:
        reasons.append("there is no controller")
    reasons += [
        f"node {each.node_id} is fenced: it is down, or cannot be reached"
        for each in cluster.nodes.values()
        if each.is_fenced
    ]
    for key, words in (
        ("leaderless", "have no leader"),
        ("under_replicated", "are under-replicated"),
        ("under_min_isr", "have fewer replicas in sync than min.insync.replicas"),
        ("offline_replicas", "have offline replicas"),
    ):
        if counts[key]:
            reasons.append(f"{len(counts[key])} partitions {words}: {_named(counts[key])}")
    reasons += [f"node {node_id} does not answer" for node_id in unreachable]
    reasons += [
        f"topic {topic.name} has error {topic.error_code}"
        for topic in view.topics.values()
        if topic.error_code != NONE
    ]
    for node_id in sorted(statuses):
        reasons += _reasons_of_node(node_id, statuses[node_id])
    return reasons


def throttle_notes(throttles: Mapping[int, Mapping[str, int]]) -> list[str]:
    """Say which nodes replicate at a limited rate: one that is forgotten keeps replicas behind.

    `throttles`: by node, config and bytes per second.
    """
    nodes: dict[tuple[str, int], list[int]] = {}
    for node_id, rates in sorted(throttles.items()):
        for name, rate in rates.items():
            nodes.setdefault((name, rate), []).append(node_id)
    return [
        f"replication is throttled: {name} is {format_bytes(rate)} a second on"
        f" {'node' if len(found) == 1 else 'nodes'} {', '.join(map(str, found))}, for the replicas"
        f" that topics name in {name.removesuffix('rate')}replicas"
        for (name, rate), found in nodes.items()
    ]
