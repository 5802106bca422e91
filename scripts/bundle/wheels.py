"""Wheels of a bundle: fetched ones, checked against the lock, and those that are built here."""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from scripts.bundle import lock
from scripts.bundle.targets import CACHE, PYTHONS, REQUIREMENTS, SOURCE_ONLY, TOOLS, choices
from scripts.wheels import copy_tree

PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")
OTHERS_EPOCH_S = 1_767_225_600
"""The time of the files in wheels that are built of other people's sources: 2026-01-01."""

COMPILED = "compiled"
PURE = "pure"
"""How `dlog.batch` is built: with its extension, or with the Python that does the same."""


def _run(command: Sequence[str], epoch_s: int, **environment: str) -> None:
    changed = {"SOURCE_DATE_EPOCH": str(epoch_s), "PYTHONHASHSEED": "0", **environment}
    subprocess.run(command, env={**os.environ, **changed}, check=True)


def _whole(folder: Path) -> bool:
    return (folder / ".whole").exists()


def _locked(folder: Path, names: Iterable[str]) -> Path:
    """Write the lines of the lock for these packages, for pip."""
    lines = lock.read(REQUIREMENTS)
    path = folder / "locked.txt"
    path.write_text("".join(f"{lines[name]}\n" for name in sorted(names)), encoding="utf-8")
    return path


def fetched(machine: str) -> Path:
    """Return a folder with all wheels but dlog's own, and pip's; from the cache if it is there.

    The first time needs the network. Raises CalledProcessError when pip does, for one thing when a
    file has another hash than the lock says.
    """
    content = REQUIREMENTS.read_bytes() + TOOLS.read_bytes() + repr(PYTHONS).encode()
    folder = CACHE / f"{hashlib.sha256(content).hexdigest()[:16]}-{machine}"
    CACHE.mkdir(parents=True, exist_ok=True)
    # Two builds at once would throw away what the other has just fetched.
    with (CACHE / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not _whole(folder):
            _fetch(folder, machine)
    return folder


def _fetch(folder: Path, machine: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    wheels, tools = folder / "wheels", folder / "tools"
    for each in (wheels, tools):
        each.mkdir(parents=True)
    download = [sys.executable, *PIP, "download", "--no-deps", "--require-hashes"]
    names = set(lock.read(REQUIREMENTS))
    _run([*download, "-r", str(TOOLS), "-d", str(tools)], OTHERS_EPOCH_S)
    wanted = str(_locked(folder, names - SOURCE_ONLY))
    for python in PYTHONS:
        _run(
            [*download, "-r", wanted, "-d", str(wheels), *choices(python, machine)], OTHERS_EPOCH_S
        )
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    install = [
        *PIP,
        "install",
        "--no-index",
        "--find-links",
        str(tools),
        "--upgrade",
        "pip",
        "setuptools",
    ]
    _run([_tool_python(folder), *install], OTHERS_EPOCH_S)
    build = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--no-cache-dir"]
    build += ["--require-hashes", "--no-binary=:all:", "-w", str(wheels)]
    _run([_tool_python(folder), *build, "-r", str(_locked(folder, SOURCE_ONLY))], OTHERS_EPOCH_S)
    (folder / ".whole").touch()


def _tool_python(folder: Path) -> str:
    return str(folder / "venv" / "bin" / "python")


def pip_wheel(folder: Path) -> Path:
    """Return the wheel out of which pip runs on a host."""
    (wheel,) = (folder / "tools").glob("pip-*.whl")
    return wheel


def _compiler_of(python: str, folder: Path) -> str | None:
    """Return a Python that can build for `python`; None when there is none here."""
    if python == ".".join(map(str, sys.version_info[:2])):
        return _tool_python(folder)
    found = shutil.which(f"python{python}")
    if found is None:
        return None
    venv = folder / f"venv-{python}"
    command = [found, "-m", "venv", str(venv)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        return None
    install = [
        *PIP,
        "install",
        "--no-index",
        "--find-links",
        str(folder / "tools"),
        "--upgrade",
        "pip",
        "setuptools",
    ]
    made = str(venv / "bin" / "python")
    done = subprocess.run([made, *install], capture_output=True, check=False)
    return made if done.returncode == 0 else None


def own(folder: Path, place: Path, version: str, epoch_s: int) -> dict[str, str]:
    """Build dlog's wheels into `place`; return by Python how its wheel is built.

    Each Python that can be had here gets one with the compiled extension; the others share one
    without.
    """
    tree = place.parent / "tree"
    copy_tree(tree)
    project = tree / "pyproject.toml"
    text = project.read_text(encoding="utf-8")
    line = f'name = "dlog"\nversion = "{version}"\n'
    project.write_text(re.sub(r'name = "dlog"\nversion = ".*"\n', line, text), encoding="utf-8")
    kinds: dict[str, str] = {}
    build = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--no-cache-dir"]
    for python in PYTHONS:
        builder = _compiler_of(python, folder)
        before = set(place.glob("*.whl"))
        if builder is not None:
            _run([builder, *build, "-w", str(place), str(tree)], epoch_s)
            shutil.rmtree(tree / "build", ignore_errors=True)
        kinds[python] = PURE
        for wheel in set(place.glob("*.whl")) - before:
            # The extension is optional: without a compiler a wheel comes out, and holds none.
            if any(name.endswith(".so") for name in zipfile.ZipFile(wheel).namelist()):
                kinds[python] = COMPILED
            else:
                wheel.unlink()
    pure = [_tool_python(folder), *build, "-w", str(place), str(tree)]
    _run(pure, epoch_s, DLOG_BUILD=PURE)
    shutil.rmtree(tree)
    return kinds
