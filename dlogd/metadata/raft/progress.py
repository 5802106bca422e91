"""Progress of one node's Raft, in numbers for operators. Values, readable from any thread."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftProgress:
    """A look at the log and the role of one node."""

    role: str  # leader, follower or observer
    leader_id: int | None  # of the term, None when unknown
    term: int
    commit_index: int
    last_index: int
    snapshot_index: int
    log_bytes: int
    voters: tuple[int, ...]
    connected: tuple[int, ...]  # other nodes
    absent: tuple[str, ...]
    """Voters without a connection, each with the reason: `2 (Connection refused)`."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """Connections refused on the Raft port, by reason."""
