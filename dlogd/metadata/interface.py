"""Interface of the metadata towards a node, alone or in a quorum. Types only."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from dlogd.metadata.commands.codec import Command
from dlogd.metadata.raft.membership import Operation, QuorumState
from dlogd.metadata.raft.progress import RaftProgress
from dlogd.metadata.state.delta import ImageDelta
from dlogd.metadata.state.image import ClusterImage, Outcome


class Metadata(Protocol):
    """Implemented by `dlogd.metadata.local_store` and `dlogd.metadata.raft`."""

    @property
    def image(self) -> ClusterImage:
        """The newest image that this node knows; all of it is on stable storage."""

    @property
    def failed(self) -> Exception | None:
        """Why nothing can be proposed any more; None while all is well."""

    async def propose(self, command: Command, deadline_ms: int) -> Outcome:
        """Have a command applied; wait at most until a time (`Clock.now_ms`)."""

    def subscribe(
        self, callback: Callable[[ClusterImage, ClusterImage, ImageDelta], None], /
    ) -> object:
        """Call back after each change, in order."""

    async def close(self) -> None:
        """Settle what is waiting and close all files."""


class Quorum(Metadata, Protocol):
    """Metadata that several nodes keep together."""

    @property
    def progress(self) -> RaftProgress:
        """Where this node is in the log."""

    def on_leadership(self, callback: Callable[[bool, int], None], /) -> None:
        """Call `callback(leads, term)` when this node begins or ceases to lead."""

    async def barrier(self, deadline_ms: int) -> Outcome:
        """Return when the image is at least as new as all that was acknowledged before."""

    async def contact(self, deadline_ms: int) -> Outcome:
        """Return when this node surely led at some moment since the call; Applied if it did."""

    def quorum(self) -> QuorumState | Awaitable[QuorumState]:
        """Return who votes, who follows and how far they are; the leader knows the most."""

    async def change_voters(
        self, operation: Operation, node_id: int, deadline_ms: int, host: str = "", port: int = 0
    ) -> Outcome:
        """Add or remove a voter, or hand the leadership on."""
