"""The groups of a host on machines of each kind: cgroup v2 alone, and v1 next to it."""

from pathlib import Path

import pytest

from tests.hosts.rig import mounts
from tests.hosts.rig.commands import RigError
from tests.hosts.rig.groups import Groups, Hierarchies, hierarchies

PURE = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n"
HYBRID = """tmpfs /sys/fs/cgroup tmpfs rw 0 0
cgroup /sys/fs/cgroup/blkio cgroup rw,blkio 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/systemd cgroup rw,name=systemd 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0
"""
TOP = Path("/sys/fs/cgroup")


def test_the_hierarchies_of_each_kind_of_machine() -> None:
    assert hierarchies(mounts.parse(PURE)) == Hierarchies(unified=TOP)
    found = hierarchies(mounts.parse(HYBRID))
    assert found is not None
    assert found.all == [TOP / "unified", TOP / "systemd", TOP / "blkio"]
    assert hierarchies(mounts.parse("tmpfs /sys/fs/cgroup tmpfs rw 0 0\n")) is None


def test_spaces_in_mount_points() -> None:
    assert mounts.parse("a /b\\040c ext4 rw 0 0\n")[0].point == Path("/b c")


def test_disks_are_slowed_by_what_the_machine_has(tmp_path: Path) -> None:
    (tmp_path / "h1").mkdir()
    pure = Groups("h1", Hierarchies(unified=tmp_path))
    with pytest.raises(RigError, match="no io controller"):
        pure.throttle(["7:0"], 1000)
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+io"
    (tmp_path / "h1" / "io.max").touch()
    pure.throttle(["7:0"], 1000)
    assert (tmp_path / "h1" / "io.max").read_text() == "7:0 rbps=1000 wbps=1000"
    pure.throttle(["7:0"], None)
    assert (tmp_path / "h1" / "io.max").read_text() == "7:0 rbps=max wbps=max"

    (tmp_path / "blkio" / "h1").mkdir(parents=True)
    both = Groups("h1", Hierarchies(unified=tmp_path, blkio=tmp_path / "blkio"))
    both.throttle(["7:0"], 1000)
    written = tmp_path / "blkio" / "h1" / "blkio.throttle.write_bps_device"
    assert written.read_text() == "7:0 1000"
