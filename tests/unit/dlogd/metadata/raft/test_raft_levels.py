"""Software that is older than the metadata stops, before it has another image than the others."""

import asyncio
import random
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from dlog.types import NodeId
from dlogd.metadata.commands.codec import Proof, RegisterNode
from dlogd.metadata.raft import feature_level, snapshots
from dlogd.metadata.raft.boot import Disk, open_disk
from dlogd.metadata.raft.feature_level import UnknownLevelError
from dlogd.metadata.raft.machine_state import MachineState
from dlogd.metadata.raft.settings import RaftConfig
from dlogd.metadata.raft.snapshots import Snapshot
from dlogd.metadata.raft.store import RaftStore
from dlogd.metadata.raft.voters import Voter, Voters
from dlogd.metadata.state import snapshot
from dlogd.metadata.state.image import EMPTY_IMAGE, ClusterImage
from dlogd.metadata.state.limits import LEVEL_NEWEST
from dlogd.runtime.clock import SystemClock
from dlogd.storage.io.posix import PosixDirectory
from tests.fakes.disk import Machine
from tests.fakes.randomness import SeededRandomness

VOTERS = Voters.of([Voter(node_id=1, host="127.0.0.1", port=1)])
NEWER = (
    f"feature level {LEVEL_NEWEST + 1}, this software knows 1 to {LEVEL_NEWEST}:"
    " install the newer software again"
)


def registration(level_max: int) -> RegisterNode:
    """Return the first registration of a cluster, which sets its level."""
    return RegisterNode(
        command_id=UUID(int=7),
        cluster_id="c",
        node_id=NodeId(7),
        directory_ids=(),
        addresses=(),
        rack=None,
        version="1",
        proof=Proof.NONE,
        level_max=level_max,
    )


def image_of(level: int) -> ClusterImage:
    return replace(EMPTY_IMAGE, version=9, cluster_id="c", feature_level=level)


def opened(machine: Machine) -> Disk:
    return open_disk(machine.boot().open_directory("/data"), 1, VOTERS, SeededRandomness(1).entropy)


def state_of(disk: Disk) -> MachineState:
    return MachineState(
        disk.log, disk.files, disk.taken, settle=lambda *_: None, log_bytes_max=1, entries_kept=0
    )


def taken(level: int) -> bytes:
    return snapshots.encode(Snapshot(index=5, term=1, voters=VOTERS, image=image_of(level)))


def test_a_log_that_reaches_the_level_ends_the_node_at_each_start(tmp_path: Path) -> None:
    config = RaftConfig(
        node_id=1,
        cluster="c",
        secret=b"sixteen bytes, or more",
        controllers=VOTERS,
        host="127.0.0.1",
        port=0,
    )

    async def life(*, proposes: bool) -> tuple[Exception, ClusterImage]:
        failed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        store = await RaftStore.open(
            PosixDirectory(str(tmp_path)),
            config,
            clock=SystemClock(),
            randomness=SeededRandomness(1),
            on_failed=failed.set_result,
        )
        try:
            if proposes:
                deadline_ms = SystemClock().now_ms() + 20_000
                await store.propose(registration(LEVEL_NEWEST + 1), deadline_ms)
            return await asyncio.wait_for(failed, 20), store.image
        finally:
            await store.close()

    for proposes in (True, False):
        error, image = asyncio.run(life(proposes=proposes))
        assert isinstance(error, UnknownLevelError), error
        assert NEWER in str(error)
        assert image is EMPTY_IMAGE, "it shows nothing that it may understand wrongly"


def test_a_start_refuses_a_snapshot_of_the_level() -> None:
    machine = Machine(random.Random(1))
    disk = opened(machine)
    disk.files.store(5, taken(LEVEL_NEWEST))
    disk.close()
    disk = opened(machine)
    assert disk.taken is not None
    disk.files.store(
        6, snapshots.encode(replace(disk.taken, index=6, image=image_of(LEVEL_NEWEST + 1)))
    )
    disk.close()
    with pytest.raises(UnknownLevelError, match=NEWER):
        opened(machine)
    feature_level.expect_known(snapshot.decode(snapshot.encode(image_of(LEVEL_NEWEST))))


def test_a_snapshot_of_the_level_is_not_installed() -> None:
    disk = opened(Machine(random.Random(1)))
    state = state_of(disk)
    with pytest.raises(UnknownLevelError, match=NEWER):
        state.install(taken(LEVEL_NEWEST + 1))
    assert (disk.files.index, disk.log.base_index) == (0, 1), "nothing of it was stored"
    state.install(taken(LEVEL_NEWEST))
    assert state.image.feature_level == LEVEL_NEWEST
