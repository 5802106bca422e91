"""The mounts of this machine, as the kernel lists them."""

import re
from pathlib import Path
from typing import NamedTuple

from tests.hosts.rig.commands import run


class Mount(NamedTuple):
    """One line of /proc/self/mounts."""

    source: str
    point: Path
    kind: str
    options: tuple[str, ...]


def _plain(word: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), word)


def parse(text: str) -> list[Mount]:
    """Return the mounts in the text of /proc/self/mounts, the oldest first."""
    found = []
    for line in text.splitlines():
        source, point, kind, options = line.split(" ")[:4]
        found.append(Mount(_plain(source), Path(_plain(point)), kind, tuple(options.split(","))))
    return found


def mounts() -> list[Mount]:
    """Return what is mounted. Not by mountpoint(1): it fails on a file system after a shutdown."""
    return parse(Path("/proc/self/mounts").read_text(errors="surrogateescape"))


def below(folder: Path) -> list[Path]:
    """Return the mount points in a folder, the newest first."""
    return [each.point for each in reversed(mounts()) if each.point.is_relative_to(folder)]


def unmount(folder: Path) -> None:
    """Unmount everything in a folder; what is busy vanishes when its last user does."""
    for point in below(folder):
        if run(["umount", str(point)], check=False).returncode:
            run(["umount", "--lazy", str(point)], check=False)
