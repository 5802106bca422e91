"""A node dies at each operation of its disk, or is refused it, while it takes a snapshot and trims
its log, installs a leader's snapshot, and votes and appends right after.

Also in the starts after that. What is found is what was there before or what was made of it, and
the latter once it was promised: no vote, no entry is lost, snapshot and log fit together. What the
disk refuses ends the node, or leaves it as able as before.
"""

import errno
from collections.abc import Callable

import pytest

from dlogd.metadata.raft.durable_log import LogFailedError
from tests.fakes.faults import DiskFault, ProcessDied
from tests.fakes.raft_disk import (
    FIRST,
    Deed,
    History,
    RaftNode,
    State,
    append,
    commit,
    compact,
    entry,
    install,
    renew,
    vote,
    voters_entry,
)

POINTS_MAX = 200
Disturb = Callable[[int], None]

SHARED = (entry(1, 2), voters_entry(1, 4), entry(1, 4), entry(1, 5))
LEADER: History = (*FIRST, *SHARED, *(entry(2, n) for n in (6, 7)), voters_entry(2, 5), entry(3, 9))
OWN = (entry(1, 6), voters_entry(1, 6), entry(1, 8), entry(1, 9), entry(1, 10))
AFTER = [vote(4, 2), append(entry(4, 90), entry(4, 91)), vote(5, None)]

# What was there before, and what is then done.
WORKS: dict[str, tuple[list[Deed], list[Deed]]] = {
    "first own snapshot": (
        [vote(1, 1), append(*SHARED), append(*OWN), commit(9)],
        [compact(7), *AFTER, append(entry(5, 92), cut_at=10), compact(9), renew(9)],
    ),
    "another own snapshot": (
        [vote(1, 1), append(*SHARED), commit(4), compact(4), append(*OWN)],
        [commit(8), compact(8), vote(2, 3), commit(9), renew(9), *AFTER],
    ),
    "a leader's, far ahead": (
        [vote(1, 1), append(*SHARED), commit(5), compact(4)],
        [vote(3, None), install(LEADER, 9), *AFTER, commit(10), compact(10)],
    ),
    "a leader's, the first": (
        [vote(1, None)],
        [vote(3, 2), install(LEADER, 6), install(LEADER, 9), *AFTER],
    ),
    "a leader's, in the midst": (
        [vote(1, 1), append(*SHARED), commit(3), compact(3), vote(3, None), append(*LEADER[5:])],
        [install(LEADER, 7), *AFTER, commit(8), compact(8)],
    ),
    "a leader's, of another history": (
        [vote(1, 1), append(*SHARED), commit(4), compact(4), append(*OWN)],
        [vote(3, 3), install(LEADER, 8), *AFTER, commit(9), compact(9)],
    ),
}

_MAY_FAIL = ("open", "create", "names", "read", "write", "sync", "sync_directory", "rename")
FAULTS: dict[str, tuple[int, tuple[str, ...]]] = {
    "EIO": (errno.EIO, (*_MAY_FAIL, "unlink", "truncate", "lock")),
    "ENOSPC": (errno.ENOSPC, ("create", "write", "sync", "sync_directory", "rename")),
    "EMFILE": (errno.EMFILE, ("open", "names", "lock")),
}


def _fault(name: str, *, lasts: bool) -> DiskFault:
    code, operations = FAULTS[name]
    return DiskFault(operations, errno=code, count=None if lasts else 1, writes_part=True)


def _expect_ended(node: RaftNode) -> None:
    """Whoever asks a log that has failed for a promise is told so, whatever he asks."""
    log = node.log
    with pytest.raises(LogFailedError):
        log.flush()
    with pytest.raises(LogFailedError):
        log.setCurrentTerm(log.term, log.vote)
    with pytest.raises(LogFailedError):
        log.setRaftCommitIndex(log.last_index)
    with pytest.raises(LogFailedError):
        log.rebase(log.base_index, log.entries[0][2], log.base_voters)


def _start_badly(node: RaftNode, faults: tuple[str, ...]) -> None:
    """Start, which may fail; no refusal of the disk, and no death, is taken for damage.

    A disk that is ill stays so.
    """
    rng = node.machine.rng
    was_ill = node.is_ill
    if was_ill:
        node.struck = True
    elif faults and rng.random() < 0.6:
        node.fail_at(rng.randrange(1, 12), _fault(rng.choice(faults), lasts=rng.random() < 0.5))
    else:
        node.die_at(rng.randrange(1, 14))
    try:
        node.start()
    except (ProcessDied, LogFailedError, OSError):
        assert node.struck
    if not was_ill:
        node.calm()
    node.end(power_cut=rng.random() < 0.5)


def _disturbed(name: str, point: int, seed: int, fault: str = "") -> bool:
    """Live, with one disturbance and its consequences; return whether there is such a point."""
    before, work = WORKS[name]
    node = RaftNode(seed, kept=seed // 5 % 3)
    node.start()
    possible, _ = node.do(before, {State()})
    if fault:
        node.fail_at(point, _fault(fault, lasts=seed % 2 == 0))
    else:
        node.die_at(point)
    possible, ended = node.do(work, possible)
    is_point = node.struck
    assert is_point or not ended
    if ended and fault:
        _expect_ended(node)
    node.machine.spare()
    node.end(power_cut=seed % 3 != 0)
    for _ in range(seed // 2 % 4):
        _start_badly(node, tuple(FAULTS) if fault else ())
    node.calm()
    node.start()
    found = node.finds(possible)
    if seed % 5 < 2:  # what a start has found may have been told
        node.end(power_cut=True, keep=0.0)
        node.start()
        assert node.finds({found}) == found
    last = len(found.history) + 1
    added = entry(found.term + 1, last)
    more = [vote(found.term + 1, 3), append(added), commit(last), compact(last)]
    possible, ended = node.do(more, {found})
    assert not ended and len(possible) == 1
    node.end(power_cut=True, keep=0.0)
    node.start()
    node.finds(possible)
    return is_point


def _disturb_everywhere(name: str, seeds: int, fault: str = "") -> None:
    for point in range(1, POINTS_MAX):
        for seed in range(seeds * point, seeds * (point + 1)):
            try:
                if not _disturbed(name, point, seed, fault):
                    assert point > 5
                    return
            except BaseException as error:
                raise AssertionError(f"point {point}, seed {seed}") from error
    raise AssertionError("the work has no end")


@pytest.mark.parametrize("name", list(WORKS))
def test_a_death_at_every_disk_operation_leaves_what_was_or_what_was_made(name: str) -> None:
    _disturb_everywhere(name, 8)


@pytest.mark.parametrize("fault", list(FAULTS))
@pytest.mark.parametrize("name", list(WORKS))
def test_what_the_disk_refuses_ends_the_node_or_changes_nothing(name: str, fault: str) -> None:
    _disturb_everywhere(name, 8, fault)
