"""A disk with a write cache that loses power: one file on FUSE, to put a loop device on.

    python -m tests.crash.fuse_disk MOUNT_POINT IMAGE SIZE_BYTES

MOUNT_POINT/disk is the disk. What is written stays in the cache, by sectors, until it is flushed
(fsync); a power cut keeps any sectors of the cache and forgets the others: lost, reordered and torn
writes, as disks may. Only the first 4 KiB never tear: ext4 writes its superblock there, outside of
its journal, and wants e2fsck where a disk wrote half of it. Commands are lines on standard input,
each answered by a line:

    power-cut SEED     from now on everything fails with EIO
    power-on
    fail write|flush|read|none     fail so with EIO, from now on
    slow SECONDS       let each flush take so long, from now on
    counts

The kernel's protocol (include/uapi/linux/fuse.h, 7.31) by hand, without a library. Needs root.
"""

import ctypes
import errno
import os
import random
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

SECTOR_BYTES = 512
WHOLE_SECTORS = 8
"""How many at the beginning are kept or forgotten together."""
WRITE_BYTES_MAX = 128 * 1024
ROOT, DISK = 1, 2  # inodes
NAME = b"disk"
DIRECTORY_MODE, FILE_MODE = 0o40755, 0o100600
CACHED_S = 3600

IN_HEADER = struct.Struct("<IIQQIIII")
OUT_HEADER = struct.Struct("<IiQ")
ATTRIBUTES = struct.Struct("<6Q10I")
IO = struct.Struct("<QQII")  # handle, offset, size, flags
WRITE_DATA_AT = 40  # fuse_write_in
LOOKUP, FORGET, GETATTR, SETATTR, OPEN, READ, WRITE = 1, 2, 3, 4, 14, 15, 16
STATFS, RELEASE, FSYNC, FLUSH, INIT, OPENDIR = 17, 18, 20, 25, 26, 27
RELEASEDIR, ACCESS, INTERRUPT, DESTROY, BATCH_FORGET = 29, 34, 36, 38, 42
UNANSWERED = (FORGET, BATCH_FORGET, INTERRUPT)


