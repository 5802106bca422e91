"""Bundles of this tree: built once under several versions, and copies that are wrong in one way."""

import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dlogctl.release import bundle

ROOT = Path(__file__).resolve().parents[3]
BUILD_S = 300.0
STARTING = "return _run(config, parsed.config, environ)"
"""What `dlogd.__main__` does when every check has passed."""


class Bundles:
    """The bundles of one test session; each version is built when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, version: str) -> Path:
        """Return the bundle of a version."""
        found = self._path(version)
        if not found.exists():
            self.build([version])
        return found

    def _path(self, version: str) -> Path:
        return self._folder / f"dlog-{version}-{platform.machine()}.tar.gz"

    def build(self, versions: list[str]) -> None:
        """Build bundles, at the same time."""
        missing = [each for each in versions if not self._path(each).exists()]
        command = [sys.executable, "-m", "scripts.bundle", "--to", str(self._folder), "--version"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        building = [
            subprocess.Popen([*command, each], cwd=ROOT, env=environment, stdout=subprocess.PIPE)
            for each in missing
        ]
        for process in building:
            process.communicate(timeout=BUILD_S)
        assert not any(each.returncode for each in building), "a bundle could not be built"

    def damaged(self, version: str) -> Path:
        """Return a bundle in which one wheel has one other byte."""

        def flip(folder: Path) -> None:
            wheel = sorted((folder / "wheels").glob("dlog-*.whl"))[0]
            data = bytearray(wheel.read_bytes())
            data[len(data) // 2] ^= 1
            wheel.write_bytes(data)

        return self._altered(version, "damaged", flip, sums=False)

    def with_manifest(self, version: str, name: str, change: Callable[[Any], None]) -> Path:
        """Return a whole bundle whose manifest was changed; `name` tells it from others."""

        def rewrite(folder: Path) -> None:
            path = folder / bundle.MANIFEST
            manifest = json.loads(path.read_text())
            change(manifest)
            path.write_text(json.dumps(manifest))

        return self._altered(version, name, rewrite, sums=True)

    def with_start(self, version: str, name: str, statement: str) -> Path:
        """Return a whole bundle whose daemon passes every check and then does something else."""

        def rewrite(folder: Path) -> None:
            for wheel in (folder / "wheels").glob("dlog-*.whl"):
                _rewrite_start(wheel, statement)

        return self._altered(version, name, rewrite, sums=True)

    def _altered(
        self, version: str, name: str, change: Callable[[Path], None], *, sums: bool
    ) -> Path:
        target = self._folder / f"{name}.tar.gz"
        if target.exists():
            return target
        place = self._folder / name
        with tarfile.open(self.path(version)) as archive:
            archive.extractall(place, filter="tar")
        (top,) = place.iterdir()
        change(top)
        if sums:
            (top / bundle.SUMS).write_text(bundle.sums_of(top))
        with tarfile.open(target, "w:gz", compresslevel=1) as archive:
            archive.add(top, top.name)
        shutil.rmtree(place)
        return target


def _rewrite_start(wheel: Path, statement: str) -> None:
    """Let the daemon in a wheel do something else than start."""
    changed = wheel.with_suffix(".new")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(changed, "w") as new:
        for each in old.infolist():
            data = old.read(each)
            if each.filename == "dlogd/__main__.py":
                assert STARTING in data.decode()
                data = data.decode().replace(STARTING, statement).encode()
            new.writestr(each, data)
    changed.replace(wheel)
