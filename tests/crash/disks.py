"""File systems of their own on loop devices, to be filled, cut off, made read-only, taken away.

Needs root, loop devices, mkfs.ext4, mkfs.xfs and xfs_io; what needs them is skipped without.
"""

import gc
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

IMAGE_BYTES = {"ext4": 96 << 20, "xfs": 320 << 20}
_FLUSHES = 15  # field of /sys/block/<device>/stat, man 5 proc_diskstats


def run(*command: str) -> str:
    """Run a command; return what it printed."""
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    try:
        done.check_returncode()
    except subprocess.CalledProcessError as error:
        error.add_note(done.stderr.strip())
        raise
    return done.stdout.strip()


@dataclass
class Mounted:
    """A file system of its own on a loop device."""

    kind: str
    device: str
    path: Path
    image: Path

    def flushes(self) -> int:
        """Return how many cache flushes the device was asked for."""
        with open(f"/sys/block/{Path(self.device).name}/stat") as file:
            return int(file.read().split()[_FLUSHES])

    def power_cut(self) -> None:
        """Let the file system forget what is not on the disk, and mount it again."""
        run("xfs_io", "-x", "-c", "shutdown", str(self.path))
        self.remount()

    def remount(self) -> None:
        """Mount again, with the recovery of the file system."""
        # The tracebacks of what failed may still hold open files.
        gc.collect()
        run("umount", str(self.path))
        run("mount", self.device, str(self.path))

    def become_read_only(self) -> None:
        """Let ext4 find an error in itself, as it does on a failing disk."""
        run("mount", "-o", "remount,errors=remount-ro", str(self.path))
        trigger = Path("/sys/fs/ext4") / Path(self.device).name / "trigger_fs_error"
        trigger.write_text("a test\n")

    def lose_content(self, suffix: str) -> None:
        """Let every read of the device fail with EIO, also of files with this suffix that are in
        the system's memory.
        """
        run("sync", "-f", str(self.path))
        files = [path.open("rb") for path in sorted(self.path.glob(f"topics/*/*{suffix}"))]
        with self.image.open("r+b") as image:
            image.truncate(0)
        for file in files:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.close()

    @contextmanager
    def filled(self, free_bytes: int = 0) -> Iterator[None]:
        """Let somebody else's file take the space, but for `free_bytes`, for a while."""
        filler = self.path / "filler"
        with filler.open("wb") as file:
            space = os.statvfs(self.path)
            # As root: with the blocks that the file system keeps for it.
            size = left = max(0, space.f_bfree * space.f_frsize - free_bytes)
            while min(size, left) >= 4096:
                size = min(size, left)
                try:
                    os.posix_fallocate(file.fileno(), file.tell(), size)
                    file.seek(size, os.SEEK_CUR)
                    left -= size
                except OSError:
                    size //= 2
        try:
            yield
        finally:
            filler.unlink()
            # Or a power cut that follows would bring the file back.
            run("sync", "-f", str(self.path))


def needs(*tools: str) -> None:
    """Skip the test without root or one of these tools."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}")


@contextmanager
def mounted_disk(folder: Path, kind: str, size_bytes: int = 0) -> Iterator[Mounted]:
    """Give a new file system in a file below `folder`; skips the test where there can be none."""
    needs(f"mkfs.{kind}", "losetup", "mount", "xfs_io")
    image = folder / "image"
    with image.open("wb") as file:
        file.truncate(size_bytes or IMAGE_BYTES[kind])
    run(f"mkfs.{kind}", "-q", str(image))
    path = folder / "mounted"
    path.mkdir()
    try:
        device = run("losetup", "--show", "-f", "--direct-io=on", str(image))
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no loop device: {error.stderr}")
    try:
        run("mount", device, str(path))
        try:
            yield Mounted(kind, device, path, image)
        finally:
            # Lazily: a failed test may have left files open.
            run("umount", "-l", str(path))
    finally:
        run("losetup", "-d", device)
