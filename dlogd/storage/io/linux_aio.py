"""Linux native AIO by system calls: contexts, control blocks, events (man 2 io_submit).

Knows the kernel's structures and nothing of files, queues or event loops;
`dlogd.storage.io.aio_engine` drives it. Little-endian 64-bit only, which is all that the table of
system call numbers lists.
"""

import ctypes
import errno
import os
import platform
import struct
import sys

from dlogd.storage.io.buffer_pool import anonymous_memory

PREAD = 0
PWRITE = 1
PWRITEV = 8

# Linux uapi/aio_abi.h: completion is also counted on the eventfd `aio_resfd`.
_IOCB_FLAG_RESFD = 1
_IOCB_BYTES = 64
# data u64, key u32, rw_flags u32, opcode u16, priority i16, fd i32, buffer u64, bytes u64,
# position i64, reserved u64, flags u32, resfd u32.
_IOCB = struct.Struct("<QIIHhiQQqQII")
_EVENT_WORDS = 4  # data, obj, res, res2
_IOVEC = struct.Struct("<QQ")
IOVECS_MAX = 128
"""Buffers of one vectored operation."""

# io_setup, io_destroy, io_getevents, io_submit
_CALL_NUMBERS = {
    "x86_64": (206, 207, 208, 209),
    "aarch64": (0, 1, 4, 2),
    "riscv64": (0, 1, 4, 2),
}

_libc = ctypes.CDLL(None, use_errno=True)
_long = ctypes.c_long
_pointer = ctypes.c_void_p


def address_of(buffer: memoryview) -> int:
    """Return the address of a writable, contiguous, non-empty buffer."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def _system_call(*argument_types: object) -> object:
    """Return `syscall` with fixed argument types, so that no argument is cut to an int."""
    prototype = ctypes.CFUNCTYPE(_long, _long, *argument_types, use_errno=True)  # type: ignore[arg-type]
    return prototype(("syscall", _libc))


class AioContext:
    """One kernel AIO context with `slot_count` control blocks, each used for one operation.

    Owner: one thread. Life: `close` waits for what is in flight.
    """

    def __init__(self, slot_count: int, eventfd: int) -> None:
        numbers = _CALL_NUMBERS.get(platform.machine())
        if numbers is None or sys.byteorder != "little":
            raise OSError(errno.ENOSYS, f"No Linux AIO for {platform.machine()}")
        setup, self._destroy_number, self._events_number, self._submit_number = numbers
        context = ctypes.c_ulong(0)
        if _libc.syscall(_long(setup), _long(slot_count), ctypes.byref(context)) != 0:
            code = ctypes.get_errno()
            raise OSError(code, f"io_setup({slot_count}): {os.strerror(code)}")
        self.slot_count = slot_count
        self._context = context.value
        self._eventfd = eventfd
        self._submit_call = _system_call(_long, _long, _pointer)
        self._events_call = _system_call(_long, _long, _long, _pointer, _pointer)
        # All the kernel reads and writes lives here for as long as the context.
        self._blocks = anonymous_memory(slot_count * _IOCB_BYTES)
        self._blocks_address = address_of(self._blocks)
        self._iovecs = anonymous_memory(slot_count * IOVECS_MAX * _IOVEC.size)
        self._iovecs_address = address_of(self._iovecs)
        self._pointers = anonymous_memory(slot_count * 8).cast("Q")
        self._pointers_address = address_of(self._pointers)
        self._events = anonymous_memory(slot_count * _EVENT_WORDS * 8).cast("q")
        self._events_address = address_of(self._events)

    def prepare(
        self,
        index: int,
        slot: int,
        opcode: int,
        rw_flags: int,
        fd: int,
        address: int,
        size: int,
        position: int,
    ) -> None:
        """Fill `slot` and make it the operation at `index` of the next `submit`."""
        _IOCB.pack_into(
            self._blocks,
            slot * _IOCB_BYTES,
            slot,
            0,
            rw_flags,
            opcode,
            0,
            fd,
            address,
            size,
            position,
            0,
            _IOCB_FLAG_RESFD,
            self._eventfd,
        )
        self._pointers[index] = self._blocks_address + slot * _IOCB_BYTES

    def prepare_iovecs(self, slot: int, spans: list[tuple[int, int]]) -> int:
        """Store the (address, length) spans of `slot`; return the address of the array."""
        start = slot * IOVECS_MAX * _IOVEC.size
        for i, span in enumerate(spans):
            _IOVEC.pack_into(self._iovecs, start + i * _IOVEC.size, *span)
        return self._iovecs_address + start

    def submit(self, first: int, count: int) -> int:
        """Submit operations [first, first + count) of those prepared; return how many went.

        A negative errno says why not even the first went.
        """
        sent: int = self._submit_call(  # type: ignore[operator]
            self._submit_number, self._context, count, self._pointers_address + first * 8
        )
        return sent if sent >= 0 else -ctypes.get_errno()

    def completions(self) -> list[tuple[int, int]]:
        """Return (slot, result) of all that has ended; a negative result is an errno."""
        count = self._events_call(  # type: ignore[operator]
            self._events_number, self._context, 0, self.slot_count, self._events_address, None
        )
        if count < 0:
            code = ctypes.get_errno()
            if code == errno.EINTR:
                return []
            raise OSError(code, f"io_getevents: {os.strerror(code)}")
        events = self._events
        return [(events[i], events[i + 2]) for i in range(0, count * _EVENT_WORDS, _EVENT_WORDS)]

    def close(self) -> None:
        """Destroy the context after what is in flight has ended."""
        if self._context:
            _libc.syscall(_long(self._destroy_number), ctypes.c_ulong(self._context))
            self._context = 0


def limits() -> str:
    """Return how much of the system-wide bound is used, for messages (proc(5))."""
    figures = []
    for name in ("aio-nr", "aio-max-nr"):
        try:
            with open(f"/proc/sys/fs/{name}") as file:
                figures.append(f"fs.{name}={file.read().strip()}")
        except OSError:
            figures.append(f"fs.{name}=?")
    return " ".join(figures)
