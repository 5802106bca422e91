"""Commands about the cluster: its controller, its feature level.

Pure. Part of `dlogd.metadata.commands.codec`, which says what a command is.
"""

from dataclasses import dataclass
from typing import ClassVar, Self
from uuid import UUID

from dlog.types import NodeId
from dlogd.metadata.state.encoding import Reader, Writer
from dlogd.metadata.state.shared_fields import CommandKind


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimController:
    """A node that leads the quorum acts as controller; the value is the new controller epoch.

    From then on `Guarded` commands of the controllers before it are refused.
    """

    KIND: ClassVar = CommandKind.CLAIM_CONTROLLER

    command_id: UUID
    node_id: NodeId
    node_epoch: int
    controller_epoch: int  # the present one (compare-and-set), so that a late claim does not win

    def write(self, writer: Writer) -> None:
        """Write the body."""
        writer.i32(self.node_id)
        writer.i64(self.node_epoch)
        writer.i64(self.controller_epoch)

    @classmethod
    def read(cls, command_id: UUID, reader: Reader) -> Self:
        """Read the body."""
        return cls(
            command_id=command_id,
            node_id=NodeId(reader.i32()),
            node_epoch=reader.i64(),
            controller_epoch=reader.i64(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SetFeatureLevel:
    """Take new commands and formats into use; all nodes must know them. There is no way back."""

    KIND: ClassVar = CommandKind.SET_FEATURE_LEVEL

    command_id: UUID
    level: int

    def write(self, writer: Writer) -> None:
        """Write the body."""
        writer.u16(self.level)

    @classmethod
    def read(cls, command_id: UUID, reader: Reader) -> Self:
        """Read the body."""
        return cls(command_id=command_id, level=reader.u16())
