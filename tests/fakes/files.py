"""Files, directories and locks of the simulated disk: implements `dlogd.storage.io.files`.

Each operation first asks the process (`Process.step`), which may refuse it, pause it, or die at it.
"""

import errno
import os
from typing import Self

from dlogd.storage.io.files import DiskUsage
from tests.fakes.device import Disk, Owner, blocks_of
from tests.fakes.faults import PartlyWrittenError
from tests.fakes.inode import Inode
from tests.fakes.tree import DirectoryNode


class MemoryFile:
    """Implements `dlogd.storage.io.files.File`."""

    def __init__(
        self,
        process: Owner,
        disk: Disk,
        inode: Inode,
        path: str,
        direct: bool,
        read_only: bool,
    ) -> None:
        self.process = process
        self.disk = disk
        self.inode = inode
        self._path = path
        self._direct = direct
        self._read_only = read_only
        self._closed = False
        inode.open_count += 1
        process.open_files[self] = None

    @property
    def path(self) -> str:
        return self._path

    @property
    def direct(self) -> bool:
        return self._direct

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def fileno(self) -> int:
        return -1

    def size(self) -> int:
        self.step("size")
        return self.inode.size

    def pread(self, length: int, position: int) -> bytes:
        self.step("read", position, length)
        return self.inode.read(position, length)

    def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> None:
        try:
            self.begin_write("write", position, len(data))
        except PartlyWrittenError:
            self.inode.write(position, data[: self.process.rng.randrange(len(data) + 1)])
            raise
        self.inode.write(position, data)
        self.stamp()

    def preallocate(self, position: int, length: int) -> None:
        self.begin_write("preallocate", position, length)
        self.inode.preallocate(position, length)

    def truncate(self, size: int) -> None:
        self.step("truncate", size, 0)
        self._refuse_read_only()
        self.inode.truncate(size)
        self.stamp()

    def stamp(self) -> None:
        """Note when the file was written."""
        self.inode.modified_ms = self.process.timestamp_ms()

    def sync(self) -> None:
        try:
            self.step("sync")
        except OSError:
            self.inode.fail_flush(self.process.rng)
            raise
        self.inode.flush()

    def close(self) -> None:
        if not self._closed:
            self._close()
            self.process.open_files.pop(self, None)

    def abandon(self) -> None:
        """Close for a process that died."""
        if not self._closed:
            self._close()

    def _close(self) -> None:
        self._closed = True
        self.inode.open_count -= 1

    def begin_write(self, operation: str, position: int, length: int) -> None:
        """Do what comes before every operation that may need space."""
        self.step(operation, position, length)
        self._refuse_read_only()
        self.check_space(position + length)

    def check_space(self, end: int) -> None:
        """Raise ENOSPC when the disk has no space for the file to reach to `end`."""
        more = blocks_of(end) - blocks_of(self.inode.allocated)
        if more > 0 and self.disk.is_bounded and more > self.disk.free_bytes():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)

    def _refuse_read_only(self) -> None:
        if self._read_only:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._path)

    def step(self, operation: str, position: int = 0, length: int = 0) -> None:
        """Do what comes before every operation."""
        self.process.step(self.disk, operation, self._path, position, length)
        if self._closed:
            self.process.misuse(f"{operation} on the closed file {self._path}")


class MemoryLock:
    """Implements `dlogd.storage.io.files.Lock`."""

    def __init__(self, process: Owner, key: tuple[int, str]) -> None:
        self._process = process
        self._key = key

    def release(self) -> None:
        locks = self._process.locks
        if locks.get(self._key) is self._process:
            del locks[self._key]


