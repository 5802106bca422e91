"""What a leader believes of its followers' replies."""

import random
from typing import Any
from uuid import UUID

import pytest

from dlogd.metadata.raft import snapshots
from dlogd.metadata.raft.durable_log import RaftLog
from dlogd.metadata.raft.peers import Peer
from dlogd.metadata.raft.replication import MESSAGES_IN_FLIGHT_MAX, Replication
from dlogd.metadata.raft.snapshots import Snapshot, SnapshotFiles
from dlogd.metadata.raft.voters import Voters
from dlogd.metadata.state.image import EMPTY_IMAGE
from tests.fakes.disk import Machine

ENTRY = b"\0\0\0\0\0"
PEER = Peer(2)


class _Core:
    """A leader of term 5 with one peer, and what it sends."""

    def __init__(self, entry_count: int, **bounds: int) -> None:
        directory = Machine(random.Random(1)).boot().open_directory("/data")
        self.log = RaftLog.create(directory, 1, UUID(int=1), Voters())
        for index in range(2, 2 + entry_count):
            self.log.add(ENTRY, index, 5)
        self.files = SnapshotFiles(directory)
        self.sent: list[dict[str, Any]] = []
        self.term, self.is_leader, self.commit_index = 5, True, 1
        self.bound = True
        self.stepped_down: list[int] = []
        self.connected = {2: UUID(int=2)}
        self._SyncObj__raftMatchIndex = {PEER: 0}
        self._SyncObj__raftNextIndex = {PEER: 2}
        self._SyncObj__lastResponseTime: dict[Peer, float] = {}
        self.replication = Replication(self.log, self.files, renew=self.renew, **bounds)
        self.replication.attach(self)
        self.replication.on_connected(PEER)
        self._SyncObj__raftNextIndex[PEER] = 2

    def renew(self) -> tuple[int, bytes]:
        raise AssertionError("the snapshot is whole")

    def now_s(self) -> float:
        return 1.0

    def seat(self, _: int) -> Peer:
        return PEER

    def counts(self, _: int) -> bool:
        return self.bound

    def step_down(self, term: int) -> None:
        self.stepped_down.append(term)
        self.is_leader = False

    def _send(self, _: int, message: dict[str, Any]) -> None:
        self.sent.append(message)

    @property
    def match(self) -> int:
        return self._SyncObj__raftMatchIndex[PEER]

    @property
    def next(self) -> int:
        return self._SyncObj__raftNextIndex[PEER]

    def reply(self, **fields: Any) -> None:
        reply = {"term": 5, "seq": 1, "next_node_idx": 4, "reset": False, "success": True}
        self.replication.on_ack(PEER, reply | fields)


def test_a_reply_of_an_earlier_leadership_does_not_count() -> None:
    """Hole 1.5.3: the reply of pysyncobj carries no term."""
    core = _Core(5)
    core.reply(term=4)
    assert core.match == 0
    core.reply()
    assert core.match == 3


def test_a_reply_of_a_higher_term_ends_the_leadership() -> None:
    core = _Core(5)
    core.reply(term=6)
    assert core.stepped_down == [6] and core.match == 0


def test_a_voter_without_a_known_directory_commits_nothing() -> None:
    core = _Core(5)
    core.bound = False
    core.reply()
    assert core.match == 0


def test_nothing_under_way_is_sent_again_by_a_late_reply() -> None:
    """Hole 1.5.1: each success rewound pysyncobj to what was acknowledged."""
    core = _Core(9, append_bytes_max=1)
    core.replication.send_all(heartbeat=False)
    assert [message["entries"][0][1] for message in core.sent] == list(range(2, 11))
    core.reply(seq=1, next_node_idx=3)
    assert (core.match, core.next) == (2, 11)
    core.replication.send_all(heartbeat=False)
    assert len(core.sent) == 9


def test_only_the_first_of_many_rewinds_counts() -> None:
    core = _Core(9, append_bytes_max=1)
    core.replication.send_all(heartbeat=False)
    core.reply(seq=2, next_node_idx=3, success=False, reset=True)
    assert core.next == 3
    core.replication.send_all(heartbeat=False)
    assert core.next == 11
    core.reply(seq=3, next_node_idx=3, success=False, reset=True)
    assert core.next == 11


def test_a_peer_that_forgot_what_it_confirmed_counts_no_more_and_is_sent_it_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its last frame has rotted, or its disk is an older copy: asked again for ever, it hung."""
    core = _Core(9)
    core.reply(next_node_idx=6)
    core.replication.on_connected(PEER)
    core.replication.send_all(heartbeat=False)
    assert core.sent[-1]["prevLogIdx"] == 5
    core.reply(seq=9, next_node_idx=3, success=False, reset=True)
    assert (core.match, core.next) == (2, 3)
    assert "node=2 confirmed=5 holds=2" in caplog.text
    core.replication.send_all(heartbeat=False)
    assert core.sent[-1]["prevLogIdx"] == 2
    core.reply(seq=10, next_node_idx=11)
    assert core.match == 10


def test_what_is_under_way_is_bounded() -> None:
    core = _Core(100, append_bytes_max=1)
    for _ in range(5):
        core.replication.send_all(heartbeat=False)
    assert len(core.sent) == MESSAGES_IN_FLIGHT_MAX


def test_a_snapshot_goes_chunk_by_chunk_and_then_entries_follow() -> None:
    core = _Core(9, chunk_bytes=32)
    taken = Snapshot(index=6, term=5, voters=Voters(), image=EMPTY_IMAGE)
    data = snapshots.encode(taken)
    core.files.store(6, data)
    core.log.rebase(6, 5, Voters())
    received = b""
    for _ in range(100):
        core.sent.clear()
        core.replication.send_all(heartbeat=False)
        core.replication.send_all(heartbeat=False)
        (message,) = core.sent
        if message["type"] != "snapshot":
            break
        assert message["position"] == len(received)
        received += message["data"]
        ack = {"term": 5, "index": 6, "position": len(received)}
        core.replication.on_snapshot_ack(PEER, ack)
    assert received == data
    assert message["prevLogIdx"] == 6 and core.match == 6
