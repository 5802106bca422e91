"""Replacement of replicas on nodes that are dead for long, emptied or new.

Pure and deterministic. A replica is replaced in its place of the list, so that the preferred leader
stays where it is in the order; the copy is made by a reassignment, which the machine ends.
"""

from collections.abc import Iterator

from dlog.types import NodeId
from dlogd.metadata.commands.codec import Assignment, Reassignment
from dlogd.metadata.machine.election import Rules, rules_of
from dlogd.metadata.machine.placement import Loads, by_turns_over_racks, next_replica, usable_nodes
from dlogd.metadata.machine.replication_factor import target_of
from dlogd.metadata.state.image import ClusterImage, NodeRegistration, PartitionImage, TopicImage

Nodes = frozenset[NodeId]


def plan_refill(
    image: ClusterImage, dead: Nodes, leaving: Nodes, room: int, loads: Loads
) -> list[Reassignment]:
    """Return at most `room` new reassignments that take replicas off dead and leaving nodes.

    A reassignment to a node that has died since is made anew, whatever the room; so is one that
    such a node keeps from ending.
    """
    usable = usable_nodes(image)
    if not usable:
        return []
    ring = by_turns_over_racks(usable)
    moves = []
    for topic, number, partition in _affected(image, dead | leaving):
        is_repair = bool(partition.adding or partition.removing)
        if not is_repair and room <= 0:
            continue
        target = _target(image, ring, partition, dead | leaving, loads)
        if target is not None and _is_allowed(rules_of(image, topic), partition, target):
            moves.append(Reassignment(topic_id=topic.topic_id, partition=number, replicas=target))
            loads.count(target)
            room -= not is_repair
    return moves


def empty_nodes(image: ClusterImage) -> Nodes:
    """Return nodes that could hold replicas and hold none."""
    empty = {node.node_id for node in usable_nodes(image) if node.active}
    for topic in image.topics.values():
        for partition in topic.partitions:
            if not empty:
                return frozenset()
            empty.difference_update(partition.replicas)
    return frozenset(empty)


def _affected(image: ClusterImage, gone: Nodes) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
    """Yield partitions with a leader that shall have a replica on a node that is gone."""
    for topic in image.topics.values():
        for number, partition in enumerate(topic.partitions):
            if not partition.has_leader:
                continue  # there is nobody to copy from
            if any(node_id in gone for node_id in _wanted(image, topic, partition, gone)):
                yield topic, number, partition


def _wanted(
    image: ClusterImage, topic: TopicImage, partition: PartitionImage, gone: Nodes
) -> Assignment:
    """Return the replicas that are looked at: of a reassignment that can end, only its new ones."""
    if not partition.adding and not partition.removing:
        return partition.replicas
    target = target_of(partition)
    if gone.isdisjoint(target):
        return target
    living = sum(n not in gone or image.nodes[n].active for n in target)
    can_end = living >= max(1, min(rules_of(image, topic).min_isr, len(target)))
    return partition.adding if can_end else target


def _target(
    image: ClusterImage,
    ring: list[NodeRegistration],
    partition: PartitionImage,
    gone: Nodes,
    loads: Loads,
) -> Assignment | None:
    """Return the replicas that a partition should have, None when there is nobody to take over."""
    present = target_of(partition)
    # Whoever stays has its rack, be it down for a moment or drained of leaders.
    chosen = [image.nodes[n] for n in present if n in image.nodes and n not in gone]
    others = [node for node in ring if node.node_id not in gone and node.node_id not in present]
    target = list(present)
    for place, node_id in enumerate(present):
        if node_id not in gone or not others:
            continue
        taker = next_replica(others, chosen, loads)
        others.remove(taker)
        chosen.append(taker)
        target[place] = taker.node_id
    return None if tuple(target) == present else tuple(target)


def _is_allowed(rules: Rules, partition: PartitionImage, target: Assignment) -> bool:
    """Return False where too few in sync would be left.

    The machine would refuse it, and the other moves of the plan with it.
    """
    kept = {*target, *(n for n in partition.replicas if n not in partition.adding)}
    holders = partition.holders
    if holders and not any(n in kept for n in holders):
        return False
    return rules.may_let_go(partition, kept, len(target))
