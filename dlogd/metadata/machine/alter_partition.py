"""Step of the machine that changes an ISR: a compare-and-set on the partition epoch (KIP-497).

Pure. The order of checks is Kafka's (`ReplicationControlManager`).
"""

from dlog.errors import (
    FencedLeaderEpochError,
    IneligibleReplicaError,
    InvalidRequestError,
    InvalidUpdateVersionError,
)
from dlog.types import NodeId
from dlogd.metadata.commands.codec import AlterPartition
from dlogd.metadata.machine.election import Change
from dlogd.metadata.machine.image_changes import Changes, Step, partition_of, topic_of
from dlogd.metadata.machine.node import node_of
from dlogd.metadata.state.image import ClusterImage, PartitionImage, TopicImage


def alter_partition(image: ClusterImage, command: AlterPartition) -> Step:
    """Change an ISR at its leader's word; the value is the new partition epoch."""
    node_of(image, command.node_id, command.node_epoch)
    topic = topic_of(image, command.topic_id)
    partition = partition_of(topic, command.partition)
    _check_epochs(topic, partition, command)
    isr = tuple(node_id for node_id, _ in command.isr)
    _check_members(partition, isr)
    if command.node_id not in isr:
        raise InvalidRequestError("The leader is not in its own ISR")
    for node_id, node_epoch in command.isr:
        if node_id not in partition.isr:
            _check_newcomer(image, partition, node_id, node_epoch)
    changes = Changes(image)
    settled = changes.add(topic, command.partition, Change(isr=isr))
    return changes.done(), settled.partition_epoch


def _check_epochs(topic: TopicImage, partition: PartitionImage, command: AlterPartition) -> None:
    where = topic.topic_partition(command.partition)
    if command.leader_epoch < partition.leader_epoch:
        raise FencedLeaderEpochError(
            f"{where} has the leader epoch {partition.leader_epoch}, not {command.leader_epoch}"
        )
    if (
        command.leader_epoch > partition.leader_epoch
        or command.partition_epoch > partition.partition_epoch
    ):
        raise InvalidRequestError(f"{where} never had such epochs")
    if command.node_id != partition.leader:
        raise InvalidRequestError(f"Node {command.node_id} does not lead {where}")
    if command.partition_epoch < partition.partition_epoch:
        raise InvalidUpdateVersionError(
            f"{where} has the partition epoch {partition.partition_epoch}, "
            f"not {command.partition_epoch}"
        )


def _check_members(partition: PartitionImage, isr: tuple[NodeId, ...]) -> None:
    """Raise unless only replicas are named, each once."""
    if len(set(isr)) != len(isr) or not set(isr).issubset(partition.replicas):
        raise InvalidRequestError(f"{list(isr)} is not a subset of the replicas")


def _check_newcomer(
    image: ClusterImage, partition: PartitionImage, node_id: NodeId, node_epoch: int
) -> None:
    """Raise unless a node may join the ISR: in this life of it (KIP-841, KIP-903)."""
    node = image.nodes.get(node_id)
    if node is None or not node.active:
        raise IneligibleReplicaError(f"Node {node_id} is fenced, shutting down or unknown")
    if node.node_epoch != node_epoch:
        raise IneligibleReplicaError(
            f"Node {node_id} has the epoch {node.node_epoch}, not {node_epoch}"
        )
    if node_id in partition.offline:
        raise IneligibleReplicaError(f"The replica of node {node_id} is out of service")
