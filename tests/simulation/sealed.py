"""Seal of the simulated world: product code that touches the real one raises.

The laws in `tests/tidy/test_purity.py` read the source; the seal catches what no source shows, such
as a function that was passed in. Callers outside of the product (the loop, the fakes, `logging`)
pass.
"""

import builtins
import io
import os
import random
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

PRODUCT = ("dlogd.", "dlog.")
HELPERS = frozenset({"pathlib", "tempfile", "shutil", "uuid", "random", "secrets", "socket"})
"""Modules of Python that touch the world for whoever calls them."""

_CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")
_FILES = ("open", "fsync", "rename", "replace", "unlink", "mkdir", "listdir", "scandir", "stat")
SEALED: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (time, (*_CLOCKS, "clock_gettime", "clock_gettime_ns", "sleep", "localtime", "gmtime")),
    (random, ("random", "randrange", "randint", "choice", "shuffle", "uniform", "getrandbits")),
    (random, ("SystemRandom", "_urandom")),
    (os, ("urandom", "getrandom", *_FILES, "makedirs", "statvfs")),
    (socket, ("socket", "create_connection", "create_server", "socketpair", "getaddrinfo")),
    (builtins, ("open",)),
    (io, ("open",)),
)
"""Of each module what a simulated node must not call.

`datetime.now` and `random.Random()` belong to types that cannot be changed here: the laws of the
source see them.
"""


class RealWorldError(AssertionError):
    """Product code has touched the real clock, randomness, disk or network."""


def _caller() -> str:
    """Return the module on whose behalf something is called: helpers of Python do not count."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__", "") in HELPERS:
        frame = frame.f_back
    name: str = frame.f_globals.get("__name__", "")
    return name


def _sealed(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        caller = _caller()
        if caller.startswith(PRODUCT):
            raise RealWorldError(f"{caller} calls {name} in a simulation")
        return real(*arguments, **options)

    return call


class _SealedSocket(socket.socket):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        caller = _caller()
        if caller.startswith(PRODUCT):
            raise RealWorldError(f"{caller} opens a socket in a simulation")
        super().__init__(*arguments, **options)


@contextmanager
def sealed() -> Iterator[None]:
    """Let product code meet the simulated world alone."""
    with ExitStack() as stack:
        for module, names in SEALED:
            for name in names:
                real = getattr(module, name)
                new = _SealedSocket if real is socket.socket else _sealed(name, real)
                stack.enter_context(patch.object(module, name, new))
        yield
