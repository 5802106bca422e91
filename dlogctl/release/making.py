"""A release, made from an unpacked bundle: a virtual environment of this host's own Python.

It is made under a name of its own, and renamed when it is whole and on the disk. Nothing in it
changes afterwards.
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dlogctl.release import bundle
from dlogctl.release.bundle import RefusedError
from dlogctl.release.directory import (
    HALF_MADE,
    ROOT,
    delete_half_made,
    path_of,
    sync_directory,
)

LOCK = ".lock"
OWN_SUMS = "BUNDLE_SHA256SUMS"
"""SHA256SUMS of the bundle, kept in the release: it tells which bundle that was."""
SHARE = ("systemd", "etc", "man", "completions", "ansible")
_COMMIT = re.compile(r"[0-9a-f]{40,64}")
_OWN_WHEEL = re.compile(r"wheels/dlog-[^/]+\.whl")
FREE_BYTES = 200 << 20
"""So much must be free: a release has about 60 MB, and 20 more while it is made."""


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Keep others from making, switching and deleting releases meanwhile."""
    (root / "releases").mkdir(parents=True, exist_ok=True)
    with (root / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RefusedError(
                f"Another process works on the releases in {root}: wait until it has ended."
            ) from error
        yield


def _same_bundle(release: Path, folder: Path) -> bool:
    """Return whether a release was made from this bundle, or from another build of its commit.

    A compiler does not make the same bytes twice, so dlog's own wheels may differ then. A commit
    with changes names no content.
    """
    try:
        made, given = bundle.parse_sums(release / OWN_SUMS), bundle.read_sums(folder)
        commit = bundle.read_manifest(folder).commit
    except RefusedError:
        return False
    others = {name for name in made.keys() | given.keys() if made.get(name) != given.get(name)}
    if made.keys() != given.keys() or not _COMMIT.fullmatch(commit):
        return not others
    return all(_OWN_WHEEL.fullmatch(name) for name in others)


def _python() -> str:
    """Return the interpreter under its full name: `python3` may be another after an upgrade."""
    return os.path.realpath(sys.executable)


def _quiet(command: list[str]) -> None:
    """Run a command of the low priority that its parent has; raise RefusedError when it fails."""
    environment = {
        **{name: text for name, text in os.environ.items() if not name.startswith("PIP_")},
        "PIP_CONFIG_FILE": os.devnull,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONNOUSERSITE": "1",
    }
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip() or "no words").splitlines()
        raise RefusedError(f"{Path(command[0]).name} {command[1]} failed: {lines[-1]}")


def _install(folder: Path, half: Path, version: str) -> None:
    """Make the virtual environment, without ensurepip, which Debian puts into another package."""
    _quiet([_python(), "-m", "venv", "--without-pip", str(half)])
    (pip,) = (folder / "pip").glob("pip-*.whl")
    command = [str(half / "bin" / "python"), str(pip / "pip"), "install", "--no-index"]
    command += ["--find-links", str(folder / "wheels"), "--no-compile", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--quiet", f"dlog=={version}"]
    _quiet(command)


def _rename_within(half: Path, path: Path) -> None:
    """Let the files that name their own directory name the one that it will have."""
    for script in sorted((half / "bin").iterdir()):
        if script.is_symlink():
            continue
        if script.name.lower().startswith("activate"):
            script.unlink()  # nobody works in it
            continue
        script.write_bytes(script.read_bytes().replace(os.fsencode(half), os.fsencode(path)))
    settings = half / "pyvenv.cfg"
    settings.write_text(settings.read_text().replace(str(half), str(path)))
    # The modules know themselves by their future names, in tracebacks.
    compile_all = [str(half / "bin" / "python"), "-m", "compileall", "-q", "-j", "1"]
    _quiet([*compile_all, "-s", str(half), "-p", str(path), str(half / "lib")])


def _set_modes(half: Path) -> None:
    """Everybody may read, root alone may write."""
    for path in [half, *half.rglob("*")]:
        if path.is_symlink():
            continue
        is_program = path.is_dir() or path.stat().st_mode & 0o100
        path.chmod(0o755 if is_program else 0o644)


def _sync(half: Path) -> None:
    """Write it all to the disk, file by file: `sync` would hold up the log's own disks."""
    for path in sorted(half.rglob("*"), reverse=True):
        if path.is_symlink():
            continue
        if path.is_dir():
            sync_directory(path)
        else:
            with path.open("rb") as file:
                os.fsync(file.fileno())
    sync_directory(half)


def make(folder: Path, root: Path = ROOT, feature_level: int | None = None) -> tuple[str, bool]:
    """Make the release of an unpacked bundle; return its version and whether it was made now.

    Raises RefusedError, and leaves nothing behind then.
    """
    manifest = bundle.check(folder, feature_level)
    path = path_of(manifest.version, root)
    if path.is_dir():
        if not _same_bundle(path, folder):
            raise RefusedError(
                f"Release {manifest.version} is there already, of another bundle."
                " Build yours with another VERSION, or from the same commit without changes."
            )
        return manifest.version, False
    root.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(root).free
    if free < FREE_BYTES:
        raise RefusedError(
            f"{root} has {free >> 20} MiB free, a release needs {FREE_BYTES >> 20}:"
            " make room there, for one thing with `dlogctl release clean`."
        )
    with locked(root):
        delete_half_made(root)
        half = path_of(f"{HALF_MADE}{manifest.version}", root)
        try:
            _install(folder, half, manifest.version)
            _rename_within(half, path)
            for part in SHARE:
                if (folder / part).is_dir():
                    shutil.copytree(folder / part, half / "share" / part)
            shutil.copyfile(folder / bundle.MANIFEST, half / bundle.MANIFEST)
            shutil.copyfile(folder / bundle.SUMS, half / OWN_SUMS)
            (half / bundle.SUMS).write_text(bundle.sums_of(half), encoding="utf-8")
            _set_modes(half)
            _sync(half)
            half.rename(path)
            sync_directory(path.parent)
        except OSError as error:
            shutil.rmtree(half, ignore_errors=True)
            raise RefusedError(f"{root}: {error}") from error
        except BaseException:
            shutil.rmtree(half, ignore_errors=True)
            raise
    return manifest.version, True
