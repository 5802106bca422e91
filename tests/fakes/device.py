"""One simulated disk: a tree, its space, its faults, its speed; and what its users must offer.

`tests.fakes.disk` puts disks, processes and machines together.
"""

import os
import random
from collections.abc import Callable
from typing import Protocol

from tests.fakes.faults import DiskFault, Latency, PartlyWrittenError
from tests.fakes.inode import Inode
from tests.fakes.tree import DirectoryNode

UNBOUNDED = 1 << 40
BLOCK_BYTES = 4096


def blocks_of(size_bytes: int) -> int:
    """Return the space that a file of this size takes, bytes."""
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


class Owner(Protocol):
    """The process that has a file open, as files and engine see it."""

    @property
    def alive(self) -> bool:
        """Whether the process lives."""

    @property
    def rng(self) -> random.Random:
        """The machine's randomness."""

    @property
    def locks(self) -> "dict[tuple[int, str], object]":
        """All locks of the machine, each with its holder."""

    @property
    def open_files(self) -> dict[object, None]:
        """What is open."""

    @property
    def timestamp_ms(self) -> Callable[[], int]:
        """The wall clock."""

    def step(
        self, disk: "Disk", operation: str, path: str, position: int = 0, length: int = 0
    ) -> None:
        """Count, trace and perhaps refuse an operation, or die at it."""

    def misuse(self, text: str) -> None:
        """Record and raise a breach of the protocols."""


class Disk:
    """One file system: a tree, its space, its faults, its speed."""

    def __init__(self, mount: str, rng: random.Random, capacity_bytes: int) -> None:
        self.mount = mount
        self.rng = rng
        self.capacity_bytes = capacity_bytes
        self.root = DirectoryNode()
        self.faults: list[DiskFault] = []
        self.latency = Latency()
        self.stuck = False
        self.direct_supported = True
        self.orphans: list[Inode] = []
        self._when_unstuck: list[Callable[[], None]] = []

    def used_bytes(self) -> int:
        """Return the space of all files, those included that are unlinked but open."""
        self.orphans = [inode for inode in self.orphans if inode.open_count]
        inodes = [*self.root.inodes(), *self.orphans]
        return sum(blocks_of(inode.allocated) for inode in inodes)

    @property
    def is_bounded(self) -> bool:
        """Whether running out of space is possible at all."""
        return self.capacity_bytes < UNBOUNDED

    def free_bytes(self) -> int:
        """Return the space left."""
        return max(0, self.capacity_bytes - self.used_bytes())

    def strike(self, operation: str, path: str) -> None:
        """Raise the OSError that a fault has for this operation, if any."""
        for fault in self.faults:
            if fault.strikes(operation, path, self.rng):
                kind = PartlyWrittenError if fault.writes_part else OSError
                raise kind(fault.errno, os.strerror(fault.errno), path)

    def stick(self) -> None:
        """Let nothing asynchronous complete until `unstick`."""
        self.stuck = True

    def when_unstuck(self, callback: Callable[[], None]) -> None:
        """Call back when the disk moves again."""
        self._when_unstuck.append(callback)

    def unstick(self) -> None:
        """Let what was stuck go on."""
        self.stuck = False
        waiting, self._when_unstuck = self._when_unstuck, []
        for callback in waiting:
            callback()

    def heal(self) -> None:
        """Remove all faults; what was stuck goes on."""
        self.faults.clear()
        self.latency.factor = 1.0
        self.unstick()

    def forget_waiters(self) -> None:
        """Drop what waits for the disk: its process is gone."""
        self._when_unstuck.clear()

    def flip_bit(self, name_part: str = ".log") -> str | None:
        """Flip one bit at rest in a random file; return what was hit.

        An index in use lies in the system's memory, where the disk cannot reach it.
        """
        files = [
            (path, inode)
            for path, inode in self.root.files()
            if inode.content
            and name_part in path
            and not (inode.open_count and path.endswith((".idx", ".tdx")))
        ]
        if not files:
            return None
        path, inode = files[self.rng.randrange(len(files))]
        position = self.rng.randrange(min(len(inode.content), inode.size) or 1)
        bit = 1 << self.rng.randrange(8)
        inode.content[position] ^= bit
        return f"{path}@{position}^{bit}"
