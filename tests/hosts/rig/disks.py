"""Extra disks of hosts: loop devices on files, with a device node and a link inside the host.

A disk comes without a file system and is not mounted. A mount unit in the host can mount it; lines
of /etc/fstab cannot, because systemd skips devices there when /sys is read-only.
"""

import os
from pathlib import Path
from typing import NamedTuple

from tests.hosts.rig.commands import RigError, await_that, run

LOOPS = Path("/sys/block")
DETACH_S = 10.0


class Disk(NamedTuple):
    """A disk of a host."""

    link: str
    """The name in /dev/disk/by-id that stays for the life of the host."""
    device: str
    """The node, the same inside the host and outside."""
    image: Path

    @property
    def path(self) -> str:
        """What a play names."""
        return f"/dev/disk/by-id/{self.link}"

    @property
    def number(self) -> str:
        """`major:minor`."""
        return (LOOPS / Path(self.device).name / "dev").read_text().strip()

    def tmpfiles(self) -> str:
        """Return the lines of tmpfiles.d that make node and link at each boot of the host."""
        return (
            f"b+ {self.device} 0660 root disk - {self.number}\n"
            f"d /dev/disk 0755\nd /dev/disk/by-id 0755\n"
            f"L+ {self.path} - - - - ../../{Path(self.device).name}\n"
        )


def attach(image: Path, link: str, megabytes: int) -> Disk:
    """Make a file of this size, all blocks allocated, and a loop device on it."""
    with image.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, megabytes << 20)
    command = ["losetup", "--find", "--show"]
    done = run([*command, "--direct-io=on", str(image)], check=False)
    if done.returncode:  # not on every file system
        done = run([*command, str(image)])
    return Disk(link, done.stdout.strip(), image)


def devices_below(folder: Path) -> list[Path]:
    """Return the loop devices, below /sys/block, on files in a folder."""
    found = []
    for path in sorted(LOOPS.glob("loop*/loop/backing_file")):
        try:
            name = path.read_text().strip().removesuffix(" (deleted)")
        except OSError:
            continue
        if Path(name).is_relative_to(folder):
            found.append(path.parents[1])
    return found


def is_mounted(device: str) -> bool:
    """Whether a file system lives on a device, in whatever namespace it is mounted."""
    name = Path(device).name
    return any(Path(f"/sys/fs/{kind}/{name}").exists() for kind in ("ext4", "xfs"))


def wait_unmounted(device: str) -> None:
    """Wait until the mount namespace of a host that ended has let a file system go."""
    if not await_that(lambda: not is_mounted(device), DETACH_S):
        raise RigError(f"{device} is still mounted. Look for its user with: fuser -vm {device}")


def detach_below(folder: Path) -> None:
    """Detach every loop device on files in a folder."""
    for device in devices_below(folder):
        wait_unmounted(device.name)
        run(["losetup", "--detach", f"/dev/{device.name}"], check=False)
    if not await_that(lambda: not devices_below(folder), DETACH_S):
        raise RigError(f"Loop devices stay in use: {devices_below(folder)}.")
