"""Nodes and topics of an image as responses describe them; shared by the APIs that do.

What the image cannot know: a partition whose log failed on this node is offline and led by nobody,
as with Kafka's failed log directories, so that clients choose others. What clients may do is
everything, until access is restricted: the operations of a resource are those that Kafka knows for
it (`AclOperation` codes as bits).
"""

from dlog.errors import (
    InvalidTopicError,
    LeaderNotAvailableError,
    ReplicaNotAvailableError,
    UnknownTopicOrPartitionError,
    WireError,
)
from dlog.types import NO_NODE, NodeId
from dlogd.metadata.state import topic_names
from dlogd.metadata.state.image import (
    ClusterImage,
    NodeAddress,
    NodeRegistration,
    PartitionImage,
    TopicImage,
)
from dlogd.server.context import ServerContext
from dlogd.server.response_builder import Fields

OPERATIONS_UNKNOWN = -(2**31)
"""What is said when the client did not ask."""

READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE = 3, 4, 5, 6, 7, 8
CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = 9, 10, 11, 12


def _bits(*operations: int) -> int:
    return sum(1 << operation for operation in operations)


TOPIC_OPERATIONS = _bits(
    READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS
)
CLUSTER_OPERATIONS = _bits(
    CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE
)

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})


def absence(name: str) -> WireError:
    """Return why there is no topic of this name: because there cannot be one, or just so."""
    try:
        topic_names.validate(name)
    except InvalidTopicError as error:
        return error
    return UnknownTopicOrPartitionError(f"There is no topic '{name}'")


def is_alive(image: ClusterImage, node_id: NodeId) -> bool:
    """Return whether clients can reach a node."""
    node = image.nodes.get(node_id)
    return node is not None and not node.fenced and len(node.addresses) > 0


def address_of(node: NodeRegistration, listener: str) -> NodeAddress | None:
    """Return where a client of one listener reaches a node; the first address when in doubt."""
    for address in node.addresses:
        if address.listener == listener:
            return address
    return node.addresses[0] if node.addresses else None


def controller_id(image: ClusterImage, node_id: NodeId) -> NodeId:
    """Return whom clients ask for changes: this node, as any node may propose them."""
    return node_id if is_alive(image, node_id) else NO_NODE


class Topology:
    """An image and what is out of service on the node that tells of it."""

    __slots__ = ("image", "node_id", "offline")

    def __init__(self, context: ServerContext) -> None:
        self.image = context.image()
        self.node_id = context.node_id
        self.offline = context.offline()

    def has(self, node_id: NodeId, topic: TopicImage, index: int) -> bool:
        """Return whether a replica can be reached, and is in service as far as is known here."""
        if node_id in topic.partitions[index].offline:
            return False
        if node_id == self.node_id and (topic.topic_id, index) in self.offline:
            return False
        return is_alive(self.image, node_id)


def partition_fields(seen: Topology, topic: TopicImage, index: int) -> dict[str, object]:
    """Describe one partition; a leader that cannot be reached, or whose log failed, is none."""
    partition = topic.partitions[index]
    has_leader = seen.has(partition.leader, topic, index)
    return {
        "error_code": 0 if has_leader else LeaderNotAvailableError.code,
        "partition_index": index,
        "leader_id": partition.leader if has_leader else NO_NODE,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": partition.replicas,
        "isr_nodes": partition.isr,
        "offline_replicas": [n for n in partition.replicas if not seen.has(n, topic, index)],
    }


def alive_only(image: ClusterImage, fields: dict[str, object], partition: PartitionImage) -> Fields:
    """Leave out nodes that cannot be reached, and say so: what Metadata version 0 wants."""
    replicas = [n for n in partition.replicas if is_alive(image, n)]
    isr = [n for n in partition.isr if is_alive(image, n)]
    whole = len(replicas) == len(partition.replicas) and len(isr) == len(partition.isr)
    code = fields["error_code"] if whole else fields["error_code"] or ReplicaNotAvailableError.code
    return {**fields, "error_code": code, "replica_nodes": replicas, "isr_nodes": isr}
