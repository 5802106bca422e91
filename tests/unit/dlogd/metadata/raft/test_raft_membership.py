"""When a leader refuses to change the voters."""

import random
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from dlog.errors import InvalidRequestError, NotControllerError
from dlogd.metadata.raft import entries
from dlogd.metadata.raft.durable_log import RaftLog
from dlogd.metadata.raft.membership import AdminRequest, Membership, Operation
from dlogd.metadata.raft.peers import Peer
from dlogd.metadata.raft.timings import RaftTimings
from dlogd.metadata.raft.voters import UNBOUND, Voter, Voters
from tests.fakes.disk import Machine


class _Leader:
    """Node 1 leads; voters 1, 2, 3 are bound to directories of their number."""

    def __init__(self, connected: tuple[int, ...] = (2, 3, 4)) -> None:
        directory = Machine(random.Random(1)).boot().open_directory("/data")
        voters = Voters.of(
            Voter(node_id=n, directory_id=UUID(int=n), host="h", port=n) for n in (1, 2, 3)
        )
        self.log = RaftLog.create(directory, 1, UUID(int=1), voters)
        self.is_active_leader = self.is_leader = True
        self.leader_id, self.term = 1, 1
        self.commit_index = 1
        self.connected = {n: UUID(int=n) for n in connected}
        self.heard_s: dict[int, float] = {}
        self.held: dict[int, int] = {}
        replication: Any = SimpleNamespace(state_of=self._state_of)
        self.membership = Membership(self, self.log, replication, RaftTimings())

    def _state_of(self, peer: Peer) -> tuple[int, float, float]:
        held = self.held.get(peer.node_id, self.log.last_index)
        return held, self.heard_s.get(peer.node_id, 100.0), 100.0

    def now_s(self) -> float:
        return 100.0

    def seat(self, node_id: int) -> Peer | None:
        if node_id not in self.connected:
            return None
        is_voter = self.log.voters.holds(node_id, self.connected[node_id])
        return Peer(node_id if is_voter else -1 - node_id)

    def append(self, entry: bytes) -> int:
        self.log.add(entry, self.log.last_index + 1, 1)
        return self.log.last_index

    def ask(self, operation: Operation, node_id: int, host: str = "h", port: int = 4) -> None:
        request = AdminRequest(
            request_id=UUID(int=99), operation=operation, node_id=node_id, host=host, port=port
        )
        self.membership.carry_out(request)


def test_one_change_at_a_time() -> None:
    leader = _Leader()
    leader.ask(Operation.ADD, 4)
    with pytest.raises(InvalidRequestError, match="under way"):
        leader.ask(Operation.REMOVE, 2)
    leader.commit_index = leader.log.last_index
    leader.ask(Operation.REMOVE, 2)
    assert leader.log.voters.node_ids == (1, 3, 4)


def test_nothing_before_an_entry_of_the_own_term_is_applied() -> None:
    leader = _Leader()
    leader.is_active_leader = False
    with pytest.raises(NotControllerError):
        leader.ask(Operation.ADD, 4)


@pytest.mark.parametrize(
    ("connected", "operation", "node_id"),
    [
        ((2,), Operation.REMOVE, 2),  # 1 and 3 remain, of which 3 is away
        ((4,), Operation.ADD, 4),  # 1 and 4 of four
        ((3,), Operation.REMOVE, 3),
    ],
)
def test_the_quorum_is_not_given_away(
    connected: tuple[int, ...], operation: Operation, node_id: int
) -> None:
    leader = _Leader(connected)
    with pytest.raises(InvalidRequestError, match="quorum of"):
        leader.ask(operation, node_id)
    assert leader.log.voters.node_ids == (1, 2, 3)


def test_a_voter_away_can_be_removed_while_the_others_are_healthy() -> None:
    leader = _Leader((2,))
    leader.ask(Operation.REMOVE, 3)
    assert leader.log.voters.node_ids == (1, 2)


