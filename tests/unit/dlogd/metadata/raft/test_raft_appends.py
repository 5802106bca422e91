"""What a follower makes of an append: the protocol holes of pysyncobj, one by one."""

import random
import re
from typing import Any
from uuid import UUID

import pytest

from dlogd.metadata.raft import appends, pysyncobj_adapter
from dlogd.metadata.raft import entries as wire
from dlogd.metadata.raft.appends import RaftHaltedError
from dlogd.metadata.raft.consensus import RaftCore
from dlogd.metadata.raft.durable_log import RaftLog
from dlogd.metadata.raft.replication import Replication
from dlogd.metadata.raft.snapshots import SnapshotFiles
from dlogd.metadata.raft.timings import RaftTimings
from dlogd.metadata.raft.voters import Voter, Voters
from dlogd.runtime.clock import SystemClock
from tests.fakes.disk import Machine
from tests.tidy import sources

ENTRY = b"\0\0\0\0\0"


def _log(*terms: int) -> RaftLog:
    """Make a log with entries of these terms, from index 2 on."""
    directory = Machine(random.Random(1)).boot().open_directory("/data")
    log = RaftLog.create(directory, 1, UUID(int=1), Voters())
    for index, term in enumerate(terms, 2):
        log.add(ENTRY, index, term)
    return log


def _append(previous: int, previous_term: int, *terms: int, commit: int = 0) -> dict[str, Any]:
    entries = [(ENTRY, previous + 1 + place, term) for place, term in enumerate(terms)]
    return {
        "type": "append_entries",
        "prevLogIdx": previous,
        "prevLogTerm": previous_term,
        "entries": entries,
        "commit_index": commit,
    }


def test_an_older_shorter_append_cuts_nothing() -> None:
    done = appends.normalise(_append(2, 1, 1, 1, commit=9), _log(1, 1, 1, 1, 1), 1)
    assert done.message["entries"] == []
    assert done.message["prevLogIdx"] == 6
    assert done.verified == 4
    assert done.message["commit_index"] == 4


def test_only_what_conflicts_is_replaced() -> None:
    done = appends.normalise(_append(2, 1, 1, 2, 2, commit=9), _log(1, 1, 1, 1, 1), 3)
    assert done.message["prevLogIdx"] == 3
    assert [entry[1:] for entry in done.message["entries"]] == [(4, 2), (5, 2)]
    assert done.verified is None


def test_a_conflict_below_the_commit_index_stops_the_node() -> None:
    with pytest.raises(RaftHaltedError):
        appends.normalise(_append(2, 1, 1, 2), _log(1, 1, 1, 1), 4)
    with pytest.raises(RaftHaltedError):
        appends.normalise(_append(4, 2), _log(1, 1, 1, 1), 4)


def test_backing_off_skips_a_whole_term() -> None:
    done = appends.normalise(_append(7, 9), _log(1, 2, 2, 2, 2, 2), 1)
    assert done.backoff == 3
    done = appends.normalise(_append(7, 9), _log(1, 2, 2, 2, 2, 2), 4)
    assert done.backoff == 5


def test_what_is_behind_the_snapshot_is_taken_as_matching() -> None:
    log = _log(1, 1, 1, 1, 1)
    log.rebase(5, 1, Voters())
    done = appends.normalise(_append(2, 1, 1, 1, 1, 1, 2, commit=9), log, 5)
    assert done.message["prevLogIdx"] == 6
    assert [entry[1:] for entry in done.message["entries"]] == [(7, 2)]
    done = appends.normalise(_append(2, 1, 1), log, 5)
    assert done.verified == 5


def _voters(*node_ids: int) -> Voters:
    members = [Voter(node_id=n, directory_id=UUID(int=n), host="h", port=n) for n in node_ids]
    return Voters.of(members)


def _core(voters: Voters) -> RaftCore:
    """Make a follower with entries 2 to 8 of term 1 and connections with nodes 2 to 5."""
    directory = Machine(random.Random(1)).boot().open_directory("/data")
    log = RaftLog.create(directory, 1, UUID(int=1), voters)
    for index in range(2, 9):
        log.add(ENTRY, index, 1)
    log.setCurrentTerm(1, None)
    core = RaftCore(
        log,
        Replication(log, SnapshotFiles(directory), renew=lambda: (0, b"")),
        clock=SystemClock(),
        rng=random.Random(1),
        timings=RaftTimings(),
        send=lambda _, message: None,
        apply=lambda index, term, entry: None,
        last_applied=8,
    )
    for node_id in (2, 3, 4, 5):
        core.peer_up(node_id, UUID(int=node_id))
    return core


def _expect_voters(core: RaftCore, *node_ids: int) -> None:
    """What the core believes of the others is what the log says."""
    assert core._log.voters == _voters(1, *node_ids)
    assert sorted(peer.id for peer in core._SyncObj__otherNodes) == [*node_ids]
    seats = {node_id: core.seat(node_id) for node_id in (2, 3, 4, 5)}
    assert [node_id for node_id, peer in seats.items() if peer and peer.id >= 0] == [*node_ids]


def test_voters_are_replaced_by_others_at_the_same_index() -> None:
    """One append takes an uncommitted set away and brings another leader's in its place."""
    core = _core(_voters(1, 2, 3))

    def append(leader: int, term: int, voters: Voters) -> None:
        message = _append(8, 1, term, term, commit=8) | {"term": term, "seq": term}
        change = wire.encode_voters(UUID(int=term), voters)
        message["entries"].append((change, 11, term))
        core.receive(leader, message)

    _expect_voters(core, 2, 3)
    append(2, 2, _voters(1, 2, 3, 4))
    _expect_voters(core, 2, 3, 4)
    append(3, 3, _voters(1, 2, 3, 5))
    assert core._log.voters_index == 11
    _expect_voters(core, 2, 3, 5)


def test_voters_of_a_snapshot_replace_others_at_the_same_index() -> None:
    core = _core(_voters(1, 2, 3))
    core._log.add(wire.encode_voters(UUID(int=9), _voters(1, 2, 3, 4)), 9, 1)
    core._follow_voters()
    _expect_voters(core, 2, 3, 4)
    core._log.rebase(9, 2, _voters(1, 2, 3, 5))
    core.jump_to(9)
    _expect_voters(core, 2, 3, 5)


def test_the_installed_pysyncobj_is_the_one_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    pysyncobj_adapter.check()
    monkeypatch.setattr("pysyncobj.version.VERSION", "0.3.18")
    with pytest.raises(pysyncobj_adapter.PysyncobjError, match=r"0\.3\.18 is installed"):
        pysyncobj_adapter.check()


def test_a_missing_private_name_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("pysyncobj.syncobj.SyncObj._SyncObj__connectedToAnyone")
    with pytest.raises(pysyncobj_adapter.PysyncobjError, match="connectedToAnyone"):
        pysyncobj_adapter.check()


def test_pickle_is_switched_off() -> None:
    for name in ("loads", "load", "dumps", "dump"):
        with pytest.raises(RuntimeError, match="pickle"):
            getattr(pysyncobj_adapter.pysyncobj.pickle, name)(b"")  # type: ignore[attr-defined]


def test_one_module_knows_pysyncobj() -> None:
    knowing = [
        source.module
        for source in sources.production()
        if re.search(r"^\s*(import|from) pysyncobj", source.text, re.M)
    ]
    assert knowing == ["dlogd.metadata.raft.pysyncobj_adapter"]
