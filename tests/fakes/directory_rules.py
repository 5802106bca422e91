"""What must hold when a node starts on its data directories: `tests.fakes.directory_life`.

The model of each replica: what the cluster has, and what the newest copy on this node promised.
"""

from typing import Protocol

from dlogd.metadata.state.image import NodeRegistration
from dlogd.node.replica_proof import ReplicaProof
from dlogd.storage.log.partition_log import PartitionLog
from dlogd.storage.log_manager import LogManager
from tests.fakes.device import Disk
from tests.fakes.disk import Machine
from tests.fakes.manager import TOPIC_ID, ManagerHost, key

Values = list[tuple[int, bytes]]


class Copy:
    """The newest copy of a replica: where it is, what must be there, what may."""

    def __init__(self, plog: PartitionLog | None, disk: Disk | None) -> None:
        self.plog = plog
        self.disk = disk
        self.must: dict[int, bytes] = {}
        self.may: dict[int, bytes] = {}
        self.start = 0
        """It begins nowhere behind this."""
        self.end = 0
        """It ends nowhere before this."""
        self.cutting = False
        self.is_leaving = False
        """Whether its deletion was begun."""

    def promised(self, offset: int) -> None:
        """All below `offset` was promised."""
        if not self.cutting:
            self.must |= {at: value for at, value in self.may.items() if at < offset}
            self.end = max(self.end, offset)

    def cut(self, offset: int) -> None:
        """What is at `offset` and behind may go."""
        self.must = {at: value for at, value in self.must.items() if at < offset}
        self.end = min(self.end, offset)
        self.cutting = True

    def was_cut(self, offset: int) -> None:
        """It is gone."""
        self.may = {at: value for at, value in self.may.items() if at < offset}
        self.cutting = False

    def begin_anew(self, offset: int) -> None:
        """All may go, and it may begin at `offset`."""
        self.must = {}
        self.start = max(self.start, offset)
        self.end = min(self.end, offset)
        self.cutting = True

    def began_anew(self, offset: int) -> None:
        """All is gone."""
        self.may = {}
        self.end = offset
        self.cutting = False


class Replica:
    """One replica of this node, and what the cluster has of its partition."""

    def __init__(self) -> None:
        self.truth: dict[int, bytes] = {}
        self.start = 0
        self.placed = True
        self.counted = True
        """Whether it is in sync: what is promised is promised with it."""
        self.copy: Copy | None = None
        self.found: Values | None = None
        """What this start has found."""

    @property
    def end(self) -> int:
        """Where the partition ends."""
        return max((*self.truth, self.start - 1)) + 1

    def trim(self, offset: int) -> None:
        """Records below `offset` were deleted."""
        self.start = max(self.start, offset)
        self.truth = {at: value for at, value in self.truth.items() if at >= self.start}

    def use(self, plog: PartitionLog | None, disk: Disk | None, values: Values | None) -> None:
        """A life has begun with this log."""
        if plog is None:
            return
        before = self.copy
        if before is None or before.disk is not disk:
            self.copy = before = Copy(plog, disk)
            before.start, before.end = plog.log_start_offset, plog.log_end_offset
            before.may = dict(values or ())
        before.plog = plog
        before.is_leaving = False
        if values is not None:
            before.must, before.may = dict(values), dict(values)
            before.start, before.end = plog.log_start_offset, plog.log_end_offset
            before.cutting = False
            if self.counted:
                self.start = max(self.start, plog.log_start_offset)
                self.truth = {at: value for at, value in values if at >= self.start}


class Node(Protocol):
    """Whose starts are judged: `tests.fakes.directory_life.DirectoryLife`."""

    alone: bool
    quiet: bool
    proven: int
    harmed: set[str]
    faulty: set[str]
    known: NodeRegistration | None
    host: ManagerHost
    machine: Machine
    manager: LogManager
    replicas: dict[int, Replica]

    def disk_of(self, number: int) -> Disk | None:
        """Return the disk with a partition's log, as far as the node knows."""


