"""Files and directories of a real file system: `dlogd.storage.io.files` by system calls.

A direct file gets a second, buffered descriptor at its first `pwrite`, so that this never needs
alignment; Linux keeps both views coherent (the page cache is written out before a direct read and
dropped after a direct write). Only `dlogd.__main__` and tests construct these.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import re
import shutil
import stat
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from dlogd.storage.io.files import DiskUsage
from dlogd.storage.io.io_engine import ALIGNMENT

FILE_MODE = 0o640
DIRECTORY_MODE = 0o750
PARENT_MODE = 0o777  # less the umask

# man 2 statx: the mask bit and the byte positions of the two direct I/O alignments (Linux 6.1).
_STATX_DIOALIGN = 0x2000
_STATX_BYTES = 256
_STATX_DIO_MEM_ALIGN = 152
_STATX_DIO_OFFSET_ALIGN = 156
_AT_EMPTY_PATH = 0x1000

_libc = ctypes.CDLL(None, use_errno=True)


def direct_alignment(fd: int) -> int | None:
    """Return the alignment that direct I/O by `fd` needs: 0 = not supported, None = not told."""
    if not hasattr(_libc, "statx"):
        return None
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    if _libc.statx(fd, b"", _AT_EMPTY_PATH, _STATX_DIOALIGN, buffer) != 0:
        return None
    mask = int.from_bytes(buffer.raw[0:4], "little")
    if not mask & _STATX_DIOALIGN:
        return None
    memory = int.from_bytes(buffer.raw[_STATX_DIO_MEM_ALIGN : _STATX_DIO_MEM_ALIGN + 4], "little")
    offset = int.from_bytes(
        buffer.raw[_STATX_DIO_OFFSET_ALIGN : _STATX_DIO_OFFSET_ALIGN + 4], "little"
    )
    return max(memory, offset)


def _direct_works(fd: int) -> bool:
    """Return whether I/O in multiples of ALIGNMENT is accepted; asks statx, else tries a read."""
    alignment = direct_alignment(fd)
    if alignment is not None:
        return 0 < alignment <= ALIGNMENT
    with mmap.mmap(-1, ALIGNMENT) as block:
        try:
            os.preadv(fd, [block], 0)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
                return False
            raise
    return True


class PosixLock:
    """A lock file held by flock; ends with the process."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        """Give the lock back; the file stays."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class PosixFile:
    """One open file. After a failed `sync` every later one fails too: the kernel has dropped the
    dirty pages and would report success (fsyncgate).
    """

    __slots__ = ("_buffered_fd", "_fd", "_read_only", "_sync_error", "direct", "path")

    def __init__(self, path: str, fd: int, *, direct: bool, read_only: bool) -> None:
        self.path = path
        self.direct = direct
        self._fd = fd
        self._read_only = read_only
        self._buffered_fd = -1 if direct else fd
        self._sync_error: OSError | None = None

    def __repr__(self) -> str:
        return f"PosixFile({self.path!r}, direct={self.direct})"

    def fileno(self) -> int:
        return self._fd

    def size(self) -> int:
        try:
            # A third of the cost of fstat; nobody uses the descriptor's own position.
            return os.lseek(self._fd, 0, os.SEEK_END)
        except OSError:
            # An xfs that has shut down refuses to seek.
            return os.fstat(self._fd).st_size

    def pread(self, length: int, position: int) -> bytes:
        if self.direct:
            return self._pread_direct(length, position)
        parts: list[bytes] = []
        while length:
            data = os.pread(self._fd, length, position)
            if not data:
                break
            parts.append(data)
            length -= len(data)
            position += len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _pread_direct(self, length: int, position: int) -> bytes:
        """Read whole blocks around what is asked for; opens no second descriptor."""
        start = position - position % ALIGNMENT
        span = -(-(position + length) // ALIGNMENT) * ALIGNMENT - start
        if not span:
            return b""
        with mmap.mmap(-1, span) as blocks, memoryview(blocks) as view:
            count = 0
            while count < span:
                with view[count:] as rest:
                    read = os.preadv(self._fd, [rest], start + count)
                count += read
                # A direct read that ends between blocks has met the end of the file.
                if not read or read % ALIGNMENT:
                    break
            skipped = position - start
            with view[skipped : max(skipped, min(count, skipped + length))] as found:
                return bytes(found)

    def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> None:
        fd = self._buffered()
        view = memoryview(data).cast("B")
        while view:
            written = os.pwrite(fd, view, position)
            if written == 0:
                raise OSError(errno.EIO, "Write made no progress", self.path)
            position += written
            view = view[written:]

    def preallocate(self, position: int, length: int) -> None:
        os.posix_fallocate(self._fd, position, length)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        if self._sync_error is not None:
            raise OSError(
                errno.EIO, "An earlier sync failed; this file is not trusted any more", self.path
            ) from self._sync_error
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            self._sync_error = error
            raise

    def close(self) -> None:
        fds = {self._fd, self._buffered_fd} - {-1}
        self._fd = self._buffered_fd = -1
        for fd in sorted(fds):
            os.close(fd)

    def _buffered(self) -> int:
        """Return the descriptor without O_DIRECT, opened at its first use."""
        if self._buffered_fd < 0:
            if self._fd < 0:
                raise OSError(errno.EBADF, "File is closed", self.path)
            flags = os.O_CLOEXEC | (os.O_RDONLY if self._read_only else os.O_RDWR)
            # By descriptor, because the file may have been renamed or unlinked since.
            self._buffered_fd = os.open(f"/proc/self/fd/{self._fd}", flags)
        return self._buffered_fd


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """Descriptors that files with some names leave to others.

    The system gives out the lowest number that is free, so that number says how many are in use.
    """

    names: re.Pattern[str]
    count_max: int


class PosixDirectory:
    """One directory, by path; holds no descriptor."""

    def __init__(self, path: str, reserve: Reserve | None = None) -> None:
        """`reserve` is that of the directories in it, too."""
        self.path = os.path.abspath(path)
        self._reserve = reserve

    def __repr__(self) -> str:
        return f"PosixDirectory({self.path!r})"

    def names(self) -> list[str]:
        return sorted(os.listdir(self.path))

    def exists(self, name: str) -> bool:
        return os.path.lexists(self._path_of(name))

    def mode(self, name: str) -> int:
        return stat.S_IMODE(os.stat(self._path_of(name)).st_mode)

    def modified_ms(self, name: str) -> int:
        return os.stat(self._path_of(name)).st_mtime_ns // 1_000_000

    def owner(self, name: str) -> int:
        return os.stat(self._path_of(name)).st_uid

    def open(
        self, name: str, *, create: bool = False, direct: bool = False, read_only: bool = False
    ) -> PosixFile:
        path = self._path_of(name)
        flags = os.O_CLOEXEC | (os.O_RDONLY if read_only else os.O_RDWR)
        if self._reserve is not None and self._reserve.names.fullmatch(name):
            self._expect_more_than(self._reserve, path)
        if create:
            flags |= os.O_CREAT
        if direct:
            fd = _open_direct(path, flags)
            if fd is not None:
                return PosixFile(path, fd, direct=True, read_only=read_only)
        fd = os.open(path, flags, FILE_MODE)
        if read_only and stat.S_ISDIR(os.fstat(fd).st_mode):
            # The system refuses that only for writing.
            os.close(fd)
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return PosixFile(path, fd, direct=False, read_only=read_only)

    def rename(self, name: str, new_name: str) -> None:
        os.rename(self._path_of(name), self._path_of(new_name))

    def move(self, name: str, to: Self, new_name: str) -> None:
        if to.exists(new_name):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), to._path_of(new_name))
        os.rename(self._path_of(name), to._path_of(new_name))

    def unlink(self, name: str) -> None:
        os.unlink(self._path_of(name))

    def directory(self, name: str, *, create: bool = False) -> Self:
        path = self._path_of(name)
        if create:
            try:
                os.mkdir(path, DIRECTORY_MODE)
            except FileExistsError:
                pass
        if not os.path.isdir(path):
            code = errno.ENOTDIR if os.path.lexists(path) else errno.ENOENT
            raise OSError(code, os.strerror(code), path)
        return type(self)(path, self._reserve)

    def remove_tree(self, name: str) -> None:
        path = self._path_of(name)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)

    def sync(self) -> None:
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def usage(self) -> DiskUsage:
        """Return the space of the file system; free is what an unprivileged process may use."""
        space = os.statvfs(self.path)
        return DiskUsage(
            total_bytes=space.f_blocks * space.f_frsize, free_bytes=space.f_bavail * space.f_frsize
        )

    def lock(self, name: str) -> PosixLock:
        fd = os.open(self._path_of(name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        return PosixLock(fd)

    def _expect_more_than(self, reserve: Reserve, path: str) -> None:
        """Raise EMFILE where a file would take what is kept for others; nothing is made then."""
        fd = os.open(self.path, os.O_PATH | os.O_CLOEXEC)
        os.close(fd)
        if fd >= reserve.count_max:
            said = f"{os.strerror(errno.EMFILE)}, but for those kept for clients"
            raise OSError(errno.EMFILE, said, path)

    def _path_of(self, name: str) -> str:
        if not name or "/" in name or "\0" in name or name in (".", ".."):
            raise ValueError(f"Not a single path component: {name!r}")
        return f"{self.path}/{name}"


def _open_direct(path: str, flags: int) -> int | None:
    """Open with O_DIRECT; None where the file system refuses it."""
    try:
        fd = os.open(path, flags | os.O_DIRECT, FILE_MODE)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
            return None
        raise
    try:
        works = _direct_works(fd)
    except OSError:
        os.close(fd)
        raise
    if works:
        return fd
    os.close(fd)
    return None


def open_directory(path: str, reserve: Reserve | None = None) -> PosixDirectory:
    """Return the directory at `path`, made durably with its parents when missing. Blocks."""
    path = os.path.abspath(path)
    missing = path
    made = []
    while not os.path.isdir(missing):
        made.append(missing)
        missing = os.path.dirname(missing)
    # Without that a power cut may take a directory away with all that was promised in it: also what
    # was made by a process that was killed before it got here. A disk that does not work, or a
    # parent that may not be read, is not for here to judge.
    with suppress(OSError):
        PosixDirectory(os.path.dirname(missing)).sync()
    for each in reversed(made):  # from the top: only the last one that is there is in doubt
        os.makedirs(each, DIRECTORY_MODE if each == path else PARENT_MODE, exist_ok=True)
        PosixDirectory(os.path.dirname(each)).sync()
    return PosixDirectory(path, reserve)