class MemoryDirectory:
    """Implements `dlogd.storage.io.files.Directory`."""

    def __init__(self, process: Owner, disk: Disk, node: DirectoryNode, path: str) -> None:
        self._process = process
        self._disk = disk
        self._node = node
        self._path = path

    @property
    def path(self) -> str:
        return self._path

    def names(self) -> list[str]:
        self._step("names")
        return sorted(self._node.entries)

    def exists(self, name: str) -> bool:
        self._step("exists", name)
        return name in self._node.entries

    def mode(self, name: str) -> int:
        if name not in self._node.entries:
            raise self._error(errno.ENOENT, name)
        return 0o600  # these disks know one user

    def modified_ms(self, name: str) -> int:
        self._step("modified", name)
        inode = self._node.entries.get(name)
        if not isinstance(inode, Inode):
            raise self._error(errno.ENOENT, name)
        return inode.modified_ms

    def owner(self, name: str) -> int:
        return 0

    def open(
        self, name: str, *, create: bool = False, direct: bool = False, read_only: bool = False
    ) -> MemoryFile:
        self._step("open", name)
        inode = self._node.entries.get(name)
        if inode is None and create:
            self._step("create", name)
            inode = Inode()
            inode.modified_ms = self._process.timestamp_ms()
            self._node.link(name, inode)
        if inode is None:
            raise self._error(errno.ENOENT, name)
        if isinstance(inode, DirectoryNode):
            raise self._error(errno.EISDIR, name)
        is_direct = direct and self._disk.direct_supported
        path = f"{self._path}/{name}"
        return MemoryFile(self._process, self._disk, inode, path, is_direct, read_only)

    def rename(self, name: str, new_name: str) -> None:
        self._step("rename", name)
        if name not in self._node.entries:
            raise self._error(errno.ENOENT, name)
        target = self._node.entries.get(new_name)
        if isinstance(target, DirectoryNode) and target.entries:
            raise self._error(errno.ENOTEMPTY, new_name)
        if name == new_name:
            return
        if isinstance(target, Inode):
            self._disk.orphans.append(target)
        self._node.rename(name, new_name)

    def move(self, name: str, to: Self, new_name: str) -> None:
        self._step("rename", name)
        if name not in self._node.entries:
            raise self._error(errno.ENOENT, name)
        if to._disk is not self._disk:
            raise self._error(errno.EXDEV, name)
        if new_name in to._node.entries:
            raise to._error(errno.EEXIST, new_name)
        self._node.move(name, to._node, new_name)

    def unlink(self, name: str) -> None:
        self._step("unlink", name)
        node = self._node.entries.get(name)
        if node is None:
            raise self._error(errno.ENOENT, name)
        if isinstance(node, DirectoryNode):
            raise self._error(errno.EISDIR, name)
        self._disk.orphans.append(node)
        self._node.unlink(name)

    def directory(self, name: str, *, create: bool = False) -> Self:
        self._step("directory", name)
        node = self._node.entries.get(name)
        if node is None and create:
            self._step("mkdir", name)
            node = DirectoryNode()
            self._node.link(name, node)
        if node is None:
            raise self._error(errno.ENOENT, name)
        if not isinstance(node, DirectoryNode):
            raise self._error(errno.ENOTDIR, name)
        return type(self)(self._process, self._disk, node, f"{self._path}/{name}")

    def remove_tree(self, name: str) -> None:
        node = self._node.entries.get(name)
        if isinstance(node, DirectoryNode):
            child = self.directory(name)
            for entry in child.names():
                child.remove_tree(entry)
            self._step("unlink", name)
            self._node.unlink(name)
        else:
            self.unlink(name)

    def sync(self) -> None:
        self._step("sync_directory")
        self._node.flush()

    def usage(self) -> DiskUsage:
        self._step("usage")
        return DiskUsage(total_bytes=self._disk.capacity_bytes, free_bytes=self._disk.free_bytes())

    def lock(self, name: str) -> MemoryLock:
        self._step("lock", name)
        key = (self._node.number, name)
        locks = self._process.locks
        if key in locks:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), f"{self._path}/{name}")
        if name not in self._node.entries:
            self._node.link(name, Inode())
        locks[key] = self._process
        return MemoryLock(self._process, key)

    def _step(self, operation: str, name: str = "") -> None:
        if "/" in name or "\0" in name or name in (".", ".."):
            raise ValueError(f"Not a single path component: {name!r}")
        path = f"{self._path}/{name}" if name else self._path
        self._process.step(self._disk, operation, path)

    def _error(self, code: int, name: str) -> OSError:
        return OSError(code, os.strerror(code), f"{self._path}/{name}")
