"""CRC-32C (Castagnoli), the checksum of batches and of dlog's own files.

The package `crc32c` does the work with the processor's instruction (about 25 GB/s); where it is not
installed, as on a Spark executor, numpy gives the same values at about 0.2 GB/s, or else a table in
Python slowly.
"""

from collections.abc import Callable
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from types import ModuleType

from dlog.checksum_arrays import BYTES_MIN, crc32c_arrays
from dlog.checksum_table import Buffer, crc32c_pure

__all__ = ["IS_NATIVE", "Buffer", "crc32c", "crc32c_pure"]


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
except ImportError:  # there are other ways, only slower
    _native = None

IS_NATIVE = _native is not None


def crc32c(data: Buffer, crc: int = 0) -> int:
    """Return the CRC-32C of `data`, continuing from `crc` (0 to begin).

    The GIL is kept: giving it away for microseconds costs the event loop a whole switch interval.
    """
    if _native is None:
        return _crc32c_slowly(data, crc)
    return _native(data, crc, 0)


def _crc32c_slowly(data: Buffer, crc: int) -> int:
    if memoryview(data).nbytes >= BYTES_MIN:
        try:
            return crc32c_arrays(data, crc)
        except ImportError:  # without numpy; only slow
            pass
    return crc32c_pure(data, crc)
