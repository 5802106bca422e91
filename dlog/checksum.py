"""CRC-32C (Castagnoli), the checksum of batches and of dlog's own files.

The package `crc32c` does the work with the processor's instruction (about 25 GB/s); where it is not
installed, as on a Spark executor, a table in Python gives the same values slowly.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from types import ModuleType

if sys.version_info >= (3, 12):
    from collections.abc import Buffer
else:
    Buffer = bytes | bytearray | memoryview


def _extension() -> ModuleType:
    """Import the compiled module alone, where it lies as in all versions so far.

    Its package reads the metadata of what is installed, which takes longer than all of ours.
    """
    package = PathFinder.find_spec("crc32c")
    places = None if package is None else package.submodule_search_locations
    spec = places and PathFinder.find_spec("crc32c._crc32c", places)
    if not spec or spec.loader is None:
        return import_module("crc32c")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_native: Callable[[Buffer, int, int], int] | None
try:
    _native = _extension().crc32c
except ImportError:  # the pure table is complete, only slow
    _native = None

_POLYNOMIAL = 0x82F63B78  # reflected


def _make_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)


_TABLE = _make_table()


def crc32c_pure(data: Buffer, crc: int = 0) -> int:
    """Return the CRC-32C of `data`, continuing from `crc`, without any C code."""
    table = _TABLE
    crc ^= 0xFFFFFFFF
    for byte in memoryview(data).cast("B"):
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def crc32c(data: Buffer, crc: int = 0) -> int:
    """Return the CRC-32C of `data`, continuing from `crc` (0 to begin).

    The GIL is kept: giving it away for microseconds costs the event loop a whole switch interval.
    """
    if _native is None:
        return crc32c_pure(data, crc)
    return _native(data, crc, 0)
