"""On which nodes the replicas of new partitions go.

Pure and deterministic: the same image gives the same places. Called by proposers; the machine only
checks the result.
"""

from dlog.errors import (
    BrokerNotAvailableError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
)
from dlog.types import NodeId
from dlogd.metadata.commands import Assignment
from dlogd.metadata.image import ClusterImage, NodeRegistration


def place(
    image: ClusterImage, partition_count: int, replication_factor: int
) -> tuple[Assignment, ...]:
    """Return the replicas of so many new partitions, preferred leaders first.

    Leaders go round over all unfenced nodes, from where the partitions that exist leave off.
    Replicas of one partition are on different nodes, and on different racks while there are any.
    """
    if partition_count < 1:
        raise InvalidPartitionsError("Number of partitions must be larger than 0")
    nodes = [node for node in image.nodes.values() if not node.fenced]
    if replication_factor < 1:
        raise InvalidReplicationFactorError("Replication factor must be larger than 0")
    if not nodes:
        raise BrokerNotAvailableError("No node is active")
    if replication_factor > len(nodes):
        raise InvalidReplicationFactorError(
            f"Replication factor {replication_factor} is larger than the {len(nodes)} active nodes"
        )
    ring = _by_turns_over_racks(nodes)
    start = sum(len(topic.partitions) for topic in image.topics.values())
    return tuple(
        _replicas(ring, start + number, replication_factor) for number in range(partition_count)
    )


def _by_turns_over_racks(nodes: list[NodeRegistration]) -> list[NodeRegistration]:
    """Order nodes so that neighbours are on different racks where that is possible."""
    racks: dict[str, list[NodeRegistration]] = {}
    for node in sorted(nodes, key=lambda node: node.node_id):
        racks.setdefault(node.rack or "", []).append(node)
    ring: list[NodeRegistration] = []
    columns = [racks[rack] for rack in sorted(racks)]
    for row in range(max(map(len, columns))):
        ring.extend(column[row] for column in columns if row < len(column))
    return ring


def _replicas(ring: list[NodeRegistration], number: int, count: int) -> Assignment:
    """Take a leader by turns, then its followers: first from racks that are not used yet.

    With each round over the ring the followers begin one place further on, so that the partitions
    of one leader do not all have the same followers.
    """
    size = len(ring)
    leader = number % size
    shift = (number // size) % (size - 1) if size > 1 else 0
    others = [ring[(leader + 1 + (shift + step) % (size - 1)) % size] for step in range(size - 1)]
    chosen: list[NodeId] = [ring[leader].node_id]
    racks = {ring[leader].rack}
    for node in others:
        if len(chosen) < count and node.rack not in racks:
            chosen.append(node.node_id)
            racks.add(node.rack)
    for node in others:
        if len(chosen) < count and node.node_id not in chosen:
            chosen.append(node.node_id)
    return tuple(chosen)
