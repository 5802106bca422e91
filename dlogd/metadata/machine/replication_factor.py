"""Change of a topic's replication factor: replicas to add or remove.

Pure and deterministic. More: the least loaded nodes, on racks that have none yet. Fewer: who is out
of sync goes first, of those who is not eligible either (KIP-966), then who stands last in the
order; never the leader. What is moving already is changed from where it is going.
"""

from dlog.errors import InvalidReplicationFactorError
from dlog.types import NO_NODE, NodeId
from dlogd.metadata.commands.codec import Assignment, Reassignment
from dlogd.metadata.machine.placement import Loads, by_turns_over_racks, next_replica, usable_nodes
from dlogd.metadata.state.image import ClusterImage, NodeRegistration, PartitionImage, TopicImage


def factor_of(topic: TopicImage) -> int:
    """Return how many replicas the partitions of a topic shall have; the least when they differ."""
    return min(len(target_of(each)) for each in topic.partitions)


def target_of(partition: PartitionImage) -> Assignment:
    """Return the replicas that a partition has when nothing moves any more."""
    return tuple(each for each in partition.replicas if each not in partition.removing)


def plan_factor(
    image: ClusterImage, topic: TopicImage, factor: int, loads: Loads
) -> list[Reassignment]:
    """Return the moves after which each partition has `factor` replicas; raise WireError."""
    usable = usable_nodes(image)
    ring = by_turns_over_racks(usable) if usable else []
    moves = []
    for number, partition in enumerate(topic.partitions):
        target = target_of(partition)
        if len(target) == factor:
            continue
        if len(target) < factor:
            wanted = _more(image, topic, ring, target, factor, loads)
        else:
            wanted = _fewer(partition, target, factor)
        moves.append(Reassignment(topic_id=topic.topic_id, partition=number, replicas=wanted))
    return moves


def _more(
    image: ClusterImage,
    topic: TopicImage,
    ring: list[NodeRegistration],
    target: Assignment,
    factor: int,
    loads: Loads,
) -> Assignment:
    chosen = [image.nodes[each] for each in target if each in image.nodes]
    others = [node for node in ring if node.node_id not in target]
    wanted = list(target)
    while len(wanted) < factor:
        if not others:
            raise InvalidReplicationFactorError(
                f"{topic.name} cannot have {factor} replicas: beside those that it has,"
                f" {len(wanted) - len(target) or 'none'} of the nodes can take one"
            )
        taker = next_replica(others, chosen, loads)
        others.remove(taker)
        chosen.append(taker)
        wanted.append(taker.node_id)
        loads.replicas[taker.node_id] += 1
    return tuple(wanted)


def _fewer(partition: PartitionImage, target: Assignment, factor: int) -> Assignment:
    leader = partition.leader
    if leader == NO_NODE:
        leader = next((each for each in partition.holders if each in target), target[0])

    def goes_first(place: int) -> tuple[bool, bool, int]:
        return target[place] in partition.isr, target[place] in partition.elr, -place

    places = sorted((p for p in range(len(target)) if target[p] != leader), key=goes_first)
    gone: set[NodeId] = {target[place] for place in places[: len(target) - factor]}
    return tuple(each for each in target if each not in gone)
