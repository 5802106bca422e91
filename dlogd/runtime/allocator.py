"""Settings of glibc's allocator for this kind of program.

As it comes, glibc gives each thread that allocates a heap of its own and never returns the top of
it: 8 to 17 MB of a node that holds 32 MiB of tails, for a dozen threads that take turns under the
interpreter's lock anyhow. Requests of up to a few MiB, as producers send them, stay on the one
heap, for a mapping of their own would cost its page faults each time. Source: mallopt(3).
"""

import ctypes
from collections.abc import Mapping

# From <malloc.h>, which Python has no names for: parameter, its variable in the environment, value.
_SETTINGS = (
    (-8, "MALLOC_ARENA_MAX", 1),
    (-3, "MALLOC_MMAP_THRESHOLD_", 4 << 20),
    (-1, "MALLOC_TRIM_THRESHOLD_", 2 << 20),
)


def give_back() -> bool:
    """Return free memory of the heap to the system; takes some ms. Source: malloc_trim(3).

    glibc returns only what is free at the top of the heap by itself.
    """
    try:
        return bool(ctypes.CDLL(None).malloc_trim(0))
    except (AttributeError, OSError):
        return False


def tune(environ: Mapping[str, str]) -> bool:
    """Use one heap, and give back what is free at its top; call it before threads are started.

    What the environment sets stays as it is. Returns False where the C library has no mallopt.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    tunables = environ.get("GLIBC_TUNABLES", "")
    if "glibc.malloc." in tunables:
        return True
    return all(mallopt(number, value) for number, name, value in _SETTINGS if name not in environ)
