"""Fields that several commands share: kinds, assignments, lists of replicas, their bytes.

Pure. The commands are in modules of their own, one for each subject;
`dlogd.metadata.commands.codec` puts them together.
"""

from enum import IntEnum

from dlog.types import NodeId, TopicId
from dlogd.metadata.state.encoding import MalformedError, Reader, Writer
from dlogd.metadata.state.image import NodeAddress

Assignment = tuple[NodeId, ...]
"""Replicas of one partition, the preferred leader first."""

PartitionSet = tuple[tuple[TopicId, tuple[int, ...]], ...]
"""Partitions of some topics, by topic id."""


class MalformedCommandError(MalformedError):
    """Bytes that are no command, or a command that has no bytes."""


class CommandKind(IntEnum):
    """The first byte of a command; never reused."""

    REGISTER_NODE = 1
    CREATE_TOPIC = 2
    DELETE_TOPIC = 3
    CREATE_PARTITIONS = 4
    ALTER_CONFIGS = 5
    ALLOCATE_PRODUCER_IDS = 6
    CREATE_TOPICS = 7
    FENCE_NODES = 8
    UNFENCE_NODE = 9
    DRAIN_NODE = 10
    SHUT_DOWN_NODE = 11
    REMOVE_NODE = 12
    REPORT_REPLICAS = 13
    ALTER_PARTITION = 14
    ELECT_LEADERS = 15
    ALTER_ASSIGNMENTS = 16
    CLAIM_CONTROLLER = 17
    SET_FEATURE_LEVEL = 18
    GUARDED = 19
    DELETE_TOPICS = 20
    HOLD_MAINTENANCE = 21
    RELEASE_MAINTENANCE = 22


def write_addresses(writer: Writer, addresses: tuple[NodeAddress, ...]) -> None:
    """Write a node's addresses."""
    writer.u32(len(addresses))
    for address in addresses:
        writer.text(address.listener)
        writer.text(address.host)
        writer.u16(address.port)


def read_addresses(reader: Reader) -> tuple[NodeAddress, ...]:
    """Read a node's addresses."""
    return tuple(
        NodeAddress(listener=reader.text(), host=reader.text(), port=reader.u16())
        for _ in range(reader.count(6))
    )


def write_nodes(writer: Writer, nodes: tuple[NodeId, ...]) -> None:
    """Write a list of node ids."""
    writer.u8(len(nodes))
    for node_id in nodes:
        writer.i32(node_id)


def read_nodes(reader: Reader) -> tuple[NodeId, ...]:
    """Read a list of node ids."""
    return tuple(NodeId(reader.i32()) for _ in range(reader.u8()))


def write_assignments(writer: Writer, assignments: tuple[Assignment, ...]) -> None:
    """Write the replicas of several partitions."""
    writer.u32(len(assignments))
    for assignment in assignments:
        write_nodes(writer, assignment)


def read_assignments(reader: Reader) -> tuple[Assignment, ...]:
    """Read the replicas of several partitions."""
    return tuple(read_nodes(reader) for _ in range(reader.count(1)))


def write_partition_set(writer: Writer, partitions: PartitionSet) -> None:
    """Write partitions of some topics."""
    writer.u32(len(partitions))
    for topic_id, numbers in partitions:
        writer.uuid(topic_id)
        writer.u32(len(numbers))
        for number in numbers:
            writer.u32(number)


def read_partition_set(reader: Reader) -> PartitionSet:
    """Read partitions of some topics."""
    return tuple(
        (reader.uuid(), tuple(reader.u32() for _ in range(reader.count(4))))
        for _ in range(reader.count(20))
    )
