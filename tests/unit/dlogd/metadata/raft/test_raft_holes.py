"""Holes of other Raft implementations, each in the small.

The simulation finds most of them too, some only after many seeds: here they are looked for.
"""

import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from uuid import UUID

import pytest

from dlog.errors import DlogError
from dlog.types import NodeId
from dlogd.metadata.commands.codec import CreateTopic, encode
from dlogd.metadata.raft import entries as wire
from dlogd.metadata.raft import pysyncobj_adapter, snapshots
from dlogd.metadata.raft.boot import Disk, open_disk
from dlogd.metadata.raft.consensus import RaftCore
from dlogd.metadata.raft.durable_log import RaftLog
from dlogd.metadata.raft.receiving import SnapshotReceiver
from dlogd.metadata.raft.snapshots import Snapshot
from dlogd.metadata.raft.voters import Voter, Voters
from dlogd.metadata.state.image import Applied
from dlogd.node.storage_setup import metadata_home
from tests.fakes.damaged_logs import flip
from tests.fakes.disk import Machine
from tests.fakes.faults import ProcessDied
from tests.fakes.metadata_host import create, register
from tests.fakes.randomness import SeededRandomness
from tests.simulation.loop import NS, World
from tests.simulation.network import Network
from tests.simulation.raft_checks import Registry
from tests.simulation.raft_cluster import PATH, RaftHost
from tests.simulation.trace import Trace
from tests.simulation.transport import NetworkConfig

MS = 1_000_000
VOTERS = Voters.of(Voter(node_id=n, host="h", port=1) for n in (1, 2, 3))
EMPTY = snapshots.Snapshot(index=5, term=1, voters=VOTERS, image=None)  # type: ignore[arg-type]


def entry(number: int, size: int = 0) -> bytes:
    return bytes([wire.COMMANDS]) + number.to_bytes(4, "big") + b"\x55" * size


def opened(machine: Machine) -> Disk:
    directory = machine.boot().open_directory("/data/meta")
    return open_disk(directory, 1, VOTERS, SeededRandomness(1).entropy)


def filled(machine: Machine, size: int = 0) -> Disk:
    disk = opened(machine)
    for number in range(2, 12):
        disk.log.add(entry(number, size), number, 1)
    disk.log.setCurrentTerm(4, 2)
    return disk


def take_snapshot(disk: Disk, index: int) -> None:
    taken = Snapshot(index=index, term=1, voters=VOTERS, image=IMAGE)
    disk.files.store(index, snapshots.encode(taken))
    disk.log.rebase(index, 1, VOTERS)
    disk.files.remove_old()


IMAGE = snapshots.ClusterImage()


def crash_points(work: Callable[[Disk], None], size: int = 0) -> Iterator[tuple[str, Disk]]:
    """Do `work` again and again, dying at each file operation of it, in three ways."""
    for how, seed in (("kill", 0), ("power-nothing", 0), *(("power-half", n) for n in range(30))):
        for point in range(1, 100):
            machine = Machine(random.Random(f"{seed}/{point}"))
            disk = filled(machine, size)
            died: list[None] = []
            machine.die_at(point, lambda died=died: died.append(None))  # type: ignore[misc]
            try:
                work(disk)
            except ProcessDied:
                pass
            if how == "kill":
                machine.crash()
            else:
                machine.power_cut(keep=0.0 if how == "power-nothing" else 0.5)
            yield f"{how} {seed} at operation {point}", opened(machine)
            if not died:
                break


def test_no_crash_in_a_compaction_loses_an_entry_or_the_vote() -> None:
    """1.2.1, 1.2.2: the journal thrown away, or cleared and written again entry by entry."""
    for where, disk in crash_points(lambda disk: take_snapshot(disk, 5)):
        log = disk.log
        assert (log.term, log.vote) == (4, 2), where
        assert log.last_index == 11, where
        assert log.base_index <= (1 if disk.taken is None else disk.taken.index), where
        held = [index for _, index, _ in log.entries[1:]]
        assert held == list(range(log.base_index + 1, 12)), where


def test_no_crash_in_a_vote_gives_a_second_one() -> None:
    """1.3: an empty or missing file of the vote was term 0."""
    for where, disk in crash_points(lambda disk: disk.log.setCurrentTerm(5, 3)):
        assert (disk.log.term, disk.log.vote) in ((4, 2), (5, 3)), where


def test_no_crash_in_an_append_makes_entries_up() -> None:
    """1.3: a page that was not written, and stale bytes that read as entries."""

    def append(disk: Disk) -> None:
        for number in (12, 13, 14):
            disk.log.add(entry(number, 900), number, 4)
        disk.log.flush()

    for where, disk in crash_points(append, size=300):
        log = disk.log
        assert log.last_index in (11, 14), where
        for data, index, term in log.entries[1:]:
            assert data == entry(index, 900 if term == 4 else 300), where


