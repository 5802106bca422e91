"""What must hold in every Raft run, looked at after every step of every node.

One leader per term, equal entries at equal index and term, equal applied entries at equal indexes,
terms only grow, equal images at equal indexes; in the end, what was acknowledged is there, once.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from dlogd.metadata.raft import entries as wire
from dlogd.metadata.raft.entries import What
from dlogd.metadata.state import snapshot
from dlogd.metadata.state.image import Applied, Outcome, Refused, Unknown

DIGEST_EVERY = 8
GRACE_S = 0.5


@dataclass(slots=True)
class Call:
    """One proposal as its client saw it."""

    number: int
    key: bytes
    node_id: int
    begun_ns: int
    store: Any  # of the incarnation that it waits at
    ended_ns: int = -1
    outcome: Outcome | None = None


@dataclass
class Registry:
    """Everything that was ever seen in a run."""

    leaders: dict[int, int] = field(default_factory=dict)
    led_since: dict[int, int] = field(default_factory=dict)  # by term: the step
    contacts: int = 0  # proofs of leadership
    logged: dict[tuple[int, int], bytes] = field(default_factory=dict)
    applied: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    digests: dict[int, bytes] = field(default_factory=dict)
    terms: dict[int, int] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    snapshots_installed: int = 0
    steps: int = 0
    votes: dict[tuple[int, int], int] = field(default_factory=dict)
    active: dict[tuple[int, int], bool] = field(default_factory=dict)

    def violate(self, text: str) -> None:
        """Note a violation."""
        self.violations.append(text)

    # -- while running

    def watch(self, node_id: int, incarnation: int, store: Any) -> None:
        """Look at a node after each of its steps."""
        seen = {"last": 0, "last_term": 0, "applied": store.core.applied_index}
        step, install = store._step, store.state.install

        def watched_step() -> None:
            step()
            self.steps += 1
            self._look(node_id, store, seen)

        def watched_install(data: bytes) -> Any:
            self.snapshots_installed += 1
            seen["last"] = 0
            return install(data)

        store._step = watched_step
        store.state.install = watched_install
        store.state.observe = lambda index, term, entry: self._on_applied(
            node_id, store, index, term, entry
        )
        self._watch_votes(node_id, store)
        # Entries that were applied before this observer was set are compared as well.
        for entry, index, term in store.log.entries[1:]:
            if index <= store.core.applied_index:
                self._compare_applied(node_id, index, term, entry)
        self._look(node_id, store, seen)

    def _watch_votes(self, node_id: int, store: Any) -> None:
        """See each vote as it leaves the node: one per term and directory, and never forgotten."""
        directory = store.log.directory_id.int
        send = store.core._send
        voted = [term for (who, term) in self.votes if who == directory]
        if voted and store.core.term < max(voted):
            self.violate(f"node {node_id} forgot that it voted in term {max(voted)}")

        def watched_send(to: int, message: Any) -> None:
            if message["type"] == "response_vote":
                candidate = self.votes.setdefault((directory, message["term"]), to)
                if candidate != to:
                    self.violate(f"node {node_id} voted twice in term {message['term']}")
            send(to, message)

        store.core._send = watched_send

    def _look(self, node_id: int, store: Any, seen: dict[str, int]) -> None:
        core = store.core
        term = core.term
        if term < self.terms.get(node_id, 0):
            self.violate(f"term of node {node_id} fell from {self.terms[node_id]} to {term}")
        self.terms[node_id] = term
        if core.is_leader:
            other = self.leaders.setdefault(term, node_id)
            self.led_since.setdefault(term, self.steps)
            if other != node_id:
                self.violate(f"two leaders in term {term}: {other} and {node_id}")
            self._look_at_quorum(node_id, store)
        if not core.applied_index <= core.commit_index <= store.log.last_index:
            self.violate(
                f"node {node_id}: applied {core.applied_index}, committed {core.commit_index}, "
                f"last {store.log.last_index}"
            )
        if core.applied_index < seen["applied"]:
            self.violate(f"node {node_id} unapplied {seen['applied']} to {core.applied_index}")
        seen["applied"] = core.applied_index
        self._look_at_log(node_id, store.log, seen)

    def _look_at_quorum(self, node_id: int, store: Any) -> None:
        """A leader that has heard no majority for long leads no longer."""
        core, voters = store.core, store.log.voters
        heard = [
            at_s
            for peer, at_s in core._SyncObj__lastResponseTime.items()
            if peer.id >= 0 and voters.get(peer.id) is not None
        ]
        silent_s = store._config.timings.check_quorum_s + GRACE_S
        heard = [at_s for at_s in heard if core.now_s() - at_s < silent_s]
        if len(heard) + 1 < voters.quorum:
            self.violate(f"node {node_id} leads term {core.term} without a quorum")

    def _look_at_log(self, node_id: int, raft_log: Any, seen: dict[str, int]) -> None:
        """Compare what is new at the end; a cut shows as a smaller last index or another term."""
        end = (raft_log.last_index, raft_log.last_term)
        if end == (seen["last"], seen["last_term"]):
            return
        place = max(1, min(seen["last"], raft_log.last_index) - 40 - raft_log.base_index)
        for entry, index, term in raft_log.entries[place:]:
            known = self.logged.setdefault((index, term), entry)
            if known != entry:
                self.violate(f"node {node_id} has another entry {index} of term {term}")
        seen["last"], seen["last_term"] = end

    def _on_applied(self, node_id: int, store: Any, index: int, term: int, entry: bytes) -> None:
        self._compare_applied(node_id, index, term, entry)
        if index % DIGEST_EVERY == 0:
            data = snapshot.encode(store.state.image)
            digest = hashlib.blake2b(data, digest_size=8).digest()
            if self.digests.setdefault(index, digest) != digest:
                self.violate(f"node {node_id} has another image at {index}")

    def _compare_applied(self, node_id: int, index: int, term: int, entry: bytes) -> None:
        known = self.applied.setdefault(index, (term, entry))
        if known != (term, entry):
            self.violate(
                f"StateMachineSafety: node {node_id} applied at {index} an entry of term {term}, "
                f"another node one of term {known[0]}"
            )

    # -- in the end

    def judge(self) -> None:
        """Compare what clients were told with what was applied."""
        order: dict[bytes, list[int]] = {}
        for index in sorted(self.applied):
            entry = self.applied[index][1]
            if entry[0] == wire.COMMANDS:
                for item in wire.decode_items(entry):
                    if item.what is What.COMMAND:
                        order.setdefault(item.key, []).append(index)
        proposed: dict[bytes, int] = {}
        for call in self.calls:
            proposed[call.key] = proposed.get(call.key, 0) + 1
            self._judge_call(call, order.get(call.key, []))
        order.pop(UUID(int=1).bytes, None)  # the registration, which all clients propose
        for key, indexes in order.items():
            if len(indexes) > proposed.get(key, 0):
                self.violate(f"a command is in the log {len(indexes)} times: {indexes}")
        self._judge_order()

    def _judge_call(self, call: Call, indexes: list[int]) -> None:
        outcome = call.outcome
        if isinstance(outcome, Applied) and not indexes:
            self.violate(f"call {call.number} was acknowledged and is not in the log")
        elif isinstance(outcome, Refused) and outcome.code == 41 and indexes:
            same = [other for other in self.calls if other.key == call.key]
            if len(same) == 1:
                self.violate(f"call {call.number} was refused and is in the log")
        elif outcome is None and call.ended_ns >= 0:
            self.violate(f"call {call.number} ended without an outcome")

    def _judge_order(self) -> None:
        """Real time: what was acknowledged before another call began has the smaller id."""
        done = sorted(
            (call for call in self.calls if isinstance(call.outcome, Applied)),
            key=lambda call: call.ended_ns,
        )
        values: dict[int, bytes] = {}
        for call in done:
            assert isinstance(call.outcome, Applied)
            other = values.setdefault(call.outcome.value, call.key)
            if other != call.key:
                self.violate(f"two commands were given the value {call.outcome.value}")
        highest, position = -1, 0
        for call in sorted(done, key=lambda call: call.begun_ns):
            while position < len(done) and done[position].ended_ns < call.begun_ns:
                before = done[position].outcome
                assert isinstance(before, Applied)
                highest = max(highest, before.value)
                position += 1
            assert isinstance(call.outcome, Applied)
            first = self._first_begin(call)
            if first == call.begun_ns and call.outcome.value < highest:
                self.violate(f"call {call.number} went back in time")

    def _first_begin(self, call: Call) -> int:
        return min(other.begun_ns for other in self.calls if other.key == call.key)

    def summary(self) -> str:
        """Return counts for people."""
        kinds = {"applied": 0, "refused": 0, "unknown": 0}
        for call in self.calls:
            if isinstance(call.outcome, Applied):
                kinds["applied"] += 1
            elif isinstance(call.outcome, Refused):
                kinds["refused"] += 1
            elif isinstance(call.outcome, Unknown):
                kinds["unknown"] += 1
        return (
            f"calls={len(self.calls)} {kinds} terms={len(self.leaders)} entries={len(self.applied)}"
            f" snapshots={self.snapshots_installed} steps={self.steps}"
        )
