"""Commands about partitions: ISRs, leaders, replicas.

Pure. Part of `dlogd.metadata.commands.codec`, which says what a command is.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, Self
from uuid import UUID

from dlog.types import LeaderEpoch, NodeId, PartitionEpoch, TopicId
from dlogd.metadata.state.encoding import MalformedError, Reader, Writer
from dlogd.metadata.state.shared_fields import (
    Assignment,
    CommandKind,
    PartitionSet,
    read_nodes,
    read_partition_set,
    write_nodes,
    write_partition_set,
)


class ElectionKind(IntEnum):
    """Which leader is wanted; the first two numbers are Kafka's."""

    PREFERRED = 0
    UNCLEAN = 1  # any replica that can lead: an operator's order
    UNCLEAN_IF_ALLOWED = 2  # the same where `unclean.leader.election.enable` of the topic says so


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartition:
    """A leader changes the ISR of its partition; the outcome's value is the new partition epoch.

    Both epochs of the partition must be those of the image (KIP-497). Members come with the node
    epoch that the leader knows, so that a node which has restarted since is not let in (KIP-903).
    """

    KIND: ClassVar = CommandKind.ALTER_PARTITION

    command_id: UUID
    topic_id: TopicId
    partition: int
    node_id: NodeId  # the leader
    node_epoch: int
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    isr: tuple[tuple[NodeId, int], ...]

    def write(self, writer: Writer) -> None:
        """Write the body."""
        writer.uuid(self.topic_id)
        writer.u32(self.partition)
        writer.i32(self.node_id)
        writer.i64(self.node_epoch)
        writer.i32(self.leader_epoch)
        writer.i32(self.partition_epoch)
        writer.u8(len(self.isr))
        for node_id, node_epoch in self.isr:
            writer.i32(node_id)
            writer.i64(node_epoch)

    @classmethod
    def read(cls, command_id: UUID, reader: Reader) -> Self:
        """Read the body."""
        return cls(
            command_id=command_id,
            topic_id=reader.uuid(),
            partition=reader.u32(),
            node_id=NodeId(reader.i32()),
            node_epoch=reader.i64(),
            leader_epoch=LeaderEpoch(reader.i32()),
            partition_epoch=PartitionEpoch(reader.i32()),
            isr=tuple((NodeId(reader.i32()), reader.i64()) for _ in range(reader.u8())),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeaders:
    """Elect leaders where that is possible and needed; the value is how many there are new.

    The unclean kinds may lose acknowledged records, and touch only partitions without a leader.
    """

    KIND: ClassVar = CommandKind.ELECT_LEADERS

    command_id: UUID
    election: ElectionKind
    partitions: PartitionSet

    def write(self, writer: Writer) -> None:
        """Write the body."""
        writer.u8(self.election)
        write_partition_set(writer, self.partitions)

    @classmethod
    def read(cls, command_id: UUID, reader: Reader) -> Self:
        """Read the body."""
        number = reader.u8()
        if number > ElectionKind.UNCLEAN_IF_ALLOWED:
            raise MalformedError(f"{number} is no election")
        return cls(
            command_id=command_id,
            election=ElectionKind(number),
            partitions=read_partition_set(reader),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassignment:
    """The replicas that a partition shall have; None ends a reassignment and goes back."""

    topic_id: TopicId
    partition: int
    replicas: Assignment | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterAssignments:
    """Begin or cancel reassignments, all or none."""

    KIND: ClassVar = CommandKind.ALTER_ASSIGNMENTS

    command_id: UUID
    reassignments: tuple[Reassignment, ...]

    def write(self, writer: Writer) -> None:
        """Write the body."""
        writer.u32(len(self.reassignments))
        for each in self.reassignments:
            writer.uuid(each.topic_id)
            writer.u32(each.partition)
            writer.boolean(each.replicas is not None)
            if each.replicas is not None:
                write_nodes(writer, each.replicas)

    @classmethod
    def read(cls, command_id: UUID, reader: Reader) -> Self:
        """Read the body."""
        reassignments = tuple(
            Reassignment(
                topic_id=reader.uuid(),
                partition=reader.u32(),
                replicas=read_nodes(reader) if reader.boolean() else None,
            )
            for _ in range(reader.count(21))
        )
        return cls(command_id=command_id, reassignments=reassignments)