class FakeCore:
    """A follower's core, as far as the receiver of snapshots needs it."""

    def __init__(self) -> None:
        self.term, self._SyncObj__raftCommitIndex = 3, 4
        self._log = SimpleNamespace(last_index=8)
        self.jumped: list[int] = []
        self.sent: list[object] = []

    @property
    def commit_index(self) -> int:
        return self._SyncObj__raftCommitIndex

    def seat(self, node_id: int) -> object:
        return object()

    def hear_leader(self, peer: object, term: int) -> bool:
        return True

    def follow(self, peer: object, term: int) -> None: ...

    def jump_to(self, index: int) -> None:
        self.jumped.append(index)

    def _send(self, node_id: int, message: object) -> None:
        self.sent.append(message)


class FakeState:
    def install(self, data: bytes) -> Snapshot:
        return Snapshot(index=9, term=3, voters=VOTERS, image=IMAGE)


def test_a_chunk_of_a_snapshot_moves_nothing_before_the_last() -> None:
    """1.5.2: each chunk moved the commit index over what the follower had there."""
    core = FakeCore()
    receiver = SnapshotReceiver(core, FakeState())  # type: ignore[arg-type]
    whole = {"term": 3, "index": 9, "total": 4}
    for position in (0, 2):
        before = core.commit_index, list(core.jumped)
        assert before == (4, [])
        receiver.receive(2, whole | {"position": position, "data": b"ab"})
    assert core.jumped == [9]
    assert core.commit_index == 4  # `jump_to` moves it


class RaftCluster:
    """Three voters in virtual time, without faults but those of the test."""

    def __init__(self, **config: int) -> None:
        self.world = World()
        self.network = Network(self.world, random.Random(1), NetworkConfig())
        self.registry = Registry()
        self._config = config
        self.hosts = [self._host(node_id) for node_id in (1, 2, 3)]
        for host in self.hosts:
            host.boot()
        assert self.run(lambda: self.leader() is not None, 10)

    def _host(self, node_id: int) -> RaftHost:
        return RaftHost(
            node_id,
            (1, 2, 3),
            seed="holes",
            world=self.world,
            network=self.network,
            trace=Trace(lambda: self.world.now_ns),
            registry=self.registry,
            config=self._config,
        )

    def run(self, until: Callable[[], bool], seconds: float) -> bool:
        done = self.world.run(until, limit_ns=self.world.now_ns + int(seconds * NS))
        assert self.registry.violations == []
        return done

    def pass_time(self, seconds: float) -> None:
        self.run(lambda: False, seconds)

    def leader(self) -> RaftHost | None:
        led = [h for h in self.hosts if h.store is not None and h.store.core.is_active_leader]
        return led[0] if led else None

    def add(self, node_id: int) -> RaftHost:
        """Add a node that is no voter; it is not started yet."""
        host = self._host(node_id)
        self.hosts.append(host)
        return host

    def isolate(self, host: RaftHost) -> None:
        for other in self.hosts:
            if other is not host:
                self.network.block(host.address, other.address)
                self.network.block(other.address, host.address)


def test_who_was_cut_off_deposes_no_leader_that_the_others_hear() -> None:
    """1.5.6: without a pre-vote it comes back with a higher term."""
    cluster = RaftCluster()
    leader = cluster.leader()
    assert leader is not None and leader.store is not None
    term = leader.store.term
    cluster.isolate(next(host for host in cluster.hosts if host is not leader))
    cluster.pass_time(10)
    cluster.network.unblock_all()
    cluster.pass_time(5)
    assert cluster.leader() is leader
    assert leader.store.term == term


def test_a_leader_without_a_majority_steps_down() -> None:
    """1.5.6: an isolated leader stayed one for 30 s."""
    cluster = RaftCluster()
    leader = cluster.leader()
    assert leader is not None and leader.store is not None
    store = leader.store
    cluster.isolate(leader)
    assert cluster.run(lambda: not store.core.is_leader, 2.0)


