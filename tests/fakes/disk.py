"""A disk in memory: implements `dlogd.storage.io.files` with every fault that a disk can have.

    machine = Machine(random.Random(7))
    process = machine.boot(loop)
    directory, engine = process.open_directory("/data"), process.engine
    ...
    machine.power_cut()            # or crash(): kill -9
    process = machine.boot(loop)   # the next incarnation sees what survived

Every write is volatile until a flush, every entry until its directory's flush. After `crash` and
`power_cut` the files, directories and engine of the old process are inert: their operations raise
`ProcessDied` and nothing of theirs completes any more.
"""

import asyncio
import errno
import os
import random
from collections.abc import Callable

from dlogd.runtime.clock import SystemClock
from tests.fakes.device import UNBOUNDED, Disk
from tests.fakes.engine import MemoryEngine
from tests.fakes.faults import DiskFault, ProcessDied
from tests.fakes.files import MemoryDirectory, MemoryFile
from tests.fakes.tree import DirectoryNode
from tests.fakes.worker import Worker
from tests.simulation.loop import EPOCH_MS, SimClock, SimLoop

Trace = Callable[[str, str, int, int], None]


def _no_time() -> int:
    return EPOCH_MS


class Process:
    """One incarnation of a program on a machine; dead for ever after `kill`.

    `misuses` lists what the program did against the rules of `engine` and `files`.
    """

    def __init__(self, machine: "Machine", loop: asyncio.AbstractEventLoop | None) -> None:
        self.machine = machine
        self.alive = True
        self.misuses: list[str] = []
        self.open_files: dict[object, None] = {}
        self.rng = machine.rng
        self.locks = machine.locks
        # The blocking work whose turn it is; it may be made to pause at any operation.
        self.worker: Worker | None = None
        # Without a loop, no time passes: a process that prepares a machine writes at one instant.
        self.timestamp_ms = _no_time if loop is None else SystemClock().timestamp_ms
        if isinstance(loop, SimLoop):
            self.timestamp_ms = SimClock(loop).timestamp_ms
        self._engine: MemoryEngine | None = None
        if loop is not None:
            self._engine = MemoryEngine(self, loop, machine.disks, self._give_turn)

    @property
    def engine(self) -> MemoryEngine:
        """The engine on the loop that the process was booted with."""
        if self._engine is None:
            raise RuntimeError("Booted without a loop: there is no engine")
        return self._engine

    def _give_turn(self, worker: Worker | None) -> None:
        self.worker = worker

    def open_directory(self, path: str) -> MemoryDirectory:
        """Return the directory at an absolute path, made durably when missing."""
        disk = self.machine.disk_of(path)
        node = disk.root
        for name in [part for part in path[len(disk.mount) :].split("/") if part]:
            child = node.entries.get(name)
            if child is None:
                child = DirectoryNode()
                node.entries[name] = node.durable_entries[name] = child
            if not isinstance(child, DirectoryNode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            node = child
        return MemoryDirectory(self, disk, node, path.rstrip("/") or "/")

    def step(
        self, disk: Disk, operation: str, path: str, position: int = 0, length: int = 0
    ) -> None:
        """Count, trace and perhaps refuse an operation, or die at it."""
        if not self.alive:
            raise ProcessDied(f"{operation} {path}")
        if self.worker is not None:
            self._maybe_pause(self.worker, disk)
        machine = self.machine
        machine.operation_count += 1
        if machine.trace is not None:
            machine.trace(operation, path, position, length)
        if machine.is_deadly(operation, path):
            self.alive = False
            raise ProcessDied(f"{operation} {path}")
        machine.maybe_break(disk, operation, path)
        disk.strike(operation, path)

    def _maybe_pause(self, worker: Worker, disk: Disk) -> None:
        rng = self.machine.rng
        while disk.stuck or rng.random() < self.engine.pause_share:
            stuck = disk.stuck
            worker.pause(disk, disk.latency.draw(rng))
            if not stuck:
                return

    def misuse(self, text: str) -> None:
        """Record and raise a breach of the protocols."""
        self.misuses.append(text)
        raise AssertionError(text)

    def kill(self) -> None:
        """End the process: the system closes what it held."""
        self.alive = False
        if self._engine is not None:
            self._engine.kill()
        for file in self.open_files:
            assert isinstance(file, MemoryFile)
            file.abandon()
        self.open_files.clear()
        locks = self.locks
        for key in [key for key, holder in locks.items() if holder is self]:
            del locks[key]


class Machine:
    """A host's disks, which outlive its processes. All processes end together.

    `operation_count` counts file operations; with `die_at(n, callback)` the process dies at the
    n-th from now (of a kind, on some files), in the middle of whatever it does; with `fail_at` a
    disk begins to refuse there.
    """

    def __init__(
        self,
        rng: random.Random,
        mounts: tuple[str, ...] = ("/data",),
        *,
        capacity_bytes: int = UNBOUNDED,
        trace: Trace | None = None,
    ) -> None:
        self.rng = rng
        self.disks = {mount: Disk(mount, rng, capacity_bytes) for mount in mounts}
        self.trace = trace
        self.operation_count = 0
        self._death_in = 0
        self._deadly = ("", "")
        self._on_death: Callable[[], None] | None = None
        self._fault_in = 0
        self._coming: tuple[DiskFault, Callable[[], None]] | None = None
        self.processes: list[Process] = []
        self.locks: dict[tuple[int, str], object] = {}

    def disk_of(self, path: str) -> Disk:
        """Return the disk that holds `path`: the longest mount that begins it."""
        best = max(
            (mount for mount in self.disks if (path + "/").startswith(mount.rstrip("/") + "/")),
            key=len,
            default=None,
        )
        if best is None:
            raise FileNotFoundError(errno.ENOENT, "No such mount", path)
        return self.disks[best]

    def boot(self, loop: asyncio.AbstractEventLoop | None = None) -> Process:
        """Start a process, on `loop` when it needs an engine."""
        process = Process(self, loop)
        self.processes.append(process)
        return process

    def die_at(
        self,
        operation_count: int,
        on_death: Callable[[], None],
        operation: str = "",
        path_part: str = "",
    ) -> None:
        """End the process at the n-th operation from now, of one kind when that is given.

        `on_death` may only take note, since it is called in the middle of anything; whoever takes
        note then calls `crash` or `power_cut`.
        """
        self._death_in = operation_count
        self._deadly = (operation, path_part)
        self._on_death = on_death

    def fail_at(self, operation_count: int, fault: DiskFault, on_fault: Callable[[], None]) -> None:
        """Let a disk have `fault` from the n-th from now of the operations that it would meet."""
        self._fault_in = operation_count
        self._coming = (fault, on_fault)

    def maybe_break(self, disk: Disk, operation: str, path: str) -> None:
        """Count an operation; give its disk the fault of `fail_at` when it is time."""
        if self._coming is None:
            return
        fault, on_fault = self._coming
        if operation in fault.operations and fault.path_part in path:
            self._fault_in -= 1
            if self._fault_in <= 0:
                self._coming = None
                disk.faults.append(fault)
                on_fault()

    def spare(self) -> None:
        """Take `die_at` and `fail_at` back."""
        self._on_death = self._coming = None

    def is_deadly(self, operation: str, path: str) -> bool:
        """Count an operation; return whether the process dies at it."""
        on_death, (wanted, path_part) = self._on_death, self._deadly
        if on_death is None or (wanted and operation != wanted) or path_part not in path:
            return False
        self._death_in -= 1
        if self._death_in > 0:
            return False
        self._on_death = None
        on_death()
        return True

    def crash(self) -> None:
        """Kill the process (kill -9): what the system was handed stays."""
        self.spare()
        for process in self.processes:
            process.kill()
        self.processes.clear()
        for disk in self.disks.values():
            disk.forget_waiters()
            disk.orphans.clear()

    def power_cut(self, keep: float | None = None) -> None:
        """Cut the power: of what was not flushed a random part survives, each with `keep`."""
        self.crash()
        if keep is None:
            keep = self.rng.choice((0.0, 1.0, 0.5, self.rng.random()))
        for disk in self.disks.values():
            disk.root.power_cut(self.rng, keep)

    def write_back(self, share: float) -> None:
        """Flush a random part of what is dirty, as the system does by itself at any time."""
        for disk in self.disks.values():
            for inode in disk.root.inodes():
                inode.write_back(self.rng, share)

    def heal(self) -> None:
        """Remove the faults of all disks."""
        for disk in self.disks.values():
            disk.heal()
