"""Random lives of proposals: in the log at most once, and told the truth, whoever leads.

Nodes propose, give up, ask again; messages are lost; servers lead, are deposed without knowing it,
and come back with what only they have. Of Raft there is the least that decides about proposals:
terms that only grow, logs of which one is chosen, and what is committed stays. The outbox, the
intake and the machine are the real ones.
"""

import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest

from dlog.types import NodeId
from dlogd.metadata.commands.codec import AllocateProducerIds, encode
from dlogd.metadata.machine import apply
from dlogd.metadata.raft import proposals
from dlogd.metadata.raft.entries import Item, What
from dlogd.metadata.raft.proposals import Intake, Outbox
from dlogd.metadata.state.image import Applied, ClusterImage, Outcome, Refused, Unknown
from tests.fakes.metadata_cluster import FakeCluster

NODES, SERVERS = 3, 3
WALKS, STEPS = 200, 250
UNTIL_MS = (100, 700, 30_000)

Entry = tuple[int, tuple[Item, ...]]


@dataclass(eq=False)
class Call:
    """One command or barrier of a node, which may be proposed more than once."""

    item: Item
    node: "Node"
    since: int  # the number of the call
    acknowledged: int = 0  # entries that somebody was told of when it began
    told: Outcome | None = None
    waits: bool = False
    alone_at: int | None = None  # calls that there were when nobody waited any more

    def on_settled(self, outcome: Outcome) -> None:
        """Take an outcome."""
        assert self.waits, self
        self.told, self.waits = outcome, False
        self.alone_at = len(self.node.life.calls)
        self.node.life.check_told(self)


@dataclass(eq=False)
class Node:
    """Who proposes: an outbox, and how far this node has applied the log."""

    life: "Life"
    outbox: Outbox = field(default_factory=Outbox)
    term: int = 0
    leader: int = 0
    applied: int = 0
    applied_term: int = 0
    last_done: int = -1  # the newest call of it that is in the log


@dataclass(eq=False)
class Server:
    """Who may lead; `tail` is what it has behind what is committed."""

    intake: Intake = field(default_factory=Intake)
    tail: list[Entry] = field(default_factory=list)
    term: int = 0
    leads: bool = False
    acts: bool = False  # its first entry is committed


