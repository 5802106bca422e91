"""An unpacked bundle: what its manifest says, and why a host cannot take it."""

import hashlib
import json
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORMAT = 1
MANIFEST = "MANIFEST.json"
SUMS = "SHA256SUMS"


class RefusedError(Exception):
    """Nothing was changed, for the reason that it says in one sentence."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a bundle or a release says about itself."""

    version: str
    commit: str
    machine: str
    pythons: dict[str, str]
    """By the Python's version whether the extension is "compiled" or the wheel "pure"."""
    level_oldest: int
    level_newest: int
    predecessor_newest_level: int


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a bundle or a release; raise RefusedError when it is none."""
    path = folder / MANIFEST
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] != FORMAT:
            raise RefusedError(
                f"{path}: format {found['format']} is not known here, only {FORMAT}:"
                " use the installer that came with it"
            )
        levels = found["feature_levels"]
        return Manifest(
            version=str(found["version"]),
            commit=str(found["commit"]),
            machine=str(found["machine"]),
            pythons={str(python): str(kind) for python, kind in found["pythons"].items()},
            level_oldest=int(levels["oldest"]),
            level_newest=int(levels["newest"]),
            predecessor_newest_level=int(found["predecessor_newest_level"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RefusedError(f"{path} is missing or damaged ({error!r}): copy it again") from error


def read_sums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file by its relative name, as SHA256SUMS says."""
    return parse_sums(folder / SUMS)


def parse_sums(path: Path) -> dict[str, str]:
    """Return the SHA-256 of each file by its relative name, as a file like SHA256SUMS says."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise RefusedError(f"{path} is missing or damaged ({error}): copy it again") from error
    found = {}
    for line in lines:
        digest, _, name = line.partition("  ")
        if len(digest) != 64 or not name:
            raise RefusedError(f"{path} is damaged: copy it again")
        found[name] = digest
    return found


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _files(folder: Path) -> dict[str, Path]:
    """Return the files of a folder by their relative names, but for SHA256SUMS itself."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
    named = {path.relative_to(folder).as_posix(): path for path in files}
    named.pop(SUMS, None)
    return named


def sums_of(folder: Path) -> str:
    """Return the lines of SHA256SUMS, as `sha256sum` writes and checks them."""
    return "".join(f"{sha256_of(path)}  {name}\n" for name, path in _files(folder).items())


def differences(folder: Path) -> list[str]:
    """Compare a folder with its SHA256SUMS; return a sentence about each file that differs."""
    sums = read_sums(folder)
    found = _files(folder).keys()
    wrong = [f"{name} is missing" for name in sorted(sums.keys() - found)]
    wrong += [f"{name} is not listed" for name in sorted(found - sums.keys())]
    for name in sorted(sums.keys() & found):
        if sha256_of(folder / name) != sums[name]:
            wrong.append(f"{name} has other bytes")
    return wrong


def this_python() -> str:
    """Return the version of the Python that runs, as a manifest names it."""
    return f"{sys.version_info[0]}.{sys.version_info[1]}"


def check(
    folder: Path,
    feature_level: int | None = None,
    *,
    python: str | None = None,
    machine: str | None = None,
) -> Manifest:
    """Return the manifest of a bundle that this host can take.

    `feature_level` is the cluster's. Raises RefusedError with the reason and the cure.
    """
    wrong = differences(folder)
    if wrong:
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise RefusedError(f"The bundle is damaged: {wrong[0]}{more}. Copy it again.")
    manifest = read_manifest(folder)
    here = machine or platform.machine()
    if manifest.machine != here:
        raise RefusedError(
            f"The bundle is for {manifest.machine}, this host is {here}."
            f" Take the bundle for {here}."
        )
    runs = python or this_python()
    if runs not in manifest.pythons:
        raise RefusedError(
            f"The bundle has nothing for Python {runs}, only for"
            f" {', '.join(sorted(manifest.pythons))}. Take a host with one of these."
        )
    check_level(manifest, feature_level)
    return manifest


def check_predecessor(manifest: Manifest, present: Manifest) -> None:
    """Raise RefusedError when releases between the present one and this one would be skipped."""
    if present.level_newest < manifest.predecessor_newest_level:
        raise RefusedError(
            f"Release {manifest.version} follows one that knows feature level"
            f" {manifest.predecessor_newest_level}, and {present.version}, which runs here, knows"
            f" {present.level_newest}. Upgrade to a release between them first."
        )


def check_level(manifest: Manifest, feature_level: int | None) -> None:
    """Raise RefusedError when the release cannot work in a cluster of this feature level."""
    if feature_level is None:
        return
    if feature_level > manifest.level_newest:
        raise RefusedError(
            f"The cluster is at feature level {feature_level}, release {manifest.version} knows"
            f" levels {manifest.level_oldest} to {manifest.level_newest}. A level is never lowered:"
            " take a newer bundle."
        )
    if feature_level < manifest.level_oldest:
        raise RefusedError(
            f"The cluster is at feature level {feature_level}, release {manifest.version} begins at"
            f" {manifest.level_oldest}. Upgrade to a release between them first, and raise the"
            " level there."
        )
