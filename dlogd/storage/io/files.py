"""Protocols of files and directories for the storage layer.

Every operation here blocks; on the event loop they are only called through `Engine.run`, apart from
the ones whose docstring says that they are cheap. `dlogd.storage.io.posix` implements them on a
real file system, the tests in memory with every fault that a disk can have. All errors are
`OSError`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, Self

STEP_BYTES = 1 << 20
SYNC_BYTES = 16 << 20
"""What `write_again` writes at a time, and what it syncs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskUsage:
    """Space of the file system that holds a directory, in bytes."""

    total_bytes: int
    free_bytes: int


class File(Protocol):
    """One open file. Closed by its owner, once."""

    @property
    def path(self) -> str:
        """Path for messages."""

    @property
    def direct(self) -> bool:
        """Whether engine writes and reads by this file bypass the page cache (aligned I/O)."""

    def fileno(self) -> int:
        """Return the descriptor for engine I/O; -1 where there is none. Cheap."""

    def size(self) -> int:
        """Return the size in bytes. Cheap."""

    def pread(self, length: int, position: int) -> bytes:
        """Read up to `length` bytes; shorter only at the end of the file. Never needs alignment."""

    def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> None:
        """Write all of `data` through the page cache. Never needs alignment."""

    def preallocate(self, position: int, length: int) -> None:
        """Make [position, position + length) exist, read as zeros and have space on the disk."""

    def truncate(self, size: int) -> None:
        """Cut or extend to `size`; what is extended reads as zeros."""

    def sync(self) -> None:
        """Return when data and size are on stable storage (fdatasync)."""

    def close(self) -> None:
        """Give the descriptors back. Idempotent."""


class Lock(Protocol):
    """An exclusive lock that ends with the process."""

    def release(self) -> None:
        """Give the lock back. Idempotent."""


class Directory(Protocol):
    """One directory; names are single path components."""

    @property
    def path(self) -> str:
        """Path for messages."""

    def names(self) -> list[str]:
        """Return the sorted names of all entries."""

    def exists(self, name: str) -> bool:
        """Return whether `name` is there."""

    def mode(self, name: str) -> int:
        """Return the permission bits of a file, those of its target when it is a link."""

    def modified_ms(self, name: str) -> int:
        """Return when a file was last written, ms since 1970 by the clock of the system."""

    def owner(self, name: str) -> int:
        """Return the id of the user that owns a file, or its target when it is a link."""

    def open(
        self, name: str, *, create: bool = False, direct: bool = False, read_only: bool = False
    ) -> File:
        """Open a file; with `direct` fall back to buffered where O_DIRECT is refused."""

    def rename(self, name: str, new_name: str) -> None:
        """Rename atomically, replacing `new_name` when it is a file."""

    def move(self, name: str, to: Self, new_name: str) -> None:
        """Rename into another directory of the same file system; OSError when `new_name` exists."""

    def unlink(self, name: str) -> None:
        """Remove a file; open descriptors stay readable."""

    def directory(self, name: str, *, create: bool = False) -> Self:
        """Return a subdirectory, made when `create`."""

    def remove_tree(self, name: str) -> None:
        """Remove a subdirectory with all it holds, or a file."""

    def sync(self) -> None:
        """Return when creations, renames and removals in this directory are on stable storage."""

    def usage(self) -> DiskUsage:
        """Return the space of the file system."""

    def lock(self, name: str) -> Lock:
        """Take the exclusive lock file `name`; raise BlockingIOError when somebody holds it."""


def close_files(files: Iterable[File]) -> None:
    """Close all of `files`. Blocks."""
    for file in files:
        file.close()


def write_again(file: File, start: int, end: int, on_progress: Callable[[int], None]) -> None:
    """Put what lies between two positions on stable storage; raises OSError.

    Pages may count as clean without being on the disk: a failed fsync leaves such pages, and a
    later one does not write them. The bytes stay the same, so that a torn write does no harm.
    `on_progress` is told bytes. One sync of gigabytes on a slow disk would look like a start that
    hangs, so each step has its own.
    """
    unsynced = 0
    while start < end:
        data = file.pread(min(STEP_BYTES, end - start), start)
        if not data:
            break
        file.pwrite(data, start)
        start += len(data)
        unsynced += len(data)
        if unsynced >= SYNC_BYTES:
            file.sync()
            unsynced = 0
        on_progress(len(data))
    file.sync()
