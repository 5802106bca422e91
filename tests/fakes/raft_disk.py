"""A node's Raft directory on a simulated disk, and what must be found there after its node ended.

The node does what `dlogd.metadata.raft.participant` does with log and snapshots, one `Deed` after
the other, and without the network. Its disk may end it at any operation, or refuse any.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from uuid import UUID

from dlogd.metadata.raft import entries as wire
from dlogd.metadata.raft import snapshots
from dlogd.metadata.raft.boot import Disk, open_disk
from dlogd.metadata.raft.durable_log import LogFailedError, RaftLog
from dlogd.metadata.raft.machine_state import MachineState
from dlogd.metadata.raft.snapshots import Snapshot
from dlogd.metadata.raft.voters import Voter, Voters
from dlogd.metadata.state.image import EMPTY_IMAGE
from tests.fakes.disk import Machine
from tests.fakes.faults import DiskFault, ProcessDied
from tests.fakes.randomness import SeededRandomness

VOTERS = Voters.of(Voter(node_id=n, host="h", port=1) for n in (1, 2, 3))
History = tuple[tuple[int, bytes], ...]
FIRST: History = ((0, wire.NO_OP_ENTRY),)
"""Where every log begins: the entry of index 1."""


@dataclass(frozen=True, slots=True)
class State:
    """What the disk of a node says.

    `history`: term and bytes of all entries from index 1 on; `committed`: up to which index.
    """

    term: int = 0
    vote: int | None = None
    history: History = FIRST
    committed: int = 1
    snapshot: int = 0


@dataclass(frozen=True, slots=True)
class Deed:
    """Something that a node does to its disk, and what that makes of a state.

    `snapshot`: which one it stores, None for none.
    """

    run: Callable[["RaftNode"], None]
    makes: Callable[[State], State]
    snapshot: int | None = None


def entry(term: int, number: int) -> tuple[int, bytes]:
    """Return an entry that takes more than one sector."""
    return term, bytes([wire.COMMANDS]) + number.to_bytes(4, "big") * 200


def voters_entry(term: int, number: int) -> tuple[int, bytes]:
    """Return an entry by which another node votes."""
    voters = VOTERS.with_voter(Voter(node_id=number, host="h", port=1))
    return term, wire.encode_voters(UUID(int=number), voters)


def voters_at(history: History, index: int) -> Voters:
    """Return who votes by the entries up to `index`."""
    changes = [data for _, data in history[:index] if data[0] == wire.VOTERS]
    return wire.decode_voters(changes[-1])[1] if changes else VOTERS


def vote(term: int, node_id: int | None) -> Deed:
    """Enter a term, with a vote or without."""
    return Deed(
        lambda node: node.log.setCurrentTerm(term, node_id),
        lambda state: replace(state, term=term, vote=node_id),
    )


def append(*added: tuple[int, bytes], cut_at: int | None = None) -> Deed:
    """Append entries and flush; `cut_at`: what stands there and behind it goes before."""

    def run(node: RaftNode) -> None:
        if cut_at is not None:
            node.log.deleteEntriesFrom(cut_at - node.log.base_index)
        for term, data in added:
            node.log.add(data, node.log.last_index + 1, term)
        node.log.flush()

    def makes(state: State) -> State:
        kept = state.history if cut_at is None else state.history[: cut_at - 1]
        return replace(state, history=kept + added)

    return Deed(run, makes)


def commit(index: int) -> Deed:
    """Commit what is up to an entry, and note that."""

    def run(node: RaftNode) -> None:
        node.log.setRaftCommitIndex(index)
        node.log.onOneSecondTimer()
        node.log.flush()

    return Deed(run, lambda state: replace(state, committed=max(index, state.committed)))


def _snapshot(history: History, index: int) -> Snapshot:
    return Snapshot(
        index=index,
        term=history[index - 1][0],
        voters=voters_at(history, index),
        image=replace(EMPTY_IMAGE, version=index),
    )


def compact(index: int) -> Deed:
    """Take a snapshot after the entry of `index`, and trim the log."""

    def run(node: RaftNode) -> None:
        state = node.machine_state()
        state.image = replace(EMPTY_IMAGE, version=index)
        state.maybe_compact(index)

    return Deed(run, lambda state: replace(state, snapshot=index), index)


def renew(index: int) -> Deed:
    """Replace the newest snapshot, as when it has rotted; the log stays as it is."""

    def run(node: RaftNode) -> None:
        state = node.machine_state()
        state.image = replace(EMPTY_IMAGE, version=index)
        state.renew_snapshot(index)

    return Deed(run, lambda state: replace(state, snapshot=index), index)


def install(leader: History, index: int) -> Deed:
    """Take over a leader's snapshot of `index`."""
    data = snapshots.encode(_snapshot(leader, index))

    def makes(state: State) -> State:
        mine = state.history[index - 1 : index]
        tail = state.history[index:] if mine and mine[0][0] == leader[index - 1][0] else ()
        return replace(
            state,
            history=leader[:index] + tail,
            committed=max(index, state.committed),
            snapshot=index,
        )

    return Deed(lambda node: node.machine_state().install(data) and None, makes, index)