class Life:
    """All of them, and what is committed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_s = 1.0
        self.term = 0
        self.images: list[ClusterImage] = [FakeCluster(1).image]
        self.committed: list[tuple[int, list[tuple[bytes, Outcome]]]] = []
        self.places: dict[bytes, int] = {}
        self.calls: list[Call] = []
        self.by_key: dict[bytes, Call] = {}
        self.acknowledged = 0
        self.leaders: dict[int, int] = {}  # by term
        self.nodes = [Node(self) for _ in range(NODES)]
        self.servers = [Server() for _ in range(SERVERS)]
        self.lines: dict[tuple[int, int], deque[tuple[int, tuple[Item, ...]]]] = {
            (node, server): deque() for node in range(NODES) for server in range(SERVERS)
        }
        self.elect()

    def step(self) -> None:
        """Do something."""
        self.now_s += self.rng.choice((0.001, 0.001, 0.005, 0.02, 0.2))
        often = (*(self.look,) * 6, *(self.deliver,) * 4, *(self.append,) * 3, *(self.commit,) * 3)
        seldom = (self.propose, self.propose, self.hear, self.leave, self.ask_again, self.install)
        rare = self.rng.choice((self.elect, self.cut))
        self.rng.choice((*often, *seldom, rare))()

    # -- those who propose

    def propose(self) -> None:
        """Ask for something new."""
        number = len(self.calls)
        key = UUID(int=1 << 100 | number)
        epoch = self.images[0].nodes[NodeId(1)].node_epoch
        command = AllocateProducerIds(command_id=key, node_id=NodeId(1), node_epoch=epoch, count=1)
        item = Item(What.COMMAND, encode(command))
        if self.rng.random() < 0.2:
            item = Item(What.BARRIER, key.bytes)
        call = Call(item, self.rng.choice(self.nodes), number, self.acknowledged)
        self.calls.append(call)
        self.by_key[item.key] = call
        self.ask(call)

    def ask(self, call: Call) -> None:
        """Do what the store does with a proposal."""
        call.waits, call.told, call.alone_at = True, None, None
        known = self.images[call.node.applied].outcomes.get(UUID(bytes=call.item.key))
        if known is not None:
            call.on_settled(known)
            return
        until_ms = int(self.now_s * 1000) + self.rng.choice(UNTIL_MS)
        call.node.outbox.add(call.item, until_ms, call.on_settled)

    def ask_again(self) -> None:
        """Repeat a command of which nobody knows what became of it."""
        lost = [
            call
            for call in self.calls[-20:]
            if not call.waits
            and call.item.what is What.COMMAND
            and (call.told is None or isinstance(call.told, Unknown))
        ]
        if lost:
            self.ask(self.rng.choice(lost))

    def leave(self) -> None:
        """Wait no longer."""
        waiting = [call for call in self.calls[-20:] if call.waits]
        if waiting:
            call = self.rng.choice(waiting)
            call.waits, call.alone_at = False, len(self.calls)
            call.node.outbox.withdraw(call.item.key, call.on_settled)

    def look(self) -> None:
        """Take a step of a node: apply, tell, send."""
        number = self.rng.randrange(NODES)
        node = self.nodes[number]
        end = self.rng.randint(node.applied, len(self.committed))
        for term, outcomes in self.committed[node.applied : end]:
            node.applied += 1
            node.applied_term = term
            for key, outcome in outcomes:
                node.outbox.settle(key, outcome)
        self.follow(node)
        node.outbox.expire(int(self.now_s * 1000))
        due = node.outbox.due(node.term, node.applied_term, self.now_s)
        if due:
            self.lines[number, node.leader].append((node.term, tuple(due)))

    def install(self) -> None:
        """Let a node jump by a snapshot."""
        node = self.rng.choice(self.nodes)
        if node.applied == len(self.committed):
            return
        node.applied = self.rng.randint(node.applied + 1, len(self.committed))
        node.applied_term = self.committed[node.applied - 1][0]
        self.follow(node)
        for command_id, outcome in self.images[node.applied].outcomes.items():
            node.outbox.settle(command_id.bytes, outcome)
        node.outbox.give_up_sent()

    def follow(self, node: Node) -> None:
        """Know the leader of whose term something was applied."""
        if node.applied_term > node.term:
            node.term = node.applied_term
            node.leader = self.leaders[node.term]

    def hear(self) -> None:
        """Let a node hear of some later leader."""
        node = self.rng.choice(self.nodes)
        node.term = self.rng.randint(max(node.term, 1), self.term)
        node.leader = self.leaders[node.term]

    # -- between

    def deliver(self) -> None:
        """Let a message arrive, in its order."""
        busy = [where for where, line in self.lines.items() if line]
        if not busy:
            return
        where = self.rng.choice(busy)
        term, items = self.lines[where].popleft()
        server, outbox = self.servers[where[1]], self.nodes[where[0]].outbox
        if server.acts and server.term == term and server.intake.offer(items):
            return
        if self.rng.random() < 0.7:
            outbox.refuse(items, term, self.now_s)

    def cut(self) -> None:
        """Break a connection: what is on it is lost."""
        self.rng.choice(list(self.lines.values())).clear()

    # -- those who lead

    def elect(self) -> None:
        """Let one lead with what it has; who led before need not know."""
        self.term += 1
        chosen = self.rng.randrange(SERVERS)
        self.leaders[self.term] = chosen
        for server in self.servers:
            if self.rng.random() < 0.5:
                server.leads = server.acts = False
        server = self.servers[chosen]
        if self.rng.random() < 0.5:  # it follows another one before
            other = self.rng.choice(self.servers).tail
            server.tail = other[: self.rng.randint(0, len(other))]
        server.term, server.leads, server.acts = self.term, True, False
        server.intake.begin(self.term)
        server.tail = [*server.tail, (self.term, ())]

    def append(self) -> None:
        """Let a leader, or who takes itself for one, write what it was given."""
        server = self.rng.choice(self.servers)
        if server.acts:
            items = server.intake.next_entry(len(self.committed))
            if items:
                server.tail = [*server.tail, (server.term, tuple(items))]
                server.intake.in_flight.append(len(self.committed) + len(server.tail))

    def commit(self) -> None:
        """Let the leader have a majority for something of its own term."""
        leader = self.servers[self.leaders[self.term]]
        ends = [n for n, entry in enumerate(leader.tail, 1) if entry[0] == self.term]
        if not leader.leads or not ends:
            return
        end = self.rng.choice(ends)
        done = leader.tail[:end]
        for server in self.servers:
            if server.tail[:end] == done:
                server.tail = server.tail[end:]
            else:
                server.tail, server.leads, server.acts = [], False, False
        leader.leads = leader.acts = True
        for term, items in done:
            self.apply(term, items)

    def apply(self, term: int, items: Iterable[Item]) -> None:
        """Do what every node does with an entry."""
        image, outcomes = self.images[-1], []
        for item in items:
            self.check_logged(self.by_key[item.key])
            outcome: Outcome = Applied(version=image.version)
            if item.what is What.COMMAND:
                image, outcome = apply.apply(image, item.data)
            outcomes.append((item.key, outcome))
        self.images.append(image)
        self.committed.append((term, outcomes))

    # -- what must hold

    def check_logged(self, call: Call) -> None:
        """Look at a command or barrier that is committed."""
        assert call.item.key not in self.places, f"{call.since} is in the log twice"
        self.places[call.item.key] = len(self.committed) + 1
        assert not isinstance(call.told, Refused), f"{call.since} was refused and is in the log"
        node = call.node
        late = call.alone_at is not None and node.last_done >= call.alone_at
        assert not late, f"{call.since} comes behind {node.last_done}, which was asked for after it"
        node.last_done = max(node.last_done, call.since)

    def check_told(self, call: Call) -> None:
        """Look at what somebody was told."""
        place = self.places.get(call.item.key)
        if isinstance(call.told, Refused):
            assert place is None, f"{call.since} was refused and is in the log"
        elif isinstance(call.told, Applied):
            assert place is not None, f"{call.since} was acknowledged and is not in the log"
            self.acknowledged = max(self.acknowledged, place)
            if call.item.what is What.BARRIER:
                assert call.node.applied >= call.acknowledged, f"{call.since} is stale"

    def end(self) -> None:
        """Let all be well for a while: everybody who waits is told."""
        self.elect()
        for node in self.nodes:
            node.term, node.leader = self.term, self.leaders[self.term]
        for _ in range(30 * (NODES + SERVERS)):
            self.now_s += 0.02
            for work in (self.look, self.look, self.deliver, self.deliver, self.append):
                work()
            self.commit()
        self.now_s += 60
        for node in self.nodes:
            node.outbox.expire(int(self.now_s * 1000))
        assert not any(call.waits for call in self.calls)
        done = [call for call in self.calls if call.item.key in self.places]
        commands = sum(call.item.what is What.COMMAND for call in done)
        assert self.images[-1].producer_id_next == commands


def walk(seed: int) -> Life:
    life = Life(seed)
    for _ in range(STEPS):
        life.step()
    life.end()
    return life


@pytest.mark.parametrize("start", range(0, WALKS, 50))
def test_what_is_proposed_is_in_the_log_once_and_told_as_it_is(start: int) -> None:
    told: set[type[Outcome] | None] = set()
    for seed in range(start, start + 50):
        told |= {call.told and type(call.told) for call in walk(seed).calls}
    assert {Applied, Refused, Unknown, None} <= told


def _sent_again_at_once(pending: Any, term: int, applied_term: int, now_s: float) -> bool:
    return bool(pending.term != term or now_s - pending.sent_s >= proposals.RESEND_S)


def _forget(outbox: Any, key: bytes, pending: Any) -> None:
    outbox.pending.pop(key, None)
    outbox._fresh.pop(key, None)


def _forget_behind_a_snapshot(outbox: Any) -> None:
    for key in [key for key, pending in outbox.pending.items() if pending.term >= 0]:
        outbox.settle(key, Unknown(message=""))


def _leave_it_there(outbox: Any, key: bytes, on_settled: Any) -> None:
    pending = outbox.pending.get(key)
    if pending is not None:
        pending.waiters = [(1 << 60, lambda _: None)]


def _take_again(intake: Any, items: Any) -> bool:
    intake._waiting.extend(items)
    return True


def _keep_what_waits(intake: Any, term: int) -> None:
    intake._term = term
    intake._taken.clear()


MUTANTS: dict[str, tuple[Any, str, Any]] = {
    "send again before the copy is dead": (proposals, "_due", _sent_again_at_once),
    "forget what was sent": (Outbox, "_give_up", _forget),
    "forget what a snapshot may hide": (Outbox, "give_up_sent", _forget_behind_a_snapshot),
    "go on with what nobody waits for": (Outbox, "withdraw", _leave_it_there),
    "take a key twice in a term": (Intake, "offer", _take_again),
    "take a term's proposals into the next": (Intake, "begin", _keep_what_waits),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_each_rule_taken_away_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MUTANTS[name])
    with pytest.raises(AssertionError):
        for seed in range(WALKS):
            walk(seed)
