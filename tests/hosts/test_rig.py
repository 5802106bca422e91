"""The rig is what tests of deployments take it for: real hosts that fail as told and leave nothing.

The last tests end the rig and make it again.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.hosts.rig import disks, mounts, ownership
from tests.hosts.rig.commands import RigError, await_that
from tests.hosts.rig.groups import hierarchies
from tests.hosts.rig.host import Host
from tests.hosts.rig.rig import Rig

PATIENCE_S = 60.0
XFS_MB = 320
SLOW_BYTES = 2 << 20
MOUNT_UNIT = """[Mount]
What={disk}
Where=/srv/data
Type=xfs
[Install]
WantedBy=local-fs.target
"""
DYING_MAKER = """
import signal, sys
from pathlib import Path
from tests.hosts.rig.rig import Rig
rig = Rig(Path(sys.argv[1]), 1)
rig.up()
rig.hosts[0].disk(16)
rig.popen(["sleep", "1000"])
print("up", flush=True)
signal.pause()
"""


def by_hand(*words: str) -> str:
    """Return what the rig's command line prints."""
    command = [sys.executable, "-m", "tests.hosts.rig", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout


def greets(rig: Rig, host: Host) -> bool:
    """Whether the sshd of a host says its first line within a second."""
    script = f"exec 3<>/dev/tcp/{host.address}/22; read -t 1 line <&3"
    return rig.run(["bash", "-c", script], check=False, timeout=10).returncode == 0


def lock_of(host: Host) -> Path:
    """Return the file by which systemd-nspawn locks the file system of a host."""
    stat = host.root.stat()
    return Path(f"/run/systemd/nspawn/locks/inode-{stat.st_dev}:{stat.st_ino}")


def leftovers(rig: Rig) -> list[str]:
    """Return what is on the machine of a rig."""
    groups = hierarchies()
    assert groups is not None
    found = [each / name for each in groups.all for name in os.listdir(each) if rig.name in name]
    found += [path for path in Path("/run/netns").iterdir() if rig.name in path.name]
    found += [path for path in Path("/run/systemd/nspawn").glob("**/*") if rig.name in path.name]
    found += [*mounts.below(rig.folder), *disks.devices_below(rig.folder), *rig.folder.iterdir()]
    processes = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    lines = [line for line in processes.stdout.splitlines() if str(rig.folder) in line]
    return [*map(str, found), *lines]


def test_a_host_is_bare(fresh_rig: Rig) -> None:
    for host in fresh_rig.hosts:
        said = host.enter("cat /proc/1/comm /etc/hostname; systemctl is-system-running").stdout
        assert said.split() == ["systemd", host.name, "running"]
    host = fresh_rig.hosts[0]
    for program in ("pip3", "curl", "cc"):
        assert host.enter(f"command -v {program}", check=False).returncode
    assert "No module" in host.enter("python3 -m ensurepip", check=False).stderr


def test_the_administrator_may_do_everything_and_root_may_not_come_in(fresh_rig: Rig) -> None:
    host = fresh_rig.hosts[0]
    assert host.ssh("id -un; sudo id -un").stdout.split() == ["admin", "root"]
    assert host.ssh(["echo", "a  b", "$HOME"]).stdout == "a  b $HOME\n"
    refused = host.ssh("true", user="root", check=False)
    assert refused.returncode == 255
    assert "Permission denied" in refused.stderr


def test_hosts_reach_each_other_and_nothing_else(fresh_rig: Rig) -> None:
    first = fresh_rig.hosts[0]
    first.ssh("ping -c 1 -W 5 h2 && ping -c 1 -W 5 h3")
    assert "default" not in fresh_rig.run(["ip", "route"]).stdout
    assert "default" not in first.enter("ip route").stdout
    lines = fresh_rig.inventory_lines()
    assert [line.split()[0] for line in lines] == ["h1", "h2", "h3"]


def test_a_crash_keeps_what_was_flushed_and_the_host_serves_again(fresh_rig: Rig) -> None:
    host = fresh_rig.hosts[2]
    host.ssh("echo kept > kept && sync kept")
    host.crash()
    assert not host.is_on
    assert not greets(fresh_rig, host)
    host.start()
    assert host.wait_booted() == "running"
    assert host.ssh("cat kept").stdout == "kept\n"
    host.stop()
    assert not host.is_on
    host.start()
    host.wait_booted()
    assert "Reached target shutdown.target" in host.enter("journalctl -b -1 -o cat").stdout


def test_a_host_reboots_by_itself(fresh_rig: Rig) -> None:
    host = fresh_rig.hosts[2]
    boot, init = host.ssh("cat /proc/sys/kernel/random/boot_id").stdout, host.init
    host.ssh("sudo systemctl reboot", check=False)
    assert await_that(lambda: host.init not in (None, init), PATIENCE_S)
    assert host.wait_booted() == "running"
    assert host.ssh("cat /proc/sys/kernel/random/boot_id").stdout != boot


def test_a_host_is_cut_off_and_healed(fresh_rig: Rig) -> None:
    first, second = fresh_rig.hosts[:2]
    second.cut()
    assert first.ssh("ping -c 1 -W 1 h2", check=False).returncode
    assert second.enter("hostname").stdout == "h2\n"
    second.heal()
    first.ssh("ping -c 1 -W 10 h2")


def test_a_frozen_host_is_connected_and_silent(fresh_rig: Rig) -> None:
    host = fresh_rig.hosts[1]
    assert greets(fresh_rig, host)
    host.freeze()
    assert not greets(fresh_rig, host)
    host.thaw()
    assert await_that(lambda: greets(fresh_rig, host), PATIENCE_S)


def test_a_host_without_sshd_goes_on(fresh_rig: Rig) -> None:
    host = fresh_rig.hosts[1]
    host.mask_ssh()
    assert not greets(fresh_rig, host)
    assert host.enter("systemctl is-active dbus").stdout == "active\n"
    host.unmask_ssh()
    assert host.ssh("true").returncode == 0


def test_a_disk_is_empty_then_mounted_at_each_boot(fresh_rig: Rig) -> None:
    host = fresh_rig.hosts[0]
    disk = host.disk(XFS_MB)
    assert host.ssh(f"sudo blkid {disk.path}", check=False).returncode == 2  # no file system
    assert host.enter("findmnt -t xfs", check=False).stdout == ""
    host.enter(f"mkfs.xfs -q {disk.path}")
    unit = MOUNT_UNIT.format(disk=disk.path)
    host.enter(f"echo '{unit}' > /etc/systemd/system/srv-data.mount")
    host.enter("systemctl daemon-reload && systemctl enable --now srv-data.mount")
    host.enter("cd /srv/data && echo kept > kept && sync kept && echo lost > lost")
    host.enter("xfs_io -x -c shutdown /srv/data")  # a power cut, for this file system
    host.crash()
    host.start()
    assert host.wait_booted() == "running"
    assert host.enter("findmnt -no FSTYPE /srv/data; ls /srv/data").stdout.split() == [
        "xfs",
        "kept",
    ]


def test_a_disk_is_slow(fresh_rig: Rig) -> None:
    host = fresh_rig.hosts[1]
    host.enter(f"mkfs.ext4 -q {host.disk(32).path} && mkdir /srv/slow")
    host.enter(f"mount {host.disks[0].path} /srv/slow")
    try:
        host.slow_disk(SLOW_BYTES)
    except RigError as error:
        pytest.skip(str(error))
    write = "sudo dd if=/dev/zero of=/srv/slow/x bs=256k count=8 oflag=direct"
    start = time.monotonic()
    host.ssh(write)
    assert time.monotonic() - start > 0.8
    host.slow_disk(None)
    host.ssh(write)


def test_one_more_host(fresh_rig: Rig) -> None:
    host = fresh_rig.add_host()
    assert host.name == "h4"
    fresh_rig.hosts[0].ssh("ping -c 1 -W 5 h4")
    assert len(fresh_rig.inventory_lines()) == 4


def test_a_second_rig_is_refused_and_learns_whose_the_first_is(
    fresh_rig: Rig, tmp_path: Path
) -> None:
    with pytest.raises(RigError, match=f"pid {os.getpid()} "):
        Rig(tmp_path, wait_s=0.2).up()
    assert fresh_rig.hosts[0].is_on


def test_nothing_is_left_of_a_rig(fresh_rig: Rig) -> None:
    process = fresh_rig.popen(["sleep", "1000"])
    locks = [lock_of(host) for host in fresh_rig.hosts]
    assert leftovers(fresh_rig)
    assert all(path.exists() for path in locks)
    fresh_rig.remove_hosts()
    assert leftovers(fresh_rig) == []
    assert not any(path.exists() for path in locks)
    assert process.wait(PATIENCE_S) == -signal.SIGKILL
    assert ownership.load() is None
    fresh_rig.up()
    assert [host.name for host in fresh_rig.hosts] == ["h1", "h2", "h3"]


def test_what_a_killed_maker_left_is_cleared(fresh_rig: Rig, tmp_path: Path) -> None:
    fresh_rig.down()
    command = [sys.executable, "-c", DYING_MAKER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as maker:
        assert maker.stdout is not None
        said = maker.stdout.readline()
        maker.kill()
    assert said == "up\n"
    dead = Rig.attach()
    assert dead.hosts[0].is_on
    fresh_rig.up()
    assert dead.folder == tmp_path
    assert list(tmp_path.iterdir()) == []
    assert mounts.below(tmp_path) == []
    assert disks.devices_below(tmp_path) == []
    assert fresh_rig.hosts[0].ssh("hostname").stdout == "h1\n"


def test_a_rig_made_by_hand_stays_until_it_is_ended(fresh_rig: Rig, tmp_path: Path) -> None:
    fresh_rig.down()
    assert by_hand("up", "--size", "1", "--folder", str(tmp_path), "--wait", "60").startswith("h1 ")
    try:
        with pytest.raises(RigError, match="left up"):
            Rig(tmp_path, wait_s=0.2).up()
        by_hand("crash", "1")
        assert "h1 10.77.0.11 off" in by_hand("status")
        assert by_hand("start", "1") == "running\n"
        assert by_hand("ssh", "1", "sudo", "hostname") == "h1\n"
    finally:
        by_hand("down")
    assert list(tmp_path.iterdir()) == []
    fresh_rig.up()
