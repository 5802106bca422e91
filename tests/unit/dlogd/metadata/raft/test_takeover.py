"""What a node kept alone becomes the metadata of a quorum of one, wherever the process dies."""

import errno
import random

import pytest

from dlogd.metadata.journal_files import MetadataCorruptError, holds_metadata
from dlogd.metadata.raft.boot import Disk, open_disk
from dlogd.metadata.raft.durable_log import NAME
from dlogd.metadata.raft.takeover import BASE_INDEX, BASE_TERM, PUT_AWAY, TakeoverError
from dlogd.metadata.raft.voters import Voter, Voters
from dlogd.metadata.state.image import ClusterImage
from tests.fakes.disk import Machine
from tests.fakes.faults import DiskFault, ProcessDied
from tests.fakes.metadata_host import JOURNAL_0, PATH, Host, filled, run
from tests.fakes.randomness import SeededRandomness

ALONE = Voters.of([Voter(node_id=1, host="h", port=1)])
THREE = Voters.of(Voter(node_id=n, host="h", port=1) for n in (1, 2, 3))


def alone(journal_bytes_max: int = 1 << 20) -> tuple[Host, ClusterImage]:
    """Return a machine whose node kept five topics alone and was killed, and its last image."""
    host = Host()
    host.journal_bytes_max = journal_bytes_max

    async def life() -> ClusterImage:
        return (await filled(host, 5)).image

    image = run(life)
    host.machine.crash()
    return host, image


def opened(machine: Machine, voters: Voters = ALONE, cluster_id: str = "c") -> Disk:
    directory = machine.boot().open_directory(PATH)
    return open_disk(directory, 1, voters, SeededRandomness(1).entropy, cluster_id=cluster_id)


@pytest.mark.parametrize("journal_bytes_max", [1 << 20, 300])
def test_a_quorum_of_one_has_what_the_node_had(journal_bytes_max: int) -> None:
    host, image = alone(journal_bytes_max)
    disk = opened(host.machine)
    assert disk.taken is not None and disk.taken.image == image
    assert (disk.taken.index, disk.log.base_index) == (BASE_INDEX, BASE_INDEX)
    assert (disk.log.term, disk.log.commit_index) == (BASE_TERM, BASE_INDEX)
    assert disk.log.voters == ALONE
    names = host.names()
    assert PUT_AWAY in names and not [name for name in names if name.startswith("metadata-")]


def test_a_node_that_joins_has_to_be_sent_the_snapshot() -> None:
    """The log of a new node ends at 1, where this one knows nothing any more."""
    host, _ = alone()
    log = opened(host.machine).log
    joining = opened(Machine(random.Random(2)), THREE).log
    assert joining.last_index < log.base_index
    assert log.term_at(joining.last_index) is None


@pytest.mark.parametrize("how", ["kill", "power-nothing", *(f"power-half {n}" for n in range(10))])
def test_no_crash_in_a_takeover_loses_anything(how: str) -> None:
    for point in range(1, 100):
        host, image = alone()
        machine = host.machine
        died: list[None] = []
        machine.die_at(point, lambda died=died: died.append(None))  # type: ignore[misc]
        try:
            opened(machine)
        except ProcessDied:
            pass
        if how == "kill":
            machine.crash()
        else:
            machine.power_cut(keep=0.0 if how == "power-nothing" else 0.5)
        directory = machine.boot().open_directory(PATH)
        assert directory.exists(NAME) or holds_metadata(directory), point
        machine.crash()
        disk = opened(machine)
        assert disk.taken is not None and disk.taken.image == image, point
        assert not holds_metadata(machine.boot().open_directory(PATH)), point
        if not died:
            assert point > 5
            return
    raise AssertionError("the takeover does not end")


def test_what_the_quorum_has_counts_when_the_journal_could_not_be_put_away() -> None:
    host, image = alone()
    machine = host.machine
    fault = DiskFault(("rename",), errno=errno.EIO, path_part="metadata-")
    machine.disks["/data"].faults.append(fault)
    with pytest.raises(OSError, match="Input/output error"):
        opened(machine)
    machine.disks["/data"].faults.remove(fault)
    machine.crash()
    host.replace(b"damaged since", JOURNAL_0)
    machine.crash()
    disk = opened(machine)
    assert disk.taken is not None and disk.taken.image == image


@pytest.mark.parametrize(
    ("voters", "cluster_id", "said"),
    [
        (THREE, "c", "let `controllers` name node 1 and no other, start it, and add the others"),
        (ALONE, "d", "holds the metadata of cluster c, not of d: set cluster.id: c"),
    ],
)
def test_nothing_is_taken_over_by_mistake(voters: Voters, cluster_id: str, said: str) -> None:
    host, image = alone()
    with pytest.raises(TakeoverError, match=said):
        opened(host.machine, voters, cluster_id)
    host.machine.crash()

    async def goes_on() -> ClusterImage:
        return (await host.open()).image

    assert run(goes_on) == image


def test_a_damaged_journal_is_not_taken_over() -> None:
    host, _ = alone()
    data = bytearray(host.data())
    data[len(data) // 2] ^= 0xFF
    host.replace(bytes(data))
    host.machine.crash()
    with pytest.raises(MetadataCorruptError):
        opened(host.machine)
    assert NAME not in host.names()
