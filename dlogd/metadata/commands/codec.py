"""Codec of commands: versioned bytes of every change to the image.

Pure. A command is proposed to the metadata store and applied by `dlogd.metadata.machine.apply` on
every node. Its bytes are our own (docs/formats/commands.md), never pickled objects or method names:

    u8 kind, u8 version of that kind, uuid command id, body of the kind

A command says what shall be, not how to compute it: placement, ids and config values are decided by
the proposer and checked by the machine, so that nodes of different versions stay equal. The command
id makes a repetition harmless. Leaders and epochs are the exception: the machine alone decides
those, from the image.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar
from uuid import UUID

from dlogd.metadata.commands.cluster import ClaimController, SetFeatureLevel
from dlogd.metadata.commands.maintenance import (
    HoldMaintenance,
    Permit,
    ReleaseMaintenance,
)
from dlogd.metadata.commands.node import (
    DrainNode,
    FenceNodes,
    Proof,
    RegisterNode,
    RemoveNode,
    ReportReplicas,
    ShutDownNode,
    UnfenceNode,
)
from dlogd.metadata.commands.partition import (
    AlterAssignments,
    AlterPartition,
    ElectionKind,
    ElectLeaders,
    Reassignment,
)
from dlogd.metadata.commands.topic import (
    AllocateProducerIds,
    AlterConfigs,
    ConfigChange,
    CreatePartitions,
    CreateTopic,
    CreateTopics,
    DeleteTopic,
    DeleteTopics,
    NewTopic,
)
from dlogd.metadata.state.encoding import MalformedError, Reader, Writer
from dlogd.metadata.state.limits import LEVEL_MAINTENANCE
from dlogd.metadata.state.shared_fields import (
    Assignment,
    CommandKind,
    MalformedCommandError,
    PartitionSet,
)

__all__ = [
    "COMMAND_BYTES_MAX",
    "LEVELS",
    "AllocateProducerIds",
    "AlterAssignments",
    "AlterConfigs",
    "AlterPartition",
    "Assignment",
    "ClaimController",
    "Command",
    "CommandKind",
    "ConfigChange",
    "CreatePartitions",
    "CreateTopic",
    "CreateTopics",
    "DeleteTopic",
    "DeleteTopics",
    "DrainNode",
    "ElectLeaders",
    "ElectionKind",
    "FenceNodes",
    "Guarded",
    "HoldMaintenance",
    "MalformedCommandError",
    "NewTopic",
    "PartitionSet",
    "Permit",
    "PlainCommand",
    "Proof",
    "Reassignment",
    "RegisterNode",
    "ReleaseMaintenance",
    "RemoveNode",
    "ReportReplicas",
    "SetFeatureLevel",
    "ShutDownNode",
    "UnfenceNode",
    "decode",
    "encode",
    "level_of",
]

COMMAND_BYTES_MAX = 4 << 20
"""Larger commands are malformed: 20,000 partitions with three replicas take 0.4 MiB."""

PlainCommand = (
    RegisterNode
    | CreateTopic
    | DeleteTopic
    | CreatePartitions
    | AlterConfigs
    | AllocateProducerIds
    | CreateTopics
    | FenceNodes
    | UnfenceNode
    | DrainNode
    | ShutDownNode
    | RemoveNode
    | ReportReplicas
    | AlterPartition
    | ElectLeaders
    | AlterAssignments
    | ClaimController
    | SetFeatureLevel
    | DeleteTopics
    | HoldMaintenance
    | ReleaseMaintenance
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded:
    """A command with conditions on the cluster: how late it may come, and whose it is.

    A command that is sent again after an unknown outcome is recognised by its id only for as long
    as the machine remembers outcomes. With `version_max` no further ahead of the proposer's image
    than that, it is never applied twice, however late it comes.
    """

    KIND: ClassVar = CommandKind.GUARDED

    version_max: int  # refused when the image would get a later version than this
    controller_epoch: int  # refused when the controller is another one by now; -1: anybody's
    command: PlainCommand

    @property
    def command_id(self) -> UUID:
        """The id of the guarded command."""
        return self.command.command_id

    def write(self, writer: Writer) -> None:
        """Write the body."""
        writer.i64(self.version_max)
        writer.i64(self.controller_epoch)
        writer.u8(self.command.KIND)
        writer.u8(version_of(self.command))
        self.command.write(writer)

    @classmethod
    def read(cls, command_id: UUID, reader: Reader) -> "Guarded":
        """Read the body."""
        version_max, controller_epoch = reader.i64(), reader.i64()
        kind, version = reader.u8(), reader.u8()
        read = _READERS.get((kind, version))
        if read is None:
            raise MalformedCommandError(f"unknown command of kind {kind} version {version}")
        return cls(
            version_max=version_max,
            controller_epoch=controller_epoch,
            command=read(command_id, reader),
        )


Command = PlainCommand | Guarded

_READERS: dict[tuple[int, int], Callable[[UUID, Reader], PlainCommand]] = {
    (CommandKind.REGISTER_NODE, 1): RegisterNode.read_1,
    (CommandKind.REGISTER_NODE, 2): RegisterNode.read,
    (CommandKind.CREATE_TOPIC, 1): CreateTopic.read,
    (CommandKind.DELETE_TOPIC, 1): DeleteTopic.read,
    (CommandKind.CREATE_PARTITIONS, 1): CreatePartitions.read,
    (CommandKind.ALTER_CONFIGS, 1): AlterConfigs.read,
    (CommandKind.ALLOCATE_PRODUCER_IDS, 1): AllocateProducerIds.read,
    (CommandKind.CREATE_TOPICS, 1): CreateTopics.read,
    (CommandKind.FENCE_NODES, 1): FenceNodes.read,
    (CommandKind.UNFENCE_NODE, 1): UnfenceNode.read,
    (CommandKind.DRAIN_NODE, 1): DrainNode.read,
    (CommandKind.DRAIN_NODE, 2): DrainNode.read_2,
    (CommandKind.SHUT_DOWN_NODE, 1): ShutDownNode.read,
    (CommandKind.REMOVE_NODE, 1): RemoveNode.read,
    (CommandKind.REMOVE_NODE, 2): RemoveNode.read_2,
    (CommandKind.REPORT_REPLICAS, 1): ReportReplicas.read,
    (CommandKind.ALTER_PARTITION, 1): AlterPartition.read,
    (CommandKind.ELECT_LEADERS, 1): ElectLeaders.read,
    (CommandKind.ALTER_ASSIGNMENTS, 1): AlterAssignments.read,
    (CommandKind.CLAIM_CONTROLLER, 1): ClaimController.read,
    (CommandKind.SET_FEATURE_LEVEL, 1): SetFeatureLevel.read,
    (CommandKind.DELETE_TOPICS, 1): DeleteTopics.read,
    (CommandKind.HOLD_MAINTENANCE, 1): HoldMaintenance.read,
    (CommandKind.RELEASE_MAINTENANCE, 1): ReleaseMaintenance.read,
}
"""By kind and version; a version stays readable for ever."""

_ALL_READERS: dict[tuple[int, int], Callable[[UUID, Reader], Any]] = {
    **_READERS,
    (CommandKind.GUARDED, 1): Guarded.read,
}

LEVELS: dict[tuple[int, int], int] = {
    **dict.fromkeys(_ALL_READERS, 2),
    (CommandKind.REGISTER_NODE, 1): 1,
    (CommandKind.CREATE_TOPIC, 1): 1,
    (CommandKind.DELETE_TOPIC, 1): 1,
    (CommandKind.CREATE_PARTITIONS, 1): 1,
    (CommandKind.ALTER_CONFIGS, 1): 1,
    (CommandKind.ALLOCATE_PRODUCER_IDS, 1): 1,
    # These bring a cluster to a level, so the machine itself says when they are allowed.
    (CommandKind.REGISTER_NODE, 2): 1,
    (CommandKind.SET_FEATURE_LEVEL, 1): 1,
    (CommandKind.DELETE_TOPICS, 1): 3,
    (CommandKind.DRAIN_NODE, 2): LEVEL_MAINTENANCE,
    (CommandKind.REMOVE_NODE, 2): LEVEL_MAINTENANCE,
    (CommandKind.HOLD_MAINTENANCE, 1): LEVEL_MAINTENANCE,
    (CommandKind.RELEASE_MAINTENANCE, 1): LEVEL_MAINTENANCE,
}
"""From which feature level on a command of this kind and version is applied."""


def version_of(command: Command) -> int:
    """Return the version of the body that holds a command."""
    if isinstance(command, RegisterNode | DrainNode | RemoveNode):
        return command.body_version
    return 1


def level_of(command: Command) -> int:
    """Return the feature level that a command needs."""
    level = LEVELS[command.KIND, version_of(command)]
    return max(level, level_of(command.command)) if isinstance(command, Guarded) else level


def encode(command: Command) -> bytes:
    """Return the bytes of a command; raise MalformedCommandError for what has none."""
    writer = Writer()
    writer.u8(command.KIND)
    writer.u8(version_of(command))
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
        read = _ALL_READERS.get((kind, version))
        if read is None:
            raise MalformedCommandError(f"unknown command of kind {kind} version {version}")
        command: Command = read(command_id, reader)
        reader.expect_end()
    except MalformedCommandError:
        raise
    except MalformedError as error:
        raise MalformedCommandError(str(error)) from error
    return command
