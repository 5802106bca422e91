"""Membership of the quorum: checks before a change of voters or a transfer of leadership.

A change is one entry with the whole new set. One at a time, and only once the leader's own first
entry is committed (Ongaro's correction of 2015). A change that would leave less than a majority of
healthy voters is refused. Owner: the Raft loop.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import UUID

from dlog.errors import InvalidRequestError, NotControllerError
from dlogd.metadata.raft import entries as wire
from dlogd.metadata.raft.durable_log import RaftLog
from dlogd.metadata.raft.replication import Replication
from dlogd.metadata.raft.timings import RaftTimings
from dlogd.metadata.raft.voters import UNBOUND, Voter, Voters, expect_place

CATCH_UP_ENTRIES_MAX = 1_000


class Operation(StrEnum):
    """What an operator may ask for."""

    ADD = "add"
    REMOVE = "remove"
    TRANSFER = "transfer"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminRequest:
    """An operator's request, carried to the leader."""

    request_id: UUID
    operation: str
    node_id: int
    host: str = ""
    port: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """What the leader knows of one follower of the log (DescribeQuorum)."""

    node_id: int
    directory_id: UUID
    log_end_offset: int  # exclusive; -1 where only the leader knows
    last_fetch_ms: int  # monotonic; -1: never
    last_caught_up_ms: int
    host: str = ""  # where a voter is reached; empty for observers
    port: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumState:
    """The quorum as this node sees it; progress is known to the leader only."""

    leader_id: int | None
    term: int
    high_watermark: int  # exclusive
    voters: tuple[ReplicaState, ...]
    observers: tuple[ReplicaState, ...]


class Membership:
    """The leader's side of changes of the voters."""

    def __init__(
        self, core: Any, raft_log: RaftLog, replication: Replication, timings: RaftTimings
    ) -> None:
        self._core = core
        self._log = raft_log
        self._replication = replication
        self._timings = timings

    def bind(self, change_id: UUID) -> bool:
        """Note the directories of voters that are met for the first time; no vote changes."""
        voters = bound = self._log.voters
        for node_id, directory_id in (
            (self._log.node_id, self._log.directory_id),
            *self._core.connected.items(),
        ):
            bound = bound.bound(node_id, directory_id)
        if bound == voters:
            return False
        self._core.append(wire.encode_voters(change_id, bound))
        return True

    def carry_out(self, request: AdminRequest) -> None:
        """Begin what is asked for; raise WireError when it must not be."""
        if not self._core.is_active_leader:
            raise NotControllerError("This node does not lead the quorum now")
        if request.operation == Operation.TRANSFER:
            self._transfer(request.node_id)
        elif request.operation == Operation.ADD:
            self._change(self._added(request), request.request_id)
        elif request.operation == Operation.REMOVE:
            self._change(self._removed(request.node_id), request.request_id)
        else:
            raise InvalidRequestError(f"Unknown operation {request.operation!r}")

    def _change(self, voters: Voters, change_id: UUID) -> None:
        if self._log.voters_index > self._core.commit_index:
            raise InvalidRequestError("Another change of the voters is under way: try again")
        self._expect_quorum(voters)
        self._core.append(wire.encode_voters(change_id, voters))

    def _added(self, request: AdminRequest) -> Voters:
        node_id = request.node_id
        expect_place(request.host, request.port)
        peer = self._core.seat(node_id)
        directory_id = self._core.connected.get(node_id, UNBOUND)
        voter = Voter(
            node_id=node_id, directory_id=directory_id, host=request.host, port=request.port
        )
        voters = self._log.voters.with_voter(voter)
        if peer is None:
            raise InvalidRequestError(f"Node {node_id} is not connected: start it as an observer")
        held, _, _ = self._replication.state_of(peer)
        if held + CATCH_UP_ENTRIES_MAX < self._log.last_index or held < self._log.base_index:
            raise InvalidRequestError(
                f"Node {node_id} has only {held} of {self._log.last_index} entries: try again later"
            )
        return voters

    def _removed(self, node_id: int) -> Voters:
        voters = self._log.voters.without(node_id)
        if node_id == self._log.node_id:
            raise InvalidRequestError(
                f"Node {node_id} leads the quorum: transfer the leadership first"
            )
        return voters

    def _expect_quorum(self, voters: Voters) -> None:
        healthy = [
            node_id
            for node_id in voters.node_ids
            if node_id == self._log.node_id or self._is_healthy(node_id, voters)
        ]
        if len(healthy) < voters.quorum:
            raise InvalidRequestError(
                f"Of the voters {list(voters.node_ids)} only {healthy} are healthy: the quorum of "
                f"{voters.quorum} would be lost"
            )

    def _is_healthy(self, node_id: int, voters: Voters) -> bool:
        peer = self._core.seat(node_id)
        # One that came back with another directory is connected, but no voter.
        if peer is None or not voters.holds(node_id, self._core.connected[node_id]):
            return False
        held, heard_s, _ = self._replication.state_of(peer)
        recent = self._core.now_s() - heard_s < self._timings.check_quorum_s
        return recent and held + CATCH_UP_ENTRIES_MAX >= self._log.last_index

    def _transfer(self, node_id: int) -> None:
        peer = self._core.seat(node_id)
        if peer is None or peer.id < 0:
            raise InvalidRequestError(f"Node {node_id} is no connected voter")
        refusals: list[int] = []
        self._core.transferLeadership(peer, lambda _, reason: refusals.append(reason))
        if any(refusals):
            raise InvalidRequestError(f"Node {node_id} does not hold the whole log yet: try again")

    def describe(self) -> QuorumState:
        """Return who votes, who follows and how far they are."""
        voters = self._log.voters
        # Also a voter's node that came back with another directory: the voter itself is away.
        observers = [n for n, d in self._core.connected.items() if not voters.holds(n, d)]
        return QuorumState(
            leader_id=self._core.leader_id,
            term=self._core.term,
            high_watermark=self._core.commit_index + 1,
            voters=tuple(
                self._describe(voter.node_id, voter.directory_id) for voter in voters.members
            ),
            observers=tuple(self._describe(n, self._core.connected[n]) for n in observers),
        )

    def _describe(self, node_id: int, directory_id: UUID) -> ReplicaState:
        end, fetched_ms, caught_up_ms = -1, -1, -1
        met = self._core.connected.get(node_id, directory_id)
        peer = self._core.seat(node_id) if directory_id in (UNBOUND, met) else None
        if node_id == self._log.node_id:
            end = self._log.last_index + 1
            fetched_ms = caught_up_ms = int(self._core.now_s() * 1000)
        elif self._core.is_leader and peer is not None:
            held, heard_s, caught_up_s = self._replication.state_of(peer)
            end = held + 1
            fetched_ms, caught_up_ms = int(heard_s * 1000), int(caught_up_s * 1000)
        is_voter = self._log.voters.holds(node_id, directory_id)
        voter = self._log.voters.get(node_id) if is_voter else None
        return ReplicaState(
            node_id=node_id,
            directory_id=directory_id,
            host="" if voter is None else voter.host,
            port=0 if voter is None else voter.port,
            log_end_offset=end,
            last_fetch_ms=fetched_ms,
            last_caught_up_ms=caught_up_ms,
        )