def test_who_lost_its_disk_or_is_silent_is_not_healthy() -> None:
    leader = _Leader((2, 3))
    leader.connected[2] = UUID(int=22)
    with pytest.raises(InvalidRequestError, match="quorum of"):
        leader.ask(Operation.REMOVE, 3)
    leader.ask(Operation.REMOVE, 2)
    leader = _Leader((2, 3))
    leader.heard_s[2] = 90.0
    with pytest.raises(InvalidRequestError, match="quorum of"):
        leader.ask(Operation.REMOVE, 3)


@pytest.mark.parametrize(
    ("operation", "node_id", "why"),
    [
        (Operation.ADD, 5, "not connected"),
        (Operation.ADD, 2, "already"),
        (Operation.REMOVE, 1, "transfer"),
        (Operation.REMOVE, 4, "no voter"),
        (Operation.TRANSFER, 4, "no connected voter"),
    ],
)
def test_what_makes_no_sense_is_refused(operation: Operation, node_id: int, why: str) -> None:
    with pytest.raises(InvalidRequestError, match=why):
        _Leader().ask(operation, node_id)


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("", 4),
        ("h", 0),
        ("h..x", 4),
        (".h", 4),
        ("x" * 64, 4),
        ("h\0x", 4),
        ("h x", 4),
        ("h." * 128, 4),
        ("x" * 70_000, 4),
    ],
)
def test_an_address_that_nobody_can_dial_is_no_voters(host: str, port: int) -> None:
    leader = _Leader()
    with pytest.raises(InvalidRequestError, match="no address"):
        leader.ask(Operation.ADD, 4, host, port)
    assert leader.log.voters.node_ids == (1, 2, 3)


@pytest.mark.parametrize("host", ["h", "h-1.x.org", "h.x.", "10.0.0.1", "::1", "fe80::1%eth0"])
def test_addresses_of_voters(host: str) -> None:
    leader = _Leader()
    leader.ask(Operation.ADD, 4, host, 9093)
    assert leader.log.voters.node_ids == (1, 2, 3, 4)


def test_a_voter_whose_node_has_another_disk_is_described_as_away() -> None:
    leader = _Leader()
    leader.connected[2] = UUID(int=77)
    found = leader.membership.describe()
    away, well = found.voters[1], found.voters[2]
    assert (away.node_id, away.directory_id) == (2, UUID(int=2))
    assert (away.log_end_offset, away.last_fetch_ms, away.last_caught_up_ms) == (-1, -1, -1)
    assert well.last_fetch_ms == 100_000
    here = {(each.node_id, each.directory_id): each for each in found.observers}
    assert set(here) == {(2, UUID(int=77)), (4, UUID(int=4))}
    assert here[2, UUID(int=77)].last_fetch_ms == 100_000


def test_who_lags_far_behind_is_not_added() -> None:
    leader = _Leader()
    for index in range(2, 2_000):
        leader.log.add(entries.NO_OP_ENTRY, index, 1)
    leader.commit_index = leader.log.last_index
    leader.held[4] = 3
    with pytest.raises(InvalidRequestError, match="only 3 of"):
        leader.ask(Operation.ADD, 4)


def test_directories_are_noted_once_and_never_changed() -> None:
    leader = _Leader()
    leader.log.base_voters = Voters.of(
        Voter(node_id=n, directory_id=UNBOUND, host="h", port=n) for n in (1, 2, 3)
    )
    leader.connected = {2: UUID(int=2)}
    assert leader.membership.bind(UUID(int=50))
    assert [v.directory_id.int for v in leader.log.voters.members] == [1, 2, 0]
    assert not leader.membership.bind(UUID(int=51))
    leader.connected = {2: UUID(int=22), 3: UUID(int=3)}
    assert leader.membership.bind(UUID(int=52))
    assert [v.directory_id.int for v in leader.log.voters.members] == [1, 2, 3]
