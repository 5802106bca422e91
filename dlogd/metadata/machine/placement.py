"""Placement of replicas of new partitions on nodes.

Pure and deterministic: the same image gives the same places. Called by proposers; the machine only
checks the result. The least loaded node comes first; of equal ones the next in turn.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from dlog.errors import (
    BrokerNotAvailableError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
)
from dlog.types import NodeId
from dlogd.metadata.commands.codec import Assignment
from dlogd.metadata.state.image import ClusterImage, Drain, NodeRegistration, TopicImage
from dlogd.metadata.state.persistent_map import suspects


@dataclass(slots=True)
class Loads:
    """How many partitions prefer each node as leader, and how many have a replica on it."""

    leaders: Counter[NodeId] = field(default_factory=Counter)
    replicas: Counter[NodeId] = field(default_factory=Counter)
    partition_count: int = 0

    @classmethod
    def of(cls, image: ClusterImage) -> "Loads":
        """Count everything in an image."""
        loads = cls()
        for topic in image.topics.values():
            loads.count_topic(topic)
        return loads

    def copy(self) -> "Loads":
        """Return loads that can be changed without changing these."""
        return Loads(Counter(self.leaders), Counter(self.replicas), self.partition_count)

    def count_topic(self, topic: TopicImage, by: int = 1) -> None:
        """Count a topic in, or out again with -1."""
        for partition in topic.partitions:
            self.count(partition.replicas, by)

    def count(self, replicas: Assignment, by: int = 1) -> None:
        """Count a partition in, or out again with -1."""
        self.partition_count += by
        self.leaders[replicas[0]] += by
        for node_id in replicas:
            self.replicas[node_id] += by


class LoadTracker:
    """Keeps the loads of the newest image, at the cost of what changes. One owner."""

    def __init__(self) -> None:
        self._topics: Mapping[str, TopicImage] = {}
        self._loads = Loads()

    def loads(self, image: ClusterImage) -> Loads:
        """Return the loads of an image, for the caller to change."""
        if image.topics is not self._topics:
            for name, topic in suspects(self._topics, image.topics):
                if image.topics.get(name) is not topic:
                    self._loads.count_topic(topic, -1)
            for name, topic in suspects(image.topics, self._topics):
                if self._topics.get(name) is not topic:
                    self._loads.count_topic(topic)
            self._topics = image.topics
        return self._loads.copy()


def place(
    image: ClusterImage,
    partition_count: int,
    replication_factor: int,
    loads: Loads | None = None,
) -> tuple[Assignment, ...]:
    """Return the replicas of so many new partitions, preferred leaders first.

    Replicas of one partition are on different nodes, and on different racks while there are any.
    `loads` are those of the image, and count the new partitions afterwards: pass the same ones for
    all topics of a request.
    """
    if partition_count < 1:
        raise InvalidPartitionsError("Number of partitions must be larger than 0")
    if replication_factor < 1:
        raise InvalidReplicationFactorError("Replication factor must be larger than 0")
    nodes, reserve = _takers(image)
    if not any(node.active for node in nodes):
        raise BrokerNotAvailableError(f"No node is active{_why_not(image)}")
    if replication_factor > len(nodes) + len(reserve):
        raise InvalidReplicationFactorError(
            f"Replication factor {replication_factor} is larger than the"
            f" {len(nodes) + len(reserve)} nodes that can hold replicas{_why_not(image)}"
        )
    ring = by_turns_over_racks(nodes)
    held = Loads.of(image) if loads is None else loads
    return tuple(_replicas(ring, reserve, held, replication_factor) for _ in range(partition_count))


def usable_nodes(image: ClusterImage) -> list[NodeRegistration]:
    """Return the nodes that replicas go to at best: active, not drained, with a disk in service."""
    return [node for node in _holders(image) if node.active and node.drain == Drain.NONE]


def _holders(image: ClusterImage) -> list[NodeRegistration]:
    """Return the nodes that can be given replicas at all, be it that they come back for them."""
    return [
        node
        for node in image.nodes.values()
        if node.drain != Drain.REPLICAS and not _has_lost_all(node)
    ]


def _takers(image: ClusterImage) -> tuple[list[NodeRegistration], list[NodeRegistration]]:
    """Return the nodes that replicas go to, and in order those that help out when these are few.

    So that a topic can be created while a node restarts (Kafka's `StripedReplicaPlacer`): first
    those that are drained of leaders, then those that are down.
    """
    usable = usable_nodes(image)
    drained = [n for n in _holders(image) if n.active and n.drain != Drain.NONE]
    down = [n for n in _holders(image) if not n.active]
    return (usable, drained + down) if usable else (drained, down)


def _why_not(image: ClusterImage) -> str:
    """Return which nodes get nothing, or are not up, and why, as the end of a sentence."""
    reasons: dict[str, list[str]] = {}
    for node in image.nodes.values():
        if node.drain == Drain.REPLICAS:
            reason = "drained of replicas"
        elif _has_lost_all(node):
            reason = "without a disk"
        elif not node.active:
            reason = "fenced" if node.fenced else "shutting down"
        else:
            continue
        reasons.setdefault(reason, []).append(str(node.node_id))
    told = "; ".join(f"{reason}: {', '.join(nodes)}" for reason, nodes in reasons.items())
    return f" ({told})" if told else ""


def _has_lost_all(node: NodeRegistration) -> bool:
    return bool(node.directory_ids) and all(
        directory_id in node.failed_directory_ids for directory_id in node.directory_ids
    )


def by_turns_over_racks(nodes: list[NodeRegistration]) -> list[NodeRegistration]:
    """Order nodes so that neighbours are on different racks where that is possible."""
    racks: dict[str, list[NodeRegistration]] = {}
    for node in sorted(nodes, key=lambda node: node.node_id):
        racks.setdefault(node.rack or "", []).append(node)
    ring: list[NodeRegistration] = []
    columns = [racks[rack] for rack in sorted(racks)]
    for row in range(max(map(len, columns))):
        ring.extend(column[row] for column in columns if row < len(column))
    return ring


def _replicas(
    ring: list[NodeRegistration], reserve: list[NodeRegistration], loads: Loads, count: int
) -> Assignment:
    """Take the node that leads least, then its followers: first from racks that are not used yet.

    The reserve comes last, those that are up before those that are not. With each round over the
    ring the followers begin one place further on, so that the partitions of one leader do not all
    have the same followers.
    """
    size, number = len(ring), loads.partition_count

    def leads(place: int) -> tuple[int, int, int]:
        node_id = ring[place].node_id
        held = loads.leaders[node_id], loads.replicas[node_id]
        return *held, (place - number) % size

    leader = min(range(size), key=leads)
    shift = (number // size) % (size - 1) if size > 1 else 0
    others = [ring[(leader + 1 + (shift + step) % (size - 1)) % size] for step in range(size - 1)]
    chosen = [ring[leader]]
    up = [node for node in reserve if node.active]
    down = [node for node in reserve if not node.active]
    for group in (others, up, down):
        while group and len(chosen) < count:
            chosen.append(next_replica(group, chosen, loads))
            group.remove(chosen[-1])
    replicas = tuple(node.node_id for node in chosen)
    loads.count(replicas)
    return replicas


def next_replica(
    others: list[NodeRegistration], chosen: list[NodeRegistration], loads: Loads
) -> NodeRegistration:
    """Return who of `others` takes the next replica beside `chosen`: a new rack, then least load.

    Of equal ones, the first.
    """
    racks = {node.rack for node in chosen}
    return min(
        others,
        key=lambda node: (node.rack in racks, loads.replicas[node.node_id]),
    )
