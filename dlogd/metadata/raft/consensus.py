"""Raft on one node: pysyncobj's election, commit and apply rules inside our own safety layer.

pysyncobj keeps term, vote, commit index and role. Ours: the log (`log`), which entries an append
may change and what its reply claims (`appends`), replication with bounded pipelining, snapshots,
pre-vote, who is a voter. `dlogd.metadata.raft.store` calls `tick`, `receive`, `peer_up`,
`peer_down` from one task; whatever they raise ends the node (better no
answer than a wrong one). Nothing here reads a clock, a file or the network by itself.

Owner: the Raft loop.
"""

import logging
from collections.abc import Callable
from typing import Any
from uuid import UUID

from dlogd.metadata.raft import appends, pysyncobj_adapter
from dlogd.metadata.raft.appends import RaftHaltedError
from dlogd.metadata.raft.durable_log import RaftLog
from dlogd.metadata.raft.elections import Elections
from dlogd.metadata.raft.messages import Message
from dlogd.metadata.raft.peers import NoPoller, Peer, Send, Wire
from dlogd.metadata.raft.replication import Replication
from dlogd.metadata.raft.timings import NEVER_S, RaftTimings
from dlogd.metadata.raft.voters import Voters
from dlogd.runtime.clock import Clock
from dlogd.runtime.randomness import Rng

log = logging.getLogger(__name__)

Apply = Callable[[int, int, bytes], None]