class Disk:
    """The sectors: on stable storage, or in the cache. Two threads, one lock."""

    def __init__(self, image: Path, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._file = os.open(image, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(self._file, size_bytes)
        self._cache: dict[int, bytes] = {}
        self._lock = threading.Lock()
        self._failing = "none"
        self._is_off = False
        self._flush_s = 0.0
        self._counts = {"read": 0, "write": 0, "flush": 0, "eio": 0}

    def _begin(self, what: str) -> None:
        self._counts[what] += 1
        if self._is_off or self._failing == what:
            self._counts["eio"] += 1
            raise OSError(errno.EIO, what)

    def read(self, offset: int, size: int) -> bytes:
        """Return what is there, the cache before the storage."""
        with self._lock:
            self._begin("read")
            size = max(0, min(size, self.size_bytes - offset))
            found = bytearray(os.pread(self._file, size, offset))
            first, last = offset // SECTOR_BYTES, (offset + size - 1) // SECTOR_BYTES
            for sector in range(first, last + 1):
                cached = self._cache.get(sector)
                if cached is not None:
                    start = sector * SECTOR_BYTES
                    low, high = max(offset, start), min(offset + size, start + SECTOR_BYTES)
                    found[low - offset : high - offset] = cached[low - start : high - start]
            return bytes(found)

    def write(self, offset: int, data: bytes) -> None:
        """Put whole sectors into the cache."""
        with self._lock:
            self._begin("write")
            if offset % SECTOR_BYTES or len(data) % SECTOR_BYTES:
                raise OSError(errno.EINVAL, "not whole sectors")
            for start in range(0, len(data), SECTOR_BYTES):
                sector = (offset + start) // SECTOR_BYTES
                self._cache[sector] = data[start : start + SECTOR_BYTES]

    def flush(self) -> None:
        """Bring the cache to stable storage."""
        time.sleep(self._flush_s)
        with self._lock:
            self._begin("flush")
            self._store(list(self._cache))
            self._cache.clear()

    def _survivors(self, rng: random.Random, share: float) -> list[int]:
        is_head_kept = rng.random() < share
        return [
            sector
            for sector in self._cache
            if (is_head_kept if sector < WHOLE_SECTORS else rng.random() < share)
        ]

    def _store(self, sectors: list[int]) -> None:
        for sector in sectors:
            os.pwrite(self._file, self._cache[sector], sector * SECTOR_BYTES)

    def command(self, line: str) -> str:
        """Carry a command out; return the answer."""
        words = line.split()
        with self._lock:
            if words[0] == "power-cut":
                rng = random.Random(int(words[1]))
                share = rng.choice((0.0, 0.3, 0.7, 1.0))
                kept = self._survivors(rng, share)
                answer = f"kept {len(kept)} of {len(self._cache)}"
                self._store(kept)
                self._cache.clear()
                self._is_off = True
                return answer
            if words[0] == "power-on":
                self._is_off, self._failing = False, "none"
            elif words[0] == "fail":
                self._failing = words[1]
            elif words[0] == "slow":
                self._flush_s = float(words[1])
            elif words[0] == "counts":
                return " ".join(f"{name}={count}" for name, count in self._counts.items())
            else:
                return "what?"
        return "done"


class Server:
    """Answers the kernel. Life: `mount`, then `serve` until it is unmounted."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._device = os.open("/dev/fuse", os.O_RDWR)
        self._handlers: dict[int, Callable[[int, memoryview], bytes]] = {
            INIT: self._init,
            LOOKUP: self._lookup,
            GETATTR: self._getattr,
            SETATTR: self._getattr,
            OPEN: lambda _node, _body: struct.pack("<QIi", 1, 0, 0),
            OPENDIR: lambda _node, _body: struct.pack("<QIi", 1, 0, 0),
            READ: self._read,
            WRITE: self._write,
            FSYNC: self._fsync,
            STATFS: lambda _node, _body: struct.pack("<5Q4I24x", 1, 0, 0, 2, 0, 4096, 255, 4096, 0),
            **dict.fromkeys((RELEASE, RELEASEDIR, FLUSH, ACCESS, DESTROY), lambda *_: b""),
        }

    def mount(self, mount_point: Path) -> None:
        """Become a file system."""
        options = f"fd={self._device},rootmode=40000,user_id=0,group_id=0,allow_other"
        libc = ctypes.CDLL(None, use_errno=True)
        arguments = (b"dlog-fuse-disk", os.fsencode(mount_point), b"fuse", 0, options.encode())
        if libc.mount(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "mount")

    def serve(self) -> None:
        """Answer until the file system is gone."""
        while True:
            try:
                request = os.read(self._device, WRITE_BYTES_MAX + 4096)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return  # unmounted
                if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                    continue
                raise
            self._answer(request)

    def _answer(self, request: bytes) -> None:
        _, code, unique, node, *_ = IN_HEADER.unpack_from(request)
        if code in UNANSWERED:
            return
        status, body = 0, b""
        try:
            handler = self._handlers.get(code)
            if handler is None:
                raise OSError(errno.ENOSYS, "not needed")
            body = handler(node, memoryview(request)[IN_HEADER.size :])
        except OSError as error:
            status = -(error.errno or errno.EIO)
        try:
            os.write(self._device, OUT_HEADER.pack(16 + len(body), status, unique) + body)
        except FileNotFoundError:
            pass  # who asked was interrupted

    def _init(self, _node: int, body: memoryview) -> bytes:
        major, _, readahead, _ = struct.unpack_from("<4I", body)
        head = struct.pack("<4I", major, 31, readahead, 0)
        return head + struct.pack("<HHIIHHI28x", 12, 9, WRITE_BYTES_MAX, 1, 32, 0, 0)

    def _attributes(self, node: int) -> bytes:
        is_disk = node == DISK
        size = self._disk.size_bytes if is_disk else 0
        mode, links = (FILE_MODE, 1) if is_disk else (DIRECTORY_MODE, 2)
        rest = (0, 0, 0, mode, links, 0, 0, 0, 4096, 0)
        return ATTRIBUTES.pack(node, size, size // 512, 0, 0, 0, *rest)

    def _lookup(self, _node: int, body: memoryview) -> bytes:
        if bytes(body).rstrip(b"\0") != NAME:
            raise FileNotFoundError(errno.ENOENT, "not there")
        head = struct.pack("<4Q2I", DISK, 0, CACHED_S, CACHED_S, 0, 0)
        return head + self._attributes(DISK)

    def _getattr(self, node: int, _body: memoryview) -> bytes:
        return struct.pack("<QII", CACHED_S, 0, 0) + self._attributes(node)

    def _read(self, _node: int, body: memoryview) -> bytes:
        _, offset, size, _ = IO.unpack_from(body)
        return self._disk.read(offset, size)

    def _write(self, _node: int, body: memoryview) -> bytes:
        _, offset, size, _ = IO.unpack_from(body)
        self._disk.write(offset, bytes(body[WRITE_DATA_AT : WRITE_DATA_AT + size]))
        return struct.pack("<II", size, 0)

    def _fsync(self, _node: int, _body: memoryview) -> bytes:
        self._disk.flush()
        return b""


def main() -> None:
    """Serve the disk, and commands."""
    mount_point, image, size_bytes = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    disk = Disk(image, size_bytes)
    server = Server(disk)
    server.mount(mount_point)
    print("mounted", flush=True)

    def obey() -> None:
        for line in sys.stdin:
            print(disk.command(line), flush=True)

    threading.Thread(target=obey, daemon=True).start()
    server.serve()


if __name__ == "__main__":
    main()
