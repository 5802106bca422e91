"""Control groups of hosts: joined, killed, frozen, throttled, removed.

On a machine with cgroup v2 alone a host has one group. Where v1 hierarchies are mounted too, it has
one more in each that matters: `name=systemd`, in which systemd-nspawn makes groups of fixed names,
and `blkio`, which throttles disks. All are at the top, so three hosts do not meet. There is none in
the `cpu` hierarchy: a new group there refuses SCHED_FIFO until it is given a share.
"""

import select
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.hosts.rig import mounts
from tests.hosts.rig.commands import LOOK_S, RigError

REMOVE_S = 10.0
FREEZE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchies:
    """Where the machine has its control groups."""

    unified: Path
    systemd: Path | None = None
    blkio: Path | None = None

    @property
    def all(self) -> list[Path]:
        """Every hierarchy in which a host has a group; the unified one first."""
        return [self.unified, *filter(None, (self.systemd, self.blkio))]


def hierarchies(mounted: Iterable[mounts.Mount] | None = None) -> Hierarchies | None:
    """Return the machine's hierarchies; None where cgroup v2 is not mounted."""
    unified = systemd = blkio = None
    for each in mounts.mounts() if mounted is None else mounted:
        if each.kind == "cgroup2" and each.point.is_relative_to("/sys/fs/cgroup"):
            unified = unified or each.point
        elif each.kind == "cgroup" and "name=systemd" in each.options:
            systemd = each.point
        elif each.kind == "cgroup" and "blkio" in each.options:
            blkio = each.point
    return None if unified is None else Hierarchies(unified=unified, systemd=systemd, blkio=blkio)


class Groups:
    """The groups of one name. Life: `make` to `remove`; what joins them can be killed at once."""

    def __init__(self, name: str, found: Hierarchies | None = None) -> None:
        found = found or hierarchies()
        if found is None:
            raise RigError("cgroup v2 is not mounted. Mount it on /sys/fs/cgroup.")
        self._found = found
        self.name = name
        self.unified = found.unified / name

    @property
    def paths(self) -> list[Path]:
        """The group in each hierarchy."""
        return [each / self.name for each in self._found.all]

    def make(self) -> None:
        """Make the groups that are missing."""
        for path in self.paths:
            path.mkdir(exist_ok=True)

    def kill(self) -> None:
        """Kill every process in the group at once; a frozen group, too."""
        with suppress(FileNotFoundError):
            (self.unified / "cgroup.kill").write_text("1")

    def wait_empty(self, timeout_s: float) -> bool:
        """Return whether no process is left in time."""
        return self._wait_event("populated 0", timeout_s)

    def freeze(self) -> None:
        """Stop every process in the group; return when they stand still."""
        (self.unified / "cgroup.freeze").write_text("1")
        if not self._wait_event("frozen 1", FREEZE_S):
            raise RigError(f"{self.name} did not freeze in {FREEZE_S:.0f} s.")

    def thaw(self) -> None:
        """Let them go on."""
        with suppress(FileNotFoundError):
            (self.unified / "cgroup.freeze").write_text("0")

    def _wait_event(self, line: str, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        try:
            with (self.unified / "cgroup.events").open() as file:
                poll = select.poll()
                poll.register(file, select.POLLPRI)
                while line not in file.read().splitlines():
                    left_s = deadline - time.monotonic()
                    if left_s <= 0:
                        return False
                    # Bounded, because not every kernel reports each change.
                    poll.poll(int(min(left_s, 0.5) * 1000) + 1)
                    file.seek(0)
        except FileNotFoundError:
            return True
        return True

    def throttle(self, devices: Sequence[str], bytes_per_s: int | None) -> None:
        """Bound reads and writes of each device (`major:minor`); None: no bound."""
        if self._found.blkio is not None:
            folder = self._found.blkio / self.name
            for device in devices:
                for kind in ("read", "write"):
                    rule = f"{device} {bytes_per_s or 0}"
                    (folder / f"blkio.throttle.{kind}_bps_device").write_text(rule)
            return
        if not (self.unified / "io.max").exists():
            with suppress(OSError):
                (self._found.unified / "cgroup.subtree_control").write_text("+io")
        if not (self.unified / "io.max").exists():
            if bytes_per_s is None:
                return
            raise RigError("The machine has no io controller of cgroups: disks cannot be slowed.")
        bound = bytes_per_s or "max"
        for device in devices:
            (self.unified / "io.max").write_text(f"{device} rbps={bound} wbps={bound}")

    def remove(self) -> None:
        """Kill what is left, and remove the groups with all groups inside."""
        deadline = time.monotonic() + REMOVE_S
        while left := [path for path in self.paths if not _removed(path)]:
            if time.monotonic() > deadline:
                raise RigError(f"Control groups stay busy: {', '.join(map(str, left))}.")
            self.kill()
            time.sleep(LOOK_S)


def _removed(path: Path) -> bool:
    """Remove a group, the innermost first; return whether it is gone."""
    try:
        inner = [each for each in path.iterdir() if each.is_dir()]
        if all([_removed(each) for each in inner]):
            path.rmdir()
            return True
    except FileNotFoundError:
        return True
    except OSError:
        pass
    return False
