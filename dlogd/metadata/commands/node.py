"""Commands about nodes: registration, fencing, drain, removal.

Pure. Part of `dlogd.metadata.commands.codec`, which says what a command is.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, Self, TypeVar
from uuid import UUID

from dlog.types import NodeId
from dlogd.metadata.commands.maintenance import Permit
from dlogd.metadata.state.encoding import MalformedError, Reader, Writer
from dlogd.metadata.state.image import Drain, NodeAddress
from dlogd.metadata.state.limits import LEVEL_NEWEST, LEVEL_OLDEST
from dlogd.metadata.state.shared_fields import (
    CommandKind,
    PartitionSet,
    read_addresses,
    read_partition_set,
    write_addresses,
    write_partition_set,
)

E = TypeVar("E", bound=IntEnum)


class Proof(IntEnum):
    """What a node knows about its replicas when it starts."""

    NONE = 0  # they may have lost what they promised
    CLEAN = 1  # the clean-shutdown marker of its last life was there
    # No marker, but recovery found all that was below the flushed checkpoint. Holds for partitions
    # under `flush.policy: always` only.
    FLUSHED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterNode:
    """A node has started: give it a new epoch and the leadership that waits for it.

    With `proof` None it is written in version 1, for clusters of feature level 1: the node is
    unfenced at once. Version 2 leaves it fenced until `UnfenceNode`.
    """

    KIND: ClassVar = CommandKind.REGISTER_NODE

    command_id: UUID
    cluster_id: str  # the first registration names the cluster; later ones must agree
    node_id: NodeId
    directory_ids: tuple[UUID, ...]
    addresses: tuple[NodeAddress, ...]
    rack: str | None
    version: str
    # The fields of version 2.
    proof: Proof | None = None
    # The node epoch of the life that wrote the data directories last, as they say; -1: unknown.
    # An old copy of a directory, or a start that did not end well, has another than the image.
    previous_epoch: int = -1
    # Directories that were known and are out of service or gone now.
    failed_directory_ids: tuple[UUID, ...] = ()
    level_min: int = LEVEL_OLDEST
    level_max: int = LEVEL_NEWEST
    # Exceptions from the proof: these replicas may have lost something,
    unproven: PartitionSet = ()
    # ... these are out of service here,
    offline: PartitionSet = ()
    # ... and of these nothing is left: a directory that was known is empty or gone.
    missing: PartitionSet = ()

    @property
    def body_version(self) -> int:
        """Which version of the body holds it."""
        return 1 if self.proof is None else 2

    def write(self, writer: Writer) -> None:
        """Write the body."""
        writer.text(self.cluster_id)
        writer.i32(self.node_id)
        _write_uuids(writer, self.directory_ids)
        write_addresses(writer, self.addresses)
        writer.optional_text(self.rack)
        writer.text(self.version)
        if self.proof is None:
            return
        writer.u8(self.proof)
        writer.i64(self.previous_epoch)
        _write_uuids(writer, self.failed_directory_ids)
        writer.u16(self.level_min)
        writer.u16(self.level_max)
        write_partition_set(writer, self.unproven)
        write_partition_set(writer, self.offline)
        write_partition_set(writer, self.missing)

    @classmethod
    def read_1(cls, command_id: UUID, reader: Reader) -> Self:
        """Read the body of version 1."""
        return cls(
            command_id=command_id,
            cluster_id=reader.text(),
            node_id=NodeId(reader.i32()),
            directory_ids=_read_uuids(reader),
            addresses=read_addresses(reader),
            rack=reader.optional_text(),
            version=reader.text(),
        )

    @classmethod
    def read(cls, command_id: UUID, reader: Reader) -> Self:
        """Read the body of version 2."""
        return cls(
            command_id=command_id,
            cluster_id=reader.text(),
            node_id=NodeId(reader.i32()),
            directory_ids=_read_uuids(reader),
            addresses=read_addresses(reader),
            rack=reader.optional_text(),
            version=reader.text(),
            proof=_one_of(Proof, reader.u8()),
            previous_epoch=reader.i64(),
            failed_directory_ids=_read_uuids(reader),
            level_min=reader.u16(),
            level_max=reader.u16(),
            unproven=read_partition_set(reader),
            offline=read_partition_set(reader),
            missing=read_partition_set(reader),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceNodes:
    """Nodes are not heard of: they leave all ISRs and lead nothing. All or none.

    Nodes that fail together are fenced together: so each of them stays eligible for the partitions
    that lose all of their ISR, and not only the last one.
    """

    KIND: ClassVar = CommandKind.FENCE_NODES

    command_id: UUID
    nodes: tuple[tuple[NodeId, int], ...]  # with the epoch of the life that is meant

    def write(self, writer: Writer) -> None:
        """Write the body."""
        writer.u32(len(self.nodes))
        for node_id, node_epoch in self.nodes:
            writer.i32(node_id)
            writer.i64(node_epoch)

    @classmethod
    def read(cls, command_id: UUID, reader: Reader) -> Self:
        """Read the body."""
        nodes = tuple((NodeId(reader.i32()), reader.i64()) for _ in range(reader.count(12)))
        return cls(command_id=command_id, nodes=nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfOneLife:
    """A command about one life of a node."""

    command_id: UUID
    node_id: NodeId
    node_epoch: int

    def write(self, writer: Writer) -> None:
        """Write the body."""
        writer.i32(self.node_id)
        writer.i64(self.node_epoch)

    @classmethod
    def read(cls, command_id: UUID, reader: Reader) -> Self:
        """Read the body."""
        return cls(command_id=command_id, node_id=NodeId(reader.i32()), node_epoch=reader.i64())


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfenceNode(_OfOneLife):
    """A node is up, has a lease and has read the metadata: it may lead and join ISRs."""

    KIND: ClassVar = CommandKind.UNFENCE_NODE


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutDownNode(_OfOneLife):
    """A node is about to stop in order: its leaders move and it leaves all ISRs."""

    KIND: ClassVar = CommandKind.SHUT_DOWN_NODE


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveNode(_OfOneLife):
    """An operator forgets a node; refused while it runs or holds replicas.

    Version 2, which has a permit, may be applied while the maintenance lock is held.
    """

    KIND: ClassVar = CommandKind.REMOVE_NODE

    permit: Permit | None = None

    @property
    def body_version(self) -> int:
        """Which version of the body holds it."""
        return 1 if self.permit is None else 2

    def write(self, writer: Writer) -> None:
        """Write the body."""
        writer.i32(self.node_id)
        writer.i64(self.node_epoch)
        if self.permit is not None:
            self.permit.write(writer)

    @classmethod
    def read_2(cls, command_id: UUID, reader: Reader) -> Self:
        """Read the body of version 2."""
        return cls(
            command_id=command_id,
            node_id=NodeId(reader.i32()),
            node_epoch=reader.i64(),
            permit=Permit.read(reader),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainNode:
    """An operator wants leaders, or everything, off a node; or no longer.

    Version 2, which has a permit, may begin a drain while the maintenance lock is held.
    """

    KIND: ClassVar = CommandKind.DRAIN_NODE

    command_id: UUID
    node_id: NodeId
    drain: Drain
    permit: Permit | None = None

    @property
    def body_version(self) -> int:
        """Which version of the body holds it."""
        return 1 if self.permit is None else 2

    def write(self, writer: Writer) -> None:
        """Write the body."""
        writer.i32(self.node_id)
        writer.u8(self.drain)
        if self.permit is not None:
            self.permit.write(writer)

    @classmethod
    def read(cls, command_id: UUID, reader: Reader) -> Self:
        """Read the body."""
        node_id = NodeId(reader.i32())
        return cls(command_id=command_id, node_id=node_id, drain=_one_of(Drain, reader.u8()))

    @classmethod
    def read_2(cls, command_id: UUID, reader: Reader) -> Self:
        """Read the body of version 2."""
        return cls(
            command_id=command_id,
            node_id=NodeId(reader.i32()),
            drain=_one_of(Drain, reader.u8()),
            permit=Permit.read(reader),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportReplicas:
    """A node says which of its directories and replicas are out of service, or in it again."""

    KIND: ClassVar = CommandKind.REPORT_REPLICAS

    command_id: UUID
    node_id: NodeId
    node_epoch: int
    failed_directory_ids: tuple[UUID, ...]
    offline: PartitionSet
    online: PartitionSet  # repaired; empty or behind, so they come back by fetching

    def write(self, writer: Writer) -> None:
        """Write the body."""
        writer.i32(self.node_id)
        writer.i64(self.node_epoch)
        _write_uuids(writer, self.failed_directory_ids)
        write_partition_set(writer, self.offline)
        write_partition_set(writer, self.online)

    @classmethod
    def read(cls, command_id: UUID, reader: Reader) -> Self:
        """Read the body."""
        return cls(
            command_id=command_id,
            node_id=NodeId(reader.i32()),
            node_epoch=reader.i64(),
            failed_directory_ids=_read_uuids(reader),
            offline=read_partition_set(reader),
            online=read_partition_set(reader),
        )


def _one_of(kind: type[E], value: int) -> E:
    try:
        return kind(value)
    except ValueError:
        raise MalformedError(f"{value} is no {kind.__name__}") from None


def _write_uuids(writer: Writer, ids: tuple[UUID, ...]) -> None:
    writer.u32(len(ids))
    for each in ids:
        writer.uuid(each)


def _read_uuids(reader: Reader) -> tuple[UUID, ...]:
    return tuple(reader.uuid() for _ in range(reader.count(16)))