class RaftNode:
    """One node: started, disturbed, ended, again and again. `kept`: entries behind a snapshot.

    `struck`: whether the disturbance that was asked for last has come.
    """

    def __init__(self, seed: int, kept: int) -> None:
        self.machine = Machine(random.Random(seed))
        self.struck = False
        self._kept = kept
        self._disk: Disk | None = None

    @property
    def disk(self) -> Disk:
        """What was opened last."""
        assert self._disk is not None
        return self._disk

    @property
    def log(self) -> RaftLog:
        """The log that was opened last."""
        return self.disk.log

    def machine_state(self) -> MachineState:
        """Return what takes and installs snapshots, always ready to."""
        return MachineState(
            self.disk.log,
            self.disk.files,
            self.disk.taken,
            settle=lambda *_: None,
            log_bytes_max=1,
            entries_kept=self._kept,
        )

    # -- disturbances

    def die_at(self, point: int) -> None:
        """Let the process die at its operation number `point` from now."""
        self.struck = False
        self.machine.die_at(point, self._strike)

    def fail_at(self, point: int, fault: DiskFault) -> None:
        """Let the disk have `fault` from operation number `point` of those that it is about."""
        self.struck = False
        self.machine.fail_at(point, fault, self._strike)

    def _strike(self) -> None:
        self.struck = True

    @property
    def is_ill(self) -> bool:
        """Whether the disk still has a fault."""
        return any(fault.count != 0 for fault in self.machine.disks["/data"].faults)

    def calm(self) -> None:
        """Take back what was asked for or has come."""
        self.machine.spare()
        self.machine.heal()

    # -- life

    def start(self) -> None:
        """Start a process; raises what `open_disk` does, and ProcessDied."""
        directory = self.machine.boot().open_directory("/data/meta")
        self._disk = open_disk(directory, 1, VOTERS, SeededRandomness(1).entropy)

    def end(self, *, power_cut: bool, keep: float | None = None) -> None:
        """End the process."""
        if power_cut:
            self.machine.power_cut(keep)
        else:
            self.machine.crash()

    def do(self, deeds: list[Deed], possible: set[State]) -> tuple[set[State], bool]:
        """Do it all, or until that ends the node; return what may be found, and whether it ended.

        What a deed returned from is found for certain.
        """
        for deed in deeds:
            made = {deed.makes(state) for state in possible}
            try:
                deed.run(self)
            except ProcessDied:
                return possible | made, True
            except LogFailedError:
                assert self.log.failed or deed.snapshot is not None
                self.log.failed = True  # as the participant does
                return possible | made, True
            if deed.snapshot in (None, self.disk.files.index):
                possible = made
            else:
                assert self.struck, "no snapshot, for no reason"
                possible = possible | made
            taken_index = max(self.disk.files.index, 1)
            assert any(_is_log_of(self.log, state, taken_index) for state in possible)
            assert self.log.base_index <= taken_index
            assert len(self.machine.processes[-1].open_files) == 1
            if self.machine.rng.random() < 0.2:
                self.machine.write_back(self.machine.rng.random())
        return possible, False

    def finds(self, possible: set[State]) -> State:
        """Return what the start has found; it is one of `possible`."""
        found = [state for state in possible if self._is(state)]
        assert found, f"{self._described()}; possible were {possible}"
        assert len(found) == 1
        return found[0]

    def _is(self, state: State) -> bool:
        taken = self.disk.taken
        if taken is None:
            is_all = state.snapshot == 0 and self.log.base_index == 1
            return is_all and _is_log_of(self.log, state)
        return (
            taken.index == state.snapshot == self.disk.files.index
            and taken == _snapshot(state.history, taken.index)
            and self.log.base_index <= taken.index
            and _is_log_of(self.log, state, taken.index)
        )

    def _described(self) -> str:
        found = [(index, term) for _, index, term in self.log.entries]
        return f"term {self.log.term}, vote {self.log.vote}, {self.disk.files.index}, {found}"


def _is_log_of(log: RaftLog, state: State, taken_index: int = 1) -> bool:
    history, base_index = state.history, log.base_index
    expected = [
        (data, index, term) for index, (term, data) in enumerate(history, 1) if index > base_index
    ]
    return (
        (log.term, log.vote, log.last_index) == (state.term, state.vote, len(history))
        and max(log.commit_index, taken_index) == state.committed
        and log.entries[1:] == expected
        and log.term_at(base_index) == history[base_index - 1][0]
        and log.voters == voters_at(history, len(history))
    )
