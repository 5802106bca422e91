"""Commands about the maintenance lock, and what other commands carry because of it.

Pure. Part of `dlogd.metadata.commands.codec`, which says what a command is.
"""

from dataclasses import dataclass
from typing import ClassVar, Self
from uuid import UUID

from dlog.types import NodeId
from dlogd.metadata.state.encoding import Reader, Writer
from dlogd.metadata.state.shared_fields import CommandKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Permit:
    """What a command that the lock holds back is judged by: whose it is, and at which time."""

    token: UUID | None  # None: the proposer holds no lock
    now_ms: int  # wall clock of the proposer

    def write(self, writer: Writer) -> None:
        """Write the fields."""
        _write_token(writer, self.token)
        writer.i64(self.now_ms)

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Read the fields."""
        return cls(token=_read_token(reader), now_ms=reader.i64())


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldMaintenance:
    """An operator works on the cluster: take the lock, or renew it with the same token.

    The value is since when it is held without a gap, by the wall clock.
    """

    KIND: ClassVar = CommandKind.HOLD_MAINTENANCE

    command_id: UUID
    owner: str
    token: UUID
    node_id: NodeId
    now_ms: int  # wall clock of the proposer
    lifetime_ms: int

    def write(self, writer: Writer) -> None:
        """Write the body."""
        writer.text(self.owner)
        writer.uuid(self.token)
        writer.i32(self.node_id)
        writer.i64(self.now_ms)
        writer.u32(self.lifetime_ms)

    @classmethod
    def read(cls, command_id: UUID, reader: Reader) -> Self:
        """Read the body."""
        return cls(
            command_id=command_id,
            owner=reader.text(),
            token=reader.uuid(),
            node_id=NodeId(reader.i32()),
            now_ms=reader.i64(),
            lifetime_ms=reader.u32(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseMaintenance:
    """The work is over; without a token the lock of any holder ends."""

    KIND: ClassVar = CommandKind.RELEASE_MAINTENANCE

    command_id: UUID
    token: UUID | None

    def write(self, writer: Writer) -> None:
        """Write the body."""
        _write_token(writer, self.token)

    @classmethod
    def read(cls, command_id: UUID, reader: Reader) -> Self:
        """Read the body."""
        return cls(command_id=command_id, token=_read_token(reader))


def _write_token(writer: Writer, token: UUID | None) -> None:
    writer.boolean(token is not None)
    if token is not None:
        writer.uuid(token)


def _read_token(reader: Reader) -> UUID | None:
    return reader.uuid() if reader.boolean() else None
