"""Votes of the Raft core: pre-vote, whose votes count, higher terms.

pysyncobj holds elections; it asks `_SyncObj__connectedToAnyone` when one is due, which is where a
majority is asked first whether it would agree (pre-vote): a node that was cut off, or was removed,
cannot depose a leader that others hear. Owner: the Raft loop.
"""

from dlogd.metadata.raft import pysyncobj_adapter
from dlogd.metadata.raft.durable_log import RaftLog
from dlogd.metadata.raft.messages import Message
from dlogd.metadata.raft.peers import Peer, Send
from dlogd.metadata.raft.timings import NEVER_S, RaftTimings
from dlogd.runtime.clock import Clock
from dlogd.runtime.randomness import Rng

FOLLOWER, CANDIDATE, LEADER = 0, 1, 2


class Elections(pysyncobj_adapter.SyncObj):  # type: ignore[misc]
    """Base of `RaftCore`, which makes what is declared here."""

    _clock: Clock
    _rng: Rng
    _timings: RaftTimings
    _log: RaftLog
    _send: Send
    _seats: dict[int, Peer]
    _pre_votes: dict[int, None]
    _pre_votes_asked_s: float
    _pre_vote_won: bool
    _votes: dict[int, None]
    _leader_heard_s: float

    @property
    def term(self) -> int:
        """The current term."""
        return int(self._SyncObj__raftCurrentTerm)

    @property
    def is_leader(self) -> bool:
        """Whether this node leads, as far as it knows."""
        return bool(self._SyncObj__raftState == LEADER)

    @property
    def is_voter(self) -> bool:
        """Whether this node, with this directory, is a voter."""
        return self._log.voters.holds(self._log.node_id, self._log.directory_id)

    def now_s(self) -> float:
        """Return this node's monotonic time."""
        return self._clock.now_us() / 1e6

    def step_down(self, term: int) -> None:
        """Follow in a higher term that somebody has seen."""
        self._SyncObj__setCurrentTerm(term, None)
        self._SyncObj__setState(FOLLOWER)
        self._SyncObj__raftLeader = None

    def _SyncObj__connectedToAnyone(self) -> bool:  # noqa: N802
        """Called when an election is due: only go on after a majority has agreed (pre-vote)."""
        if not self.is_voter:
            self._push_deadline()
            return False
        if self._SyncObj__transferInProgress or self._pre_vote_won or len(self._log.voters) == 1:
            self._pre_vote_won = False
            self._votes = {self._log.node_id: None}
            return True
        self._push_deadline()
        self._pre_votes = {self._log.node_id: None}
        self._pre_votes_asked_s = self.now_s()
        self._to_voters("pre_vote", self.term + 1)
        return False

    def lose_leader(self) -> None:
        """The connection to the leader broke: ask soon, without waiting for its silence.

        When others still hear it they do not agree, and nothing happens.
        """
        self._leader_heard_s = NEVER_S
        soon_s = self.now_s() + self._rng.random() * self._timings.election_min_s / 2
        deadline_s: float = getattr(self, "_SyncObj__raftElectionDeadline")  # noqa: B009 (mypy)
        self._SyncObj__raftElectionDeadline = min(deadline_s, soon_s)

    def _push_deadline(self) -> None:
        timeout_s = self._SyncObj__generateRaftTimeout()
        self._SyncObj__raftElectionDeadline = self.now_s() + timeout_s

    def _SyncObj__generateRaftTimeout(self) -> float:  # noqa: N802
        if self.is_voter and len(self._log.voters) == 1:
            return 0.0  # nobody else could lead, so nobody is waited for
        return self._rng.uniform(self._timings.election_min_s, self._timings.election_max_s)

    def _to_voters(self, kind: str, term: int) -> None:
        for node_id, peer in sorted(self._seats.items()):
            if peer.id >= 0:
                self._send(
                    node_id,
                    {
                        "type": kind,
                        "term": term,
                        "last_log_index": self._log.last_index,
                        "last_log_term": self._log.last_term,
                    },
                )

    def _has_forgotten(self, peer: Peer) -> bool:
        """Whether a voter came back with another directory: it must not be helped to lead."""
        return peer.id < 0 and self._log.voters.get(peer.node_id) is not None

    def _on_pre_vote(self, peer: Peer, message: Message) -> None:
        if self._has_forgotten(peer):
            return
        if message["term"] <= self.term:
            # Its own term is lower: unless it hears of this one, two nodes of which the one has the
            # longer log and the other the higher term would ask each other for ever.
            self._send(peer.node_id, {"type": "stale_term", "term": self.term})
            return
        heard = self.now_s() - self._leader_heard_s < self._timings.election_min_s
        candidate = (message["last_log_term"], message["last_log_index"])
        own = (self._log.last_term, self._log.last_index)
        if heard or self.is_leader or candidate < own:
            return
        if candidate == own and self._goes_first(peer.node_id):
            return
        self._let_pass()
        self._send(peer.node_id, {"type": "pre_vote_reply", "term": message["term"]})

    def _goes_first(self, node_id: int) -> bool:
        """Whether this node asks at the same time, and is the one of the two to go on.

        All lose a leader that dies in the same moment. Two that agreed with each other would each
        vote for itself, and nobody would be elected for a whole time-out. Only for a moment: what
        this one has asked may never have arrived.
        """
        asked_ago_s = self.now_s() - self._pre_votes_asked_s
        is_asking = self._pre_vote_won or bool(self._pre_votes)
        is_recent = asked_ago_s < self._timings.election_min_s / 4
        return is_asking and is_recent and self._log.node_id < node_id

    def _let_pass(self) -> None:
        """Ask for no votes of its own while the one that was agreed with asks for them."""
        self._pre_votes, self._pre_vote_won = {}, False
        pause_s = self._timings.election_min_s * self._rng.uniform(0.25, 0.5)
        deadline_s: float = getattr(self, "_SyncObj__raftElectionDeadline")  # noqa: B009 (mypy)
        self._SyncObj__raftElectionDeadline = max(deadline_s, self.now_s() + pause_s)

    def _on_pre_vote_reply(self, peer: Peer, message: Message) -> None:
        if self.is_leader or message["term"] != self.term + 1 or peer.id < 0:
            return
        self._pre_votes[peer.node_id] = None
        if len(self._pre_votes) >= self._log.voters.quorum:
            self._pre_votes = {}
            self._pre_vote_won = True
            self._SyncObj__raftElectionDeadline = 0

    def _on_request_vote(self, peer: Peer, message: Message) -> None:
        if self._has_forgotten(peer):
            return
        if message["term"] < self.term:
            self._send(peer.node_id, {"type": "stale_term", "term": self.term})
            return
        self._SyncObj__onMessageReceived(peer, message)

    def _on_response_vote(self, peer: Peer, message: Message) -> None:
        """Count each voter once, and only voters of the newest set."""
        if peer.id < 0 or message["term"] != self.term or peer.node_id in self._votes:
            return
        self._votes[peer.node_id] = None
        self._SyncObj__onMessageReceived(peer, message)

    def _on_stale_term(self, peer: Peer, message: Message) -> None:
        if message["term"] > self.term:
            self.step_down(message["term"])

    def _on_timeout_now(self, peer: Peer, message: Message) -> None:
        if self.is_voter and message["term"] == self.term:
            self._SyncObj__onMessageReceived(peer, message)