def check_homes(life: Node) -> None:
    """A directory goes out of service for its disk, a log for its own damage: there is none."""
    manager = life.manager
    for home in manager.homes:
        mount = home.path.removesuffix("/dlog")
        known = () if life.known is None else life.known.directory_ids
        is_new = home.directory_id not in known  # a full disk cannot become a data directory
        is_excused = mount in life.harmed or (is_new and mount in life.faulty)
        assert home.failure is None or is_excused, f"out of service: {home.failure}"
    assert life.harmed or life.faulty or not manager.failures, manager.failures


def check_open(life: Node, number: int, values: Values | None) -> None:
    """The newest copy is served whole wherever its disk works; nothing else in its place."""
    replica, plog = life.replicas[number], life.manager.logs.get(key(number))
    copy, disk = replica.copy, life.disk_of(number)
    replica.found = values
    if plog is not None and values is not None and life.alone:
        _check_whole(replica, plog, values)
    if copy is None:
        ends = 0 if plog is None else plog.log_end_offset
        assert not replica.counted or not ends, f"{number} was never made"
        return
    if copy.is_leaving:
        return
    works = copy.disk is not None and _works(life, copy.disk)
    if plog is None:
        assert not works or not copy.end, f"{number} is nowhere"
    elif disk is not copy.disk:
        assert not works or not copy.end, f"{number}: another copy than the newest"
    elif values is not None:
        there = dict(values)
        start = plog.log_start_offset
        assert [at for at, _ in values] == list(range(start, start + len(values)))
        assert start <= copy.start, f"{number} begins at {start}, not {copy.start}"
        assert plog.log_end_offset >= copy.end, f"{number} ends too soon"
        assert all(copy.may.get(at) == there[at] for at in there), f"{number}: never appended"
        lost = [at for at in copy.must if at >= start and at not in there]
        assert not lost, f"{number}: promised and lost: {lost}"


def _works(life: Node, disk: Disk) -> bool:
    configured = [life.machine.disks[mount] for mount in life.host.mounts]
    return disk in configured and disk.mount not in life.harmed | life.faulty


def _check_whole(replica: Replica, plog: PartitionLog, values: Values) -> None:
    there = dict(values)
    assert plog.log_end_offset >= replica.end, "the offsets are given out again"
    lost = [at for at in replica.truth if at >= replica.start and at not in there]
    assert not lost, f"counted, and not there: {lost}"
    assert all(there[at] == replica.truth[at] for at in replica.truth if at in there)


def check_proof(life: Node, proof: ReplicaProof, *, is_proved: bool) -> None:
    """A replica that counts on after the start has everything; no data are said to be gone."""
    gone = [number for _, number in proof.missing if life.replicas[number].counted]
    assert not gone, f"said to be gone: {gone}"
    for number, replica in life.replicas.items():
        if not replica.placed:
            continue
        named = (TOPIC_ID, number)
        is_proven = is_proved and named not in (*proof.unproven, *proof.offline)
        plog = life.manager.logs.get(key(number))
        if not is_proven:
            is_here = life.quiet and replica.counted and plog is not None
            assert not is_here, f"{number} is not proven for nothing"
            replica.counted = False
        elif replica.counted and plog is None:
            assert not replica.end, f"{number} counts and is nowhere"
            life.proven += 1
        elif replica.counted and plog is not None and replica.found is not None:
            _check_whole(replica, plog, replica.found)
            life.proven += 1


def forget_strays(life: Node) -> None:
    """What is not placed here was set aside, where the directory works."""
    working = [home for home in life.manager.homes if home.failure is None]
    disks = [life.machine.disk_of(home.path) for home in working]
    for replica in life.replicas.values():
        if replica.copy is not None and not replica.placed:
            replica.copy.is_leaving = True
            if replica.copy.disk in disks:
                replica.copy = None


def note_promises(life: Node) -> None:
    """A life ends: what its logs have promised counts."""
    for number, replica in life.replicas.items():
        plog, copy = life.manager.logs.get(key(number)), replica.copy
        if copy is not None and copy.plog is not None:
            if plog is copy.plog:
                copy.promised(plog.promised_offset)
            copy.plog = None
