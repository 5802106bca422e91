"""The disks of a node whose data directories come and go, and what happens to them.

Owner: the event loop's thread; part of `tests.fakes.directory_life`.
"""

import errno
import random

from dlogd.storage.directory.log_directory import StorageSettings
from tests.fakes.device import UNBOUNDED, Disk
from tests.fakes.faults import WRITING, DiskFault, read_only
from tests.fakes.manager import SETTINGS, ManagerHost

LIVELY = StorageSettings(reserve=SETTINGS.reserve, high_watermark_interval_ms=400)
ALL = (*WRITING, "sync_directory", "open", "names", "read", "size", "directory", "exists")
FILLING = ("write", "create", "mkdir", "preallocate")
SHORT = ("open", "create", "names", "directory", "mkdir", "sync_directory", "rename", "sync")


class NodeDisks:
    """Two or three disks; one that is configured works in any case."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.host = ManagerHost(3, seed=seed, settings=LIVELY)
        self.machine = self.host.machine
        self.all_mounts = self.host.mounts[: rng.choice((2, 2, 3))]
        self.drawer: list[Disk] = []
        self.harmed: set[str] = set()
        """Disks that were given a reason to be mistrusted in this life."""
        self.faulty: set[str] = set()
        """Those that had anything at all."""
        self.quiet = False
        """Whether nothing has happened since a life began: all must be proven."""
        self.done: list[str] = []

    def settle_disks(self) -> None:
        """All faults end; a disk may be replaced, a directory left out or given back."""
        rng = self.rng
        self.machine.heal()
        self.harmed, self.faulty = set(), set()
        before = self.host.mounts
        if rng.random() < 0.4:
            count = rng.randint(1, len(self.all_mounts))
            self.host.mounts = tuple(sorted(rng.sample(self.all_mounts, count)))
        if rng.random() < 0.15:
            mount = rng.choice(self.all_mounts)
            disk = self.machine.disks[mount]
            disk.root.power_cut(rng, 0.5)  # pulled out
            fitting = [each for each in self.drawer if each.mount == mount]
            new = rng.choice((None, *fitting)) or Disk(mount, self.machine.rng, UNBOUNDED)
            self.drawer = [each for each in self.drawer if each is not new] + [disk]
            self.machine.disks[mount] = new
            self.done.append(f"swap {mount}")
            self.quiet = False
        self.quiet = self.quiet and before == self.host.mounts

    def harm_start(self) -> None:
        if self.rng.random() < 0.25:
            self.harm()

    def harm(self) -> None:
        """Let something happen to a disk; one of them works in any case."""
        rng = self.rng
        mount = rng.choice(self.host.mounts)
        disk = self.machine.disks[mount]
        what = rng.choice(("full", "full", "short", "short", "one full", "error", "gone", "read"))
        faults = {
            "full": lambda: DiskFault(FILLING, errno.ENOSPC, rng.choice((None, 1, 3, 10))),
            "one full": lambda: DiskFault(
                (rng.choice((*FILLING, "rename", "sync")),), errno.ENOSPC, 1
            ),
            "short": lambda: DiskFault((rng.choice(SHORT),), errno.EMFILE, rng.choice((1, 2))),
            "error": lambda: DiskFault((rng.choice(ALL),)),
            "gone": lambda: DiskFault(ALL),
            "read": read_only,
        }
        if what in ("error", "gone", "read"):
            if len(self.host.mounts) == 1 or self.harmed - {mount}:
                return
            self.harmed.add(mount)
        self.faulty.add(mount)
        self.quiet = False
        disk.faults.append(faults[what]())
        self.done.append(f"{what} {mount} {disk.faults[-1].operations[:1]}")

    def make_room(self) -> None:
        """Full disks are full no more."""
        for disk in self.machine.disks.values():
            disk.faults = [each for each in disk.faults if each.errno != errno.ENOSPC]
