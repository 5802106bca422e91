"""Directory entries of the simulated disk: volatile until their directory is flushed.

Pure apart from the random generator that is passed in. At a power cut each entry that was not
flushed survives or not; of operations on the same names a later one only with the earlier.
"""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

from tests.fakes.inode import Inode


@dataclass(slots=True, eq=False)
class _Change:
    """One change of entries: `name` begins to mean `node`; `gone` stops to exist.

    A move between directories is two changes with one fate: both in one journal transaction.
    """

    name: str | None = None
    node: "Inode | DirectoryNode | None" = None
    gone: str | None = None
    twin: "_Change | None" = None
    twin_directory: "DirectoryNode | None" = None
    survives: bool | None = None

    def draw(self, rng: random.Random, keep: float) -> bool:
        """Return whether the change survives a power cut."""
        if self.survives is None:
            self.survives = rng.random() < keep
            if self.twin is not None:
                self.twin.survives = self.survives
        return self.survives

    def apply(self, entries: "dict[str, Inode | DirectoryNode]") -> None:
        """Carry the change out."""
        if self.gone is not None:
            entries.pop(self.gone, None)
        if self.name is not None and self.node is not None:
            entries[self.name] = self.node


class DirectoryNode:
    """Entries of one directory: as processes see them, and as the disk holds them."""

    _numbers = itertools.count(1)

    def __init__(self) -> None:
        self.number = next(self._numbers)
        self.entries: dict[str, Inode | DirectoryNode] = {}
        self.durable_entries: dict[str, Inode | DirectoryNode] = {}
        self._changes: list[_Change] = []

    def link(self, name: str, node: "Inode | DirectoryNode") -> None:
        """Add an entry."""
        self._do(_Change(name=name, node=node))

    def unlink(self, name: str) -> None:
        """Remove an entry."""
        self._do(_Change(gone=name))

    def rename(self, name: str, new_name: str) -> None:
        """Move an entry, atomically, over what was there."""
        self._do(_Change(name=new_name, node=self.entries[name], gone=name))

    def move(self, name: str, to: "DirectoryNode", new_name: str) -> None:
        """Move an entry to another directory, atomically."""
        node = self.entries[name]
        leaves = _Change(gone=name, twin_directory=to)
        arrives = _Change(name=new_name, node=node, twin_directory=self, twin=leaves)
        leaves.twin = arrives
        self._do(leaves)
        to._do(arrives)

    def _do(self, change: _Change) -> None:
        change.apply(self.entries)
        self._changes.append(change)

    def flush(self) -> None:
        """Bring all changes to the disk."""
        self.durable_entries = dict(self.entries)
        changes, self._changes = self._changes, []
        for change in changes:
            if change.twin is not None and change.twin_directory is not None:
                change.twin_directory._flush_twin(change.twin)

    def _flush_twin(self, change: _Change) -> None:
        if change in self._changes:
            self._changes.remove(change)
            change.apply(self.durable_entries)

    def power_cut(self, rng: random.Random, keep: float) -> None:
        """Become what the disk holds, and let all below do so."""
        entries = self.durable_entries
        lost: set[str] = set()
        for change in self._changes:
            names = [name for name in (change.name, change.gone) if name is not None]
            if change.draw(rng, keep) and not lost.intersection(names):
                change.apply(entries)
            else:
                lost.update(names)
        self.entries = dict(entries)
        self._changes.clear()
        for name in sorted(entries):
            entries[name].power_cut(rng, keep)

    def inodes(self) -> list[Inode]:
        """Return all files below."""
        return [inode for _, inode in self.files()]

    def files(self, prefix: str = "") -> Iterator[tuple[str, Inode]]:
        """Return all files below with their paths, sorted."""
        for name in sorted(self.entries):
            node = self.entries[name]
            if isinstance(node, Inode):
                yield f"{prefix}/{name}", node
            else:
                yield from node.files(f"{prefix}/{name}")
