"""The durable Raft log and the snapshots beside it, on a simulated disk."""

import errno
import random
from uuid import UUID

import pytest

from dlogd.metadata.raft import entries as wire
from dlogd.metadata.raft import snapshots
from dlogd.metadata.raft.boot import open_disk
from dlogd.metadata.raft.durable_log import NAME, LogCorruptError, LogFailedError, RaftLog
from dlogd.metadata.raft.snapshots import Snapshot, SnapshotFiles
from dlogd.metadata.raft.voters import Voter, Voters
from dlogd.metadata.state.image import EMPTY_IMAGE
from tests.fakes.disk import Machine
from tests.fakes.faults import DiskFault, ProcessDied
from tests.fakes.files import MemoryDirectory
from tests.fakes.randomness import SeededRandomness

VOTERS = Voters.of(Voter(node_id=n, host="h", port=1) for n in (1, 2, 3))
DIRECTORY_ID = UUID(int=7)


def _entry(number: int) -> bytes:
    return bytes([wire.COMMANDS]) + number.to_bytes(4, "big")


class _Host:
    """A machine that is started again and again."""

    def __init__(self, seed: int = 3) -> None:
        self.machine = Machine(random.Random(seed))

    def directory(self) -> MemoryDirectory:
        return self.machine.boot().open_directory("/data/meta")

    def log(self) -> RaftLog:
        directory = self.directory()
        opened = RaftLog.open(directory, 1)
        return opened or RaftLog.create(directory, 1, DIRECTORY_ID, VOTERS)


def test_entries_votes_and_cuts_survive_a_power_cut_once_flushed() -> None:
    host = _Host()
    log = host.log()
    for number in range(2, 8):
        log.add(_entry(number), number, 1)
    log.deleteEntriesFrom(4)
    log.add(_entry(50), 5, 2)
    log.setCurrentTerm(3, 2)
    log.add(_entry(60), 6, 3)
    host.machine.power_cut(keep=0.0)
    again = host.log()
    assert [(index, term) for _, index, term in again.entries] == [
        *((1, 0), (2, 1), (3, 1), (4, 1), (5, 2))
    ]
    assert (again.term, again.vote, again.directory_id) == (3, 2, DIRECTORY_ID)
    assert again.voters == VOTERS


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.7, 1.0])
def test_a_torn_end_is_cut_and_the_log_goes_on(keep: float) -> None:
    host = _Host()
    log = host.log()
    log.add(_entry(2), 2, 1)
    log.flush()
    host.machine.disks["/data"].faults.append(DiskFault(("sync",), count=1))
    log.add(_entry(3) + bytes(3_000), 3, 1)
    with pytest.raises(LogFailedError):
        log.flush()
    with pytest.raises(LogFailedError):
        log.setCurrentTerm(9, None)
    host.machine.power_cut(keep=keep)
    again = host.log()
    assert again.last_index in (2, 3)
    again.add(_entry(4), again.last_index + 1, 1)
    again.flush()
    last = again.last_index
    host.machine.crash()
    assert host.log().last_index == last


@pytest.mark.parametrize("seed", range(100))
def test_a_start_that_cannot_flush_makes_no_damage_of_a_torn_end(seed: int) -> None:
    """The frame that seals what was read is not on its way to the disk together with that."""
    host = _Host(seed)
    log = host.log()
    log.add(_entry(2), 2, 1)
    log.flush()
    fault = DiskFault(("sync",))
    host.machine.disks["/data"].faults.append(fault)
    log.add(_entry(3) + bytes(9_000), 3, 1)
    with pytest.raises(LogFailedError):
        log.flush()
    for _ in range(2):  # the system still has what it could not write
        host.machine.crash()
        with pytest.raises((LogFailedError, OSError)):
            host.log()
    host.machine.power_cut()
    host.machine.heal()
    assert host.log().last_index in (2, 3)


def test_damage_before_a_good_frame_is_refused() -> None:
    host = _Host()
    log = host.log()
    for number in range(2, 6):
        log.add(_entry(number), number, 1)
        log.flush()
    host.machine.crash()
    file = host.directory().open(NAME)
    file.pwrite(b"\xff\xff", 300)
    with pytest.raises(LogCorruptError, match="corrupt at"):
        host.log()


def test_a_last_frame_that_rots_after_a_stop_is_not_taken_for_torn() -> None:
    """What stands in it was confirmed: cut, it would be forgotten."""
    host = _Host()
    log = host.log()
    log.add(_entry(2), 2, 1)
    log.flush()
    position = log.size_bytes - 3
    log.close()
    file = host.directory().open(NAME)
    (byte,) = file.pread(1, position)
    file.pwrite(bytes([byte ^ 0x41]), position)
    with pytest.raises(LogCorruptError, match="corrupt at"):
        host.log()


def test_the_log_of_another_node_is_refused() -> None:
    host = _Host()
    host.log()
    host.machine.crash()
    with pytest.raises(LogCorruptError, match="node 1, this is 2"):
        RaftLog.open(host.directory(), 2)


