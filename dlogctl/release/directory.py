"""The directory of releases: `releases/VERSION`, the links `current` and `previous`."""

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dlogctl.release.bundle import MANIFEST, RefusedError, differences, read_manifest

ROOT = Path("/opt/dlog")
CURRENT = "current"
PREVIOUS = "previous"
HALF_MADE = ".making-"
"""Begins the name of a release that is being made; whoever makes the next one deletes it."""
TRASH = ".deleting-"


@dataclass(frozen=True, slots=True)
class Release:
    """One release of a host."""

    version: str
    commit: str
    is_current: bool
    is_previous: bool
    process_ids: tuple[int, ...]
    """The processes that run out of it."""


def path_of(version: str, root: Path = ROOT) -> Path:
    """Return where a release lies."""
    return root / "releases" / version


def linked(name: str, root: Path = ROOT) -> str | None:
    """Return the version to which a link leads; None when there is no such link."""
    try:
        return Path(os.readlink(root / name)).name
    except OSError:
        return None


def versions(root: Path = ROOT) -> list[str]:
    """Return the versions of the whole releases, the one made last at the end."""
    other = strays(root)
    found = [path for path in _entries(root) if path.name not in other]
    return [path.name for path in sorted(found, key=lambda path: (_made_at(path), path.name))]


def strays(root: Path = ROOT) -> list[str]:
    """Return the names of files and folders among the releases that are none."""
    # A release that is in use and has lost its manifest is a damaged one: the way back needs it.
    kept = (linked(CURRENT, root), linked(PREVIOUS, root))
    found = [path for path in _entries(root) if not (path / MANIFEST).is_file()]
    return sorted(path.name for path in found if path.name not in kept)


def _entries(root: Path) -> list[Path]:
    try:
        return [path for path in (root / "releases").iterdir() if not path.name.startswith(".")]
    except FileNotFoundError:
        return []


def _made_at(path: Path) -> int:
    try:
        return (path / MANIFEST).stat().st_mtime_ns
    except OSError:
        return 0


def processes(root: Path = ROOT, proc: Path = Path("/proc")) -> dict[str, tuple[int, ...]]:
    """Return by version the daemons that run, as far as this user may see them."""
    begin = f"{(root / 'releases').resolve()}/"
    found: dict[str, list[int]] = {}
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            arguments = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended
        names = [os.fsdecode(each) for each in arguments[:2]]
        if names[0].startswith(begin) and names[-1].endswith("/dlogd"):
            version = names[0].removeprefix(begin).partition("/")[0]
            found.setdefault(version, []).append(int(entry.name))
    return {version: tuple(sorted(ids)) for version, ids in found.items()}


def releases(root: Path = ROOT) -> list[Release]:
    """Return all releases; a damaged one has the commit "damaged"."""
    current, previous = linked(CURRENT, root), linked(PREVIOUS, root)
    running = processes(root)
    found = []
    for version in versions(root):
        try:
            commit = read_manifest(path_of(version, root)).commit
        except RefusedError:
            commit = "damaged"
        release = Release(
            version, commit, version == current, version == previous, running.get(version, ())
        )
        found.append(release)
    return found


def _existing(version: str, root: Path) -> Path:
    there = versions(root)
    if version not in there:
        raise RefusedError(
            f"There is no release {version!r} in {root}; there are: {', '.join(there) or 'none'}."
        )
    return path_of(version, root)


def verify(version: str, root: Path = ROOT) -> list[str]:
    """Compare a release with its SHA256SUMS; return a sentence about each file that differs."""
    return differences(_existing(version, root))


def sync_directory(path: Path) -> None:
    """Make the names in a directory survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _link(root: Path, name: str, version: str) -> None:
    new = root / f".{name}.new"
    new.unlink(missing_ok=True)
    new.symlink_to(Path("releases") / version)
    new.rename(root / name)


def switch(version: str, root: Path = ROOT) -> bool:
    """Let `current` lead to a release, and `previous` to the one before; return whether it changed.

    A daemon that runs stays what it was until its next start: its first line names its release.
    """
    _existing(version, root)
    before = linked(CURRENT, root)
    if before == version:
        return False
    if before is not None:
        _link(root, PREVIOUS, before)
    _link(root, CURRENT, version)
    sync_directory(root)
    return True


def old(keep: int, root: Path = ROOT) -> list[str]:
    """Return all releases but the `keep` newest, and those that have to stay.

    Those are the current one, the one before it, and each out of which a daemon runs.
    """
    kept = {linked(CURRENT, root), linked(PREVIOUS, root), *processes(root)}
    every = versions(root)
    kept |= set(every[len(every) - keep :] if keep else [])
    return [version for version in every if version not in kept]


def delete(gone: Iterable[str], root: Path) -> None:
    """Delete releases; a name vanishes at once, and before the files."""
    for version in gone:
        trash = path_of(f"{TRASH}{version}", root)
        path_of(version, root).rename(trash)
    delete_half_made(root)


def delete_half_made(root: Path) -> None:
    """Delete what an interrupted run has left."""
    place = root / "releases"
    for path in [*place.glob(f"{HALF_MADE}*"), *place.glob(f"{TRASH}*")]:
        shutil.rmtree(path)