def test_commands_larger_than_a_message_arrive_whole() -> None:
    """1.5.8: entries of 64 KiB and more were split, and read in pieces."""
    cluster = RaftCluster(append_bytes_max=300, log_bytes_max=100_000, chunk_bytes=1_000)
    leader = cluster.leader()
    assert leader is not None and leader.store is not None and leader.loop is not None
    follower = next(host for host in cluster.hosts if host is not leader)
    assert follower.store is not None and follower.loop is not None
    store, loop = follower.store, follower.loop
    outcomes: list[object] = []

    async def propose() -> None:
        create = CreateTopic(
            command_id=UUID(int=2),
            name="large",
            topic_id=UUID(int=3),
            assignments=((NodeId(1),),) * 20_000,
            configs={},
        )
        assert len(encode(create)) > 65_536
        outcomes.append(await store.propose(register(), 10**12))
        outcomes.append(await store.propose(create, 10**12))

    task = loop.create_task(propose())
    assert cluster.run(task.done, 30)
    assert [type(each) for each in outcomes] == [Applied, Applied]

    def whole() -> bool:
        images = [host.store.image for host in cluster.hosts if host.store is not None]
        return [len(i.topics["large"].partitions) for i in images if i.topics] == [20_000] * 3

    assert cluster.run(whole, 10)


def _with_a_rotten_snapshot() -> tuple[RaftCluster, RaftHost]:
    """Return three voters, and the leader, the snapshot of which has rotted on disk since."""
    cluster = RaftCluster(log_bytes_max=2_000, entries_kept=0, chunk_bytes=500)
    leader = cluster.leader()
    assert leader is not None and leader.store is not None and leader.loop is not None
    store, loop = leader.store, leader.loop

    async def propose() -> None:
        await store.propose(register(), 10**12)
        for number in range(50):
            await store.propose(create(number), 10**12)

    assert cluster.run(loop.create_task(propose()).done, 30)
    assert leader.process is not None
    directory = leader.process.open_directory(PATH)
    (name,) = (each for each in directory.names() if each.endswith(".snapshot"))
    flip(directory, name, 100)
    return cluster, leader


def _observe(cluster: RaftCluster) -> RaftHost:
    """Start a node that has nothing."""
    host = cluster.add(4)
    host.boot()
    return host


def test_a_leader_whose_snapshot_has_rotted_sends_another() -> None:
    """It sent what it read, and each node that needed it ended, whenever it started."""
    cluster, leader = _with_a_rotten_snapshot()
    observer = _observe(cluster)

    def caught_up() -> bool:
        stores = [host.store for host in (leader, observer)]
        return len({len(each.image.topics) if each else 0 for each in stores}) == 1

    assert cluster.run(caught_up, 10)
    assert cluster.leader() is leader and leader.store is not None
    assert len(leader.store.image.topics) == 50
    assert [host.incarnation for host in cluster.hosts] == [1] * 4
    assert leader.process is not None
    assert leader.store._disk.files.load() is not None, "the next start can read it"


def test_a_follower_outlives_a_snapshot_that_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its leader may be of an older version, which does not look at what it sends."""
    cluster, _ = _with_a_rotten_snapshot()
    monkeypatch.setattr(snapshots, "is_whole", lambda data: True)
    observer = _observe(cluster)
    cluster.pass_time(5)
    assert observer.incarnation == 1 and observer.store is not None
    assert observer.store.failed is None and observer.store.image.version == 0
    lines = [each for each in caplog.messages if "its snapshot cannot be used" in each]
    assert lines == [lines[0]], "once in a while, however often it comes"
    monkeypatch.undo()
    leader = cluster.leader()
    assert leader is not None and leader.store is not None
    leader.store._replication._newest = (0, b"")  # as after its restart
    store = observer.store
    assert cluster.run(lambda: len(store.image.topics) == 50, 10)


@pytest.mark.parametrize("name", ["_SyncObj__tryLogCompaction", "_SyncObj__loadDumpFile"])
def test_snapshots_of_pysyncobj_are_out_of_reach(name: str) -> None:
    """1.2.3: its snapshots fork a child that holds the sockets and may outlive its parent."""
    assert name in vars(RaftCore)
    assert getattr(RaftCore, name) is not getattr(pysyncobj_adapter.SyncObj, name)
    assert not any(base is RaftLog for base in RaftCore.__mro__)
    with pytest.raises((RuntimeError, AttributeError, TypeError, DlogError)):
        core = object.__new__(RaftCore)
        if getattr(core, name)(*([True] if "load" in name else [])) is None:
            raise RuntimeError("it does nothing")


def test_a_power_cut_at_the_first_start_leaves_the_directory_of_the_vote() -> None:
    """The simulation found it: who had voted knew nothing of it after the cut."""
    machine = Machine(random.Random(1))
    home = metadata_home(machine.boot().open_directory("/data"))
    open_disk(home, 1, VOTERS, SeededRandomness(1).entropy).log.setCurrentTerm(2, 3)
    machine.power_cut(keep=0.0)
    home = metadata_home(machine.boot().open_directory("/data"))
    assert open_disk(home, 1, VOTERS, SeededRandomness(1).entropy).log.vote == 3