def test_the_voters_are_those_of_the_newest_entry_even_after_a_cut() -> None:
    log = _Host().log()
    four = VOTERS.with_voter(Voter(node_id=4, host="h", port=1))
    log.add(wire.encode_voters(UUID(int=1), four), 2, 1)
    log.add(wire.encode_voters(UUID(int=2), four.without(1)), 3, 1)
    assert log.voters.node_ids == (2, 3, 4)
    assert log.voters_at(2) == four
    log.deleteEntriesFrom(2)
    assert log.voters == four
    log.deleteEntriesFrom(1)
    assert log.voters == VOTERS


def _store_snapshot(directory: MemoryDirectory, index: int, term: int) -> Snapshot:
    taken = Snapshot(index=index, term=term, voters=VOTERS, image=EMPTY_IMAGE)
    SnapshotFiles(directory).store(index, snapshots.encode(taken))
    return taken


def test_what_follows_a_snapshot_stays_when_the_log_holds_its_last_entry() -> None:
    host = _Host()
    log = host.log()
    for number in range(2, 9):
        log.add(_entry(number), number, 1)
    log.rebase(5, 1, VOTERS)
    assert [index for _, index, _ in log.entries] == [5, 6, 7, 8]
    log.rebase(7, 2, VOTERS)  # another history
    assert [index for _, index, _ in log.entries] == [7]


def test_a_crash_between_snapshot_and_log_loses_no_entry_behind_it() -> None:
    """Hole 1.2.1: pysyncobj dropped the journal when the two did not begin at one entry."""
    host = _Host()
    log = host.log()
    for number in range(2, 9):
        log.add(_entry(number), number, 1)
    log.flush()
    host.machine.crash()
    _store_snapshot(host.directory(), 5, 1)
    host.machine.crash()
    disk = open_disk(host.directory(), 1, VOTERS, SeededRandomness(1).entropy)
    assert disk.taken is not None and disk.taken.index == 5
    assert disk.log.last_index == 8


@pytest.mark.parametrize("is_first", [True, False])
def test_names_that_a_killed_process_left_outlive_a_later_power_cut(is_first: bool) -> None:
    """It died between a rename and the flush of the directory; votes go into the new file."""
    host = _Host()
    if not is_first:
        log = host.log()
        log.add(_entry(2), 2, 1)
        log.flush()
        _store_snapshot(host.directory(), 2, 1)
    host.machine.die_at(1, lambda: None, "sync_directory")
    with pytest.raises(ProcessDied):
        if is_first:
            host.log()
        else:
            log.rebase(2, 1, VOTERS)
    host.machine.crash()
    disk = open_disk(host.directory(), 1, VOTERS, SeededRandomness(1).entropy)
    assert disk.log.base_index == (1 if is_first else 2)
    disk.log.setCurrentTerm(7, 2)
    host.machine.power_cut(keep=0.0)
    again = open_disk(host.directory(), 1, VOTERS, SeededRandomness(1).entropy)
    assert (again.log.term, again.log.vote) == (7, 2)


def test_a_gap_or_a_missing_file_is_refused() -> None:
    host = _Host()
    log = host.log()
    log.add(_entry(2), 2, 1)
    log.rebase(2, 1, VOTERS)
    host.machine.crash()
    with pytest.raises(LogCorruptError, match="missing"):
        open_disk(host.directory(), 1, VOTERS, SeededRandomness(1).entropy)
    other = _Host()
    _store_snapshot(other.directory(), 5, 1)
    with pytest.raises(LogCorruptError, match="missing"):
        open_disk(other.directory(), 1, VOTERS, SeededRandomness(1).entropy)


def test_a_damaged_snapshot_is_refused() -> None:
    host = _Host()
    host.log()
    host.machine.crash()
    directory = host.directory()
    _store_snapshot(directory, 5, 1)
    directory.open(f"raft-{5:020}.snapshot").pwrite(b"?", 20)
    with pytest.raises(LogCorruptError, match="checksum"):
        open_disk(directory, 1, VOTERS, SeededRandomness(1).entropy)


def test_a_full_disk_ends_the_log_with_its_name() -> None:
    host = _Host()
    log = host.log()
    fault = DiskFault(("write",), errno=errno.ENOSPC)
    host.machine.disks["/data"].faults.append(fault)
    log.add(_entry(2), 2, 1)
    with pytest.raises(LogFailedError, match="No space left"):
        log.flush()


def test_a_full_disk_puts_compaction_off() -> None:
    host = _Host()
    log = host.log()
    log.add(_entry(2), 2, 1)
    log.flush()
    fault = DiskFault(("create",), errno=errno.ENOSPC)
    host.machine.disks["/data"].faults.append(fault)
    with pytest.raises(OSError, match="No space left"):
        log.rebase(2, 1, VOTERS)
    assert log.base_index == 1
    log.add(_entry(3), 3, 1)
    log.flush()
    host.machine.crash()
    host.machine.heal()
    assert host.log().last_index == 3


def test_a_snapshot_that_the_disk_does_not_give_ends_the_log_in_one_line() -> None:
    machine = Machine(random.Random(1))
    files = SnapshotFiles(machine.boot().open_directory("/data"))
    files.store(7, b"a snapshot")
    assert files.newest() == b"a snapshot"
    machine.disks["/data"].faults.append(DiskFault(("read",)))
    with pytest.raises(LogFailedError, match=r"cannot be read: .*Input/output error"):
        files.newest()