class RaftCore(Elections):
    """The consensus of one node. Life: made once per start; there is nothing to close."""

    def __init__(
        self,
        raft_log: RaftLog,
        replication: Replication,
        *,
        clock: Clock,
        rng: Rng,
        timings: RaftTimings,
        send: Send,
        apply: Apply,
        last_applied: int,
    ) -> None:
        pysyncobj_adapter.enter(clock)
        self._clock = clock
        self._rng = rng
        self._timings = timings
        self._log = raft_log
        self._send = send
        self._apply = apply
        self._replication = replication
        self._seats: dict[int, Peer] = {}
        self._directories: dict[int, UUID] = {}
        self._pre_votes: dict[int, None] = {}
        self._pre_votes_asked_s = NEVER_S
        self._pre_vote_won = False
        self._votes: dict[int, None] = {}
        self._leader_heard_s = NEVER_S
        self._verified: int | None = None
        self._backoff: int | None = None
        self._in_seq = -1
        self._followed: Voters | None = None
        super().__init__(
            Peer(raft_log.node_id),
            [],
            pysyncobj_adapter.SyncObjConf(
                autoTick=False,
                journalFile=raft_log,
                pollerType="poll",
                useFork=False,
                commandsWaitLeader=False,
                raftMinTimeout=timings.election_min_s,
                raftMaxTimeout=timings.election_max_s,
                appendEntriesPeriod=timings.heartbeat_s,
                leaderFallbackTimeout=timings.check_quorum_s,
            ),
            transport=Wire(self._send_as_is),
        )
        pysyncobj_adapter.check(self)
        self._poller = NoPoller()
        self._SyncObj__raftLastApplied = last_applied
        self._SyncObj__raftCommitIndex = max(raft_log.commit_index, last_applied)
        replication.attach(self)
        self._follow_voters()

    # -- what the rest of the layer sees

    @property
    def is_active_leader(self) -> bool:
        """Whether it leads and has applied the first entry of its own term."""
        return self.is_leader and self.applied_index >= self._SyncObj__noopIDx

    @property
    def leader_id(self) -> int | None:
        """The leader of this term, None when unknown."""
        leader = self._SyncObj__raftLeader
        return None if leader is None else leader.node_id

    @property
    def applied_index(self) -> int:
        """The last entry that was applied."""
        return int(self._SyncObj__raftLastApplied)

    @property
    def commit_index(self) -> int:
        """The last entry known to be committed."""
        return int(self._SyncObj__raftCommitIndex)

    @property
    def connected(self) -> dict[int, UUID]:
        """Node and directory ids of all peers with a connection."""
        return dict(sorted(self._directories.items()))

    def seat(self, node_id: int) -> Peer | None:
        """Return a connected peer."""
        return self._seats.get(node_id)

    def append(self, entry: bytes) -> int:
        """Append an entry as the leader; return its index."""
        assert self.is_leader
        index = self._log.last_index + 1
        self._log.add(entry, index, self.term)
        self._follow_voters()
        return index

    # -- what the store calls

    def tick(self) -> None:
        """Let time pass: elect, commit, apply."""
        pysyncobj_adapter.enter(self._clock)
        self._onTick(0.0)

    def due_s(self) -> float:
        """Return when `tick` must be called, whatever comes: for a heartbeat or an election."""
        if self.is_leader:
            return float(self._SyncObj__newAppendEntriesTime)
        return float(self._SyncObj__raftElectionDeadline)

    def push(self) -> None:
        """Send what is new, and flush meanwhile: the copy here counts only when it is durable."""
        pysyncobj_adapter.enter(self._clock)
        if self.is_leader:
            self._replication.send_all(heartbeat=False)
        self._log.flush()

    def receive(self, node_id: int, message: Message) -> None:
        """Take a message of a connected peer."""
        peer = self._seats.get(node_id)
        if peer is None:
            return
        pysyncobj_adapter.enter(self._clock)
        handler = _HANDLERS.get(message["type"])
        if handler is not None:
            handler(self, peer, message)

    def peer_up(self, node_id: int, directory_id: UUID) -> None:
        """Take note of a new connection."""
        pysyncobj_adapter.enter(self._clock)
        self.peer_down(node_id)
        self._directories[node_id] = directory_id
        self._take_seat(node_id)

    def peer_down(self, node_id: int) -> None:
        """Take note of the end of a connection."""
        pysyncobj_adapter.enter(self._clock)
        if node_id in self._seats and node_id == self.leader_id:
            self.lose_leader()
        self._directories.pop(node_id, None)
        self._leave_seat(node_id)

    def _take_seat(self, node_id: int) -> None:
        is_voter = self._log.voters.holds(node_id, self._directories[node_id])
        peer = self._seats[node_id] = Peer(node_id if is_voter else -1 - node_id)
        if is_voter:
            self._SyncObj__onNodeConnected(peer)
        else:
            self._SyncObj__onReadonlyNodeConnected(peer)
        self._replication.on_connected(peer)

    def _leave_seat(self, node_id: int) -> None:
        peer = self._seats.pop(node_id, None)
        if peer is not None:
            self._replication.on_disconnected(peer)
            if peer.id >= 0:
                self._SyncObj__onNodeDisconnected(peer)
            else:
                self._SyncObj__onReadonlyNodeDisconnected(peer)

    def _follow_voters(self) -> None:
        """Make pysyncobj's set of nodes what the log says; the newest entry counts at once."""
        voters = self._log.voters
        # Not by the entry's index: another leader's entry may have taken its place in one append.
        if voters == self._followed:
            return
        before, self._followed = self._followed, voters
        came, left = ((), ()) if before is None else voters.changes_since(before)
        if came or left:
            log.info(
                "Metadata voters changed came=%s left=%s voters=%s",
                *(",".join(map(str, each)) or "-" for each in (came, left, voters.node_ids)),
            )
        wanted = {number: Peer(number) for number in voters.node_ids if number != self._log.node_id}
        others: set[Peer] = getattr(self, "_SyncObj__otherNodes")  # noqa: B009 (mypy)
        present = {peer.id: peer for peer in others}
        for number in sorted(present.keys() - wanted.keys()):
            self._SyncObj__raftNextIndex.pop(present[number], None)
            self._SyncObj__raftMatchIndex.pop(present[number], None)
        for number in sorted(wanted.keys() - present.keys()):
            self._SyncObj__raftNextIndex[wanted[number]] = self._log.last_index + 1
            self._SyncObj__raftMatchIndex[wanted[number]] = 0
            self._SyncObj__lastResponseTime[wanted[number]] = self.now_s()
        self._SyncObj__otherNodes = set(wanted.values())
        for node_id in sorted(self._seats):
            is_voter = voters.holds(node_id, self._directories[node_id])
            if is_voter != (self._seats[node_id].id >= 0):
                self._leave_seat(node_id)
                self._take_seat(node_id)

    def counts(self, node_id: int) -> bool:
        """Whether what a peer says it holds may commit entries: it is bound to its directory."""
        voter = self._log.voters.get(node_id)
        return voter is not None and voter.directory_id == self._directories.get(node_id)

    def led_at_s(self) -> float:
        """Return a time at which surely nobody led in a later term; the past, while a follower.

        Each of a majority was sent an append then or later, and has replied in this term. Whoever
        was elected in a later term before had the vote of one of them, who would not have.
        """
        if not self.is_leader:
            return NEVER_S
        voters = self._log.voters
        times = sorted(
            (
                self._replication.contact_s(peer)
                for node_id, peer in self._seats.items()
                if peer.id >= 0 and self.counts(node_id)
            ),
            reverse=True,
        )
        needed = voters.quorum - 1
        if not needed:
            return self.now_s()
        return times[needed - 1] if len(times) >= needed else NEVER_S

    def hasten(self) -> None:
        """Send a heartbeat with the next tick."""
        self._SyncObj__newAppendEntriesTime = 0.0

    # -- following

    def hear_leader(self, peer: Peer, term: int) -> bool:
        """Take note of a leader's message; False when its term is over."""
        if term < self.term:
            self._send(peer.node_id, {"type": "stale_term", "term": self.term})
            return False
        if self.is_leader and term == self.term:
            raise RaftHaltedError(f"Node {peer.node_id} leads in this node's term {term}")
        self._leader_heard_s = self.now_s()
        self._pre_vote_won, self._pre_votes = False, {}
        return True

    def _on_append(self, peer: Peer, message: Message) -> None:
        if not self.hear_leader(peer, message["term"]):
            return
        self._in_seq = message["seq"]
        appended = appends.normalise(message, self._log, self.commit_index)
        self._verified, self._backoff = appended.verified, appended.backoff
        self._SyncObj__onMessageReceived(peer, appended.message)
        self._follow_voters()

    def _SyncObj__sendNextNodeIdx(  # noqa: N802
        self,
        node: Peer,
        reset: bool = False,
        nextNodeIdx: int | None = None,  # noqa: N803
        success: bool = False,
    ) -> None:
        """Reply to an append: durable before it is acknowledged, and tied to term and request."""
        next_index = self._log.last_index + 1 if nextNodeIdx is None else nextNodeIdx
        if success:
            if self._verified is not None:
                next_index = self._verified + 1
            self._log.flush()
        elif self._backoff is not None:
            next_index = self._backoff
        self._send(
            node.node_id,
            {
                "type": "next_node_idx",
                "term": self.term,
                "seq": self._in_seq,
                "next_node_idx": next_index,
                "reset": reset,
                "success": success,
            },
        )

    def follow(self, peer: Peer, term: int) -> None:
        """Let pysyncobj take note of a leader without entries: term, role, deadline."""
        self._SyncObj__onMessageReceived(
            peer, {"type": "append_entries", "term": term, "commit_index": self.commit_index}
        )

    def jump_to(self, index: int) -> None:
        """Take over that a snapshot has replaced everything up to `index`."""
        self._SyncObj__raftLastApplied = index
        self._SyncObj__raftCommitIndex = max(self.commit_index, index)
        self._follow_voters()

    # -- what pysyncobj calls and we do otherwise

    def _send_as_is(self, node_id: int, message: Message) -> None:
        self._send(node_id, message)

    def _SyncObj__onBecomeLeader(self) -> None:  # noqa: N802
        self._replication.on_leadership()
        super()._SyncObj__onBecomeLeader()

    def _SyncObj__sendAppendEntries(self) -> None:  # noqa: N802
        self._SyncObj__newAppendEntriesTime = self.now_s() + self._timings.heartbeat_s
        self._replication.send_all(heartbeat=True)

    def _SyncObj__applyLogEntries(self) -> Any:  # noqa: N802
        """Tell what is committed first: followers apply it meanwhile, however long it takes."""
        if self.is_leader and self.commit_index > self.applied_index:
            self._replication.send_all(heartbeat=False)
        return super()._SyncObj__applyLogEntries()

    def _SyncObj__doApplyCommand(self, command: bytes) -> None:  # noqa: N802
        index = self.applied_index + 1
        term = self._log.term_at(index)
        assert term is not None
        self._apply(index, term, command)

    def _SyncObj__tryLogCompaction(self) -> None:  # noqa: N802
        """Leave compaction to the store."""

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None:  # noqa: N802, N803
        raise RuntimeError("snapshots are loaded by the store")

    def _on_ack(self, peer: Peer, message: Message) -> None:
        self._replication.on_ack(peer, message)

    def _on_snapshot_ack(self, peer: Peer, message: Message) -> None:
        self._replication.on_snapshot_ack(peer, message)


_HANDLERS: dict[str, Callable[[Any, Peer, Message], None]] = {
    "pre_vote": RaftCore._on_pre_vote,
    "pre_vote_reply": RaftCore._on_pre_vote_reply,
    "request_vote": RaftCore._on_request_vote,
    "response_vote": RaftCore._on_response_vote,
    "stale_term": RaftCore._on_stale_term,
    "timeout_now": RaftCore._on_timeout_now,
    "append_entries": RaftCore._on_append,
    "next_node_idx": RaftCore._on_ack,
    "snapshot_ack": RaftCore._on_snapshot_ack,
}
