"""Changeover of this host to another release, configuration and unit file, and the way back.

Done while the daemon is stopped, so that a host that loses its power before starts with what it
ran. Whatever is replaced is kept beside it, as FILE.before.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from dlogctl.release import directory
from dlogctl.release.bundle import RefusedError

CONFIG = Path("/etc/dlog/dlog.yaml")
UNIT_FILES = Path("/etc/systemd/system")


@dataclass(frozen=True, slots=True)
class Places:
    """Where things lie on a host."""

    root: Path = directory.ROOT
    config: Path = CONFIG
    unit_files: Path = UNIT_FILES


def instance_of(unit: str) -> str:
    """Return which of several daemons of a host a unit is; empty for one alone."""
    return unit.removesuffix(".service").partition("@")[2]


def config_of(unit: str, config: Path = CONFIG) -> Path:
    """Return the file that the daemon of a unit reads: dlogd@1.service has dlog-1.yaml."""
    instance = instance_of(unit)
    return config.with_stem(f"{config.stem}-{instance}") if instance else config


def replace(path: Path, source: Path) -> bool:
    """Replace a file by another one's bytes, mode and owner, whole; return whether it differed."""
    # Of the source before anything is kept: on the way back that is the same file.
    text, status = source.read_bytes(), source.stat()
    if path.exists():
        if path.read_bytes() == text:
            return False
        kept = path.with_name(f"{path.name}.before")
        shutil.copy2(path, kept)
        # The way back restores the owner, too: the daemon has to read the file.
        os.chown(kept, path.stat().st_uid, path.stat().st_gid)
    new = path.with_name(f".{path.name}.new")
    with new.open("wb") as file:
        file.write(text)
        os.fchmod(file.fileno(), status.st_mode & 0o777)
        os.fchown(file.fileno(), status.st_uid, status.st_gid)
        file.flush()
        os.fsync(file.fileno())
    new.rename(path)
    directory.sync_directory(path.parent)
    return True


def _reload_units() -> None:
    subprocess.run(["systemctl", "daemon-reload"], check=True)


class Changeover:
    """What is changed on this host, once, between a stop and a start. Owner: one restart."""

    def __init__(
        self, unit: str, release: str | None, config: Path | None, places: Places | None = None
    ) -> None:
        self._places = places or Places()
        instance = instance_of(unit)
        file_name = unit.replace(f"@{instance}", "@") if instance else unit
        self._unit_file = self._places.unit_files / file_name
        self._installed = config_of(unit, self._places.config)
        self._release = release
        self._config = config
        self._release_before = directory.linked(directory.CURRENT, self._places.root)
        self._replaced: list[Path] = []
        self._is_switched = False

    def check(self) -> None:
        """Raise RefusedError when a release or a file is not there."""
        if self._release is not None:
            there = directory.versions(self._places.root)
            if self._release not in there:
                raise RefusedError(
                    f"there is no release {self._release} on this host, only:"
                    f" {', '.join(there) or 'none'}; see: dlogctl release list"
                )
        if self._config is not None and not self._config.is_file():
            raise RefusedError(f"{self._config} is not there: name the new configuration")

    @property
    def program(self) -> Path:
        """The daemon that will run, which has to accept the new configuration."""
        version = self._release or self._release_before
        if version is None:
            raise RefusedError(f"{self._places.root / directory.CURRENT} leads to no release")
        return directory.path_of(version, self._places.root) / "bin" / "dlogd"

    @property
    def config(self) -> Path:
        """The configuration that the next start reads."""
        return self._config or self._installed

    def make(self) -> None:
        """Change it. The daemon is stopped."""
        if self._config is not None and replace(self._installed, self._config):
            self._replaced.append(self._installed)
        if self._release is None:
            return
        release = directory.path_of(self._release, self._places.root)
        unit_file = release / "share" / "systemd" / self._unit_file.name
        if unit_file.is_file() and replace(self._unit_file, unit_file):
            self._replaced.append(self._unit_file)
            _reload_units()
        self._is_switched = directory.switch(self._release, self._places.root)

    @property
    def is_made(self) -> bool:
        """Whether `make` changed anything that is to be taken back."""
        return bool(self._replaced) or self._is_switched

    def take_back(self) -> None:
        """Restore what `make` changed."""
        for path in self._replaced:
            replace(path, path.with_name(f"{path.name}.before"))
        if self._unit_file in self._replaced:
            _reload_units()
        if self._is_switched and self._release_before is not None:
            directory.switch(self._release_before, self._places.root)
        self._replaced, self._is_switched = [], False
