"""The commands that change the cluster's state, and their versioned bytes.

Pure. A command is proposed to the metadata store and applied by `dlogd.metadata.machine` on every
node. Its bytes are our own (docs/formats/commands.md), never pickled objects or method names:

    u8 kind, u8 version of that kind, uuid command id, body of the kind

A command says what shall be, not how to compute it: placement, ids and config values are decided by
the proposer and checked by the machine, so that nodes of different versions stay equal. The command
id makes a repetition harmless.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import ClassVar, Self
from uuid import UUID

from dlog.types import NodeId, TopicId
from dlogd.metadata.encoding import MalformedError, Reader, Writer
from dlogd.metadata.image import NodeAddress

COMMAND_BYTES_MAX = 4 << 20
"""Larger commands are malformed: 20,000 partitions with three replicas take 0.4 MiB."""

Assignment = tuple[NodeId, ...]
"""Replicas of one partition, the preferred leader first."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterNode:
    """A node has started: give it a new epoch and the leadership that waits for it."""

    KIND: ClassVar = CommandKind.REGISTER_NODE

    command_id: UUID
    cluster_id: str  # the first registration names the cluster; later ones must agree
    node_id: NodeId
    directory_ids: tuple[UUID, ...]
    addresses: tuple[NodeAddress, ...]
    rack: str | None
    version: str

    def write(self, writer: Writer) -> None:
        """Write the body."""
        writer.text(self.cluster_id)
        writer.i32(self.node_id)
        writer.u32(len(self.directory_ids))
        for directory_id in self.directory_ids:
            writer.uuid(directory_id)
        write_addresses(writer, self.addresses)
        writer.optional_text(self.rack)
        writer.text(self.version)

    @classmethod
    def read(cls, command_id: UUID, reader: Reader) -> Self:
        """Read the body."""
        return cls(
            command_id=command_id,
            cluster_id=reader.text(),
            node_id=NodeId(reader.i32()),
            directory_ids=tuple(reader.uuid() for _ in range(reader.count(16))),
            addresses=read_addresses(reader),
            rack=reader.optional_text(),
            version=reader.text(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopic:
    """Create a topic with these replicas for each of its partitions."""

    KIND: ClassVar = CommandKind.CREATE_TOPIC

    command_id: UUID
    name: str
    topic_id: TopicId
    assignments: tuple[Assignment, ...]
    configs: Mapping[str, str] = field(default_factory=dict)

    def write(self, writer: Writer) -> None:
        """Write the body."""
        writer.text(self.name)
        writer.uuid(self.topic_id)
        _write_assignments(writer, self.assignments)
        writer.pairs(self.configs)

    @classmethod
    def read(cls, command_id: UUID, reader: Reader) -> Self:
        """Read the body."""
        return cls(
            command_id=command_id,
            name=reader.text(),
            topic_id=reader.uuid(),
            assignments=_read_assignments(reader),
            configs=reader.pairs(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopic:
    """Delete one life of a topic; a topic re-created under the name meanwhile is not touched."""

    KIND: ClassVar = CommandKind.DELETE_TOPIC

    command_id: UUID
    topic_id: TopicId

    def write(self, writer: Writer) -> None:
        """Write the body."""
        writer.uuid(self.topic_id)

    @classmethod
    def read(cls, command_id: UUID, reader: Reader) -> Self:
        """Read the body."""
        return cls(command_id=command_id, topic_id=reader.uuid())


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatePartitions:
    """Add partitions to a topic that has `partition_count` of them now (compare-and-set)."""

    KIND: ClassVar = CommandKind.CREATE_PARTITIONS

    command_id: UUID
    topic_id: TopicId
    partition_count: int
    assignments: tuple[Assignment, ...]  # of the new partitions only

    def write(self, writer: Writer) -> None:
        """Write the body."""
        writer.uuid(self.topic_id)
        writer.u32(self.partition_count)
        _write_assignments(writer, self.assignments)

    @classmethod
    def read(cls, command_id: UUID, reader: Reader) -> Self:
        """Read the body."""
        return cls(
            command_id=command_id,
            topic_id=reader.uuid(),
            partition_count=reader.u32(),
            assignments=_read_assignments(reader),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """One key set to `value`, or removed when that is None.

    With `compare`, only if the key holds `expected` now (None: is not set).
    """

    key: str
    value: str | None
    compare: bool = False
    expected: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigs:
    """Change configs of a topic, or of the whole cluster when `topic_id` is None; all or none."""

    KIND: ClassVar = CommandKind.ALTER_CONFIGS

    command_id: UUID
    topic_id: TopicId | None
    changes: tuple[ConfigChange, ...]

    def write(self, writer: Writer) -> None:
        """Write the body."""
        writer.boolean(self.topic_id is not None)
        if self.topic_id is not None:
            writer.uuid(self.topic_id)
        writer.u32(len(self.changes))
        for change in self.changes:
            writer.text(change.key)
            writer.optional_text(change.value)
            writer.boolean(change.compare)
            if change.compare:
                writer.optional_text(change.expected)

    @classmethod
    def read(cls, command_id: UUID, reader: Reader) -> Self:
        """Read the body."""
        topic_id = reader.uuid() if reader.boolean() else None
        changes = tuple(_read_change(reader) for _ in range(reader.count(4)))
        return cls(command_id=command_id, topic_id=topic_id, changes=changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIds:
    """Give a node the next `count` producer ids; the outcome's value is the first."""

    KIND: ClassVar = CommandKind.ALLOCATE_PRODUCER_IDS

    command_id: UUID
    node_id: NodeId
    node_epoch: int  # of the node's present life, so that a zombie gets none
    count: int

    def write(self, writer: Writer) -> None:
        """Write the body."""
        writer.i32(self.node_id)
        writer.i64(self.node_epoch)
        writer.u32(self.count)

    @classmethod
    def read(cls, command_id: UUID, reader: Reader) -> Self:
        """Read the body."""
        return cls(
            command_id=command_id,
            node_id=NodeId(reader.i32()),
            node_epoch=reader.i64(),
            count=reader.u32(),
        )


Command = (
    RegisterNode | CreateTopic | DeleteTopic | CreatePartitions | AlterConfigs | AllocateProducerIds
)

_READERS: dict[tuple[int, int], Callable[[UUID, Reader], Command]] = {
    (CommandKind.REGISTER_NODE, 1): RegisterNode.read,
    (CommandKind.CREATE_TOPIC, 1): CreateTopic.read,
    (CommandKind.DELETE_TOPIC, 1): DeleteTopic.read,
    (CommandKind.CREATE_PARTITIONS, 1): CreatePartitions.read,
    (CommandKind.ALTER_CONFIGS, 1): AlterConfigs.read,
    (CommandKind.ALLOCATE_PRODUCER_IDS, 1): AllocateProducerIds.read,
}
"""By kind and version; a version stays readable for ever."""

_VERSIONS: dict[CommandKind, int] = {CommandKind(kind): version for kind, version in _READERS}
"""The newest version of each kind, which is the one written."""


def encode(command: Command) -> bytes:
    """Return the bytes of a command; raise MalformedCommandError for what has none."""
    writer = Writer()
    writer.u8(command.KIND)
    writer.u8(_VERSIONS[command.KIND])
    writer.uuid(command.command_id)
    try:
        command.write(writer)
    except MalformedError as error:
        raise MalformedCommandError(str(error)) from error
    if len(writer.data) > COMMAND_BYTES_MAX:
        raise MalformedCommandError(f"a command of {len(writer.data)} bytes is too large")
    return bytes(writer.data)


def decode(data: bytes | bytearray | memoryview) -> Command:
    """Return the command of some bytes; raise only MalformedCommandError."""
    if len(data) > COMMAND_BYTES_MAX:
        raise MalformedCommandError(f"a command of {len(data)} bytes is too large")
    reader = Reader(data)
    try:
        kind, version, command_id = reader.u8(), reader.u8(), reader.uuid()
        read = _READERS.get((kind, version))
        if read is None:
            raise MalformedCommandError(f"unknown command of kind {kind} version {version}")
        command = read(command_id, reader)
        reader.expect_end()
    except MalformedCommandError:
        raise
    except MalformedError as error:
        raise MalformedCommandError(str(error)) from error
    return command


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


def _write_assignments(writer: Writer, assignments: tuple[Assignment, ...]) -> None:
    writer.u32(len(assignments))
    for assignment in assignments:
        write_nodes(writer, assignment)


def _read_assignments(reader: Reader) -> tuple[Assignment, ...]:
    return tuple(read_nodes(reader) for _ in range(reader.count(1)))


def _read_change(reader: Reader) -> ConfigChange:
    key, value, compare = reader.text(), reader.optional_text(), reader.boolean()
    expected = reader.optional_text() if compare else None
    return ConfigChange(key=key, value=value, compare=compare, expected=expected)
