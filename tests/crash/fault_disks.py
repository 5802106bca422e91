"""File systems on disks of `fuse_disk`: they lose what was not flushed, sector by sector."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.crash.disks import Mounted, needs, run

UNMOUNT_S = 20.0


@dataclass
class FaultDisk(Mounted):
    """A file system on a disk with a write cache."""

    process: subprocess.Popen[str]

    def tell(self, command: str) -> str:
        """Give the disk a command; return its answer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def lose_power(self, seed: int) -> str:
        """Forget what is not flushed, or a part of it; everything fails until `remount`."""
        return self.tell(f"power-cut {seed}")

    def fail(self, what: str) -> None:
        """Let each write or flush fail with EIO until `remount`."""
        self.tell(f"fail {what}")

    def slow(self, seconds: float) -> None:
        """Let each flush take so long from now on."""
        self.tell(f"slow {seconds}")

    def remount(self) -> None:
        """Give it power again, and mount with the recovery of the file system."""
        deadline_s = time.monotonic() + UNMOUNT_S
        while True:
            try:
                run("umount", str(self.path))
                break
            except subprocess.CalledProcessError:
                # What a killed process had under way ends a moment later.
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.1)
        # The device may remember what the disk has forgotten.
        run("losetup", "-d", self.device)
        self.tell("power-on")
        self.device = _loop_device(self.image)
        run("mount", self.device, str(self.path))


def _loop_device(image: Path) -> str:
    return run("losetup", "--show", "-f", "--direct-io=on", str(image))


@contextmanager
def fault_disk(folder: Path, size_bytes: int) -> Iterator[FaultDisk]:
    """Give a new ext4 on a disk below `folder`; skips the test where there can be none."""
    needs("mkfs.ext4", "losetup", "mount")
    if not Path("/dev/fuse").exists():
        pytest.skip("needs FUSE")
    mount_point, path = folder / "fuse", folder / "mounted"
    mount_point.mkdir()
    path.mkdir()
    arguments = [str(mount_point), str(folder / "sectors"), str(size_bytes)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.crash.fuse_disk", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "mounted\n"
        image = mount_point / "disk"
        disk = FaultDisk("ext4", _loop_device(image), path, image, process)
        try:
            run("mkfs.ext4", "-q", disk.device)
            run("mount", disk.device, str(path))
            try:
                yield disk
            finally:
                disk.tell("power-on")
                if path.is_mount():  # else what could not be mounted again is the error to tell
                    run("umount", "-l", str(path))
        finally:
            run("losetup", "-d", disk.device)
            run("umount", "-l", str(mount_point))
    finally:
        process.kill()
        process.wait()
