"""CRC-32C (Castagnoli), the checksum of batches and of dlog's own files.

The package `crc32c` does the work with the processor's instruction (about 25 GB/s); where it is not
installed, as on a Spark executor, a table in Python gives the same values slowly.
"""

import importlib
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

if sys.version_info >= (3, 12):
    from collections.abc import Buffer
else:
    Buffer = bytes | bytearray | memoryview

_POLYNOMIAL = 0x82F63B78  # reflected


@cache
def _native() -> Callable[[Buffer, int, int], int] | None:
    """Import the package when it is first needed: it reads its own metadata, in 10 ms or more."""
    try:
        package: Any = importlib.import_module("crc32c")
    except ImportError:  # the pure table is complete, only slow
        return None
    function: Callable[[Buffer, int, int], int] = package.crc32c
    return function


@cache
def _table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)


def crc32c_pure(data: Buffer, crc: int = 0) -> int:
    """Return the CRC-32C of `data`, continuing from `crc`, without any C code."""
    table = _table()
    crc ^= 0xFFFFFFFF
    for byte in memoryview(data).cast("B"):
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def crc32c(data: Buffer, crc: int = 0) -> int:
    """Return the CRC-32C of `data`, continuing from `crc` (0 to begin).

    The GIL is kept: giving it away for microseconds costs the event loop a whole switch interval.
    """
    native = _native()
    return crc32c_pure(data, crc) if native is None else native(data, crc, 0)
