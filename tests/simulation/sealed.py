"""Seal of the simulated world: product code that touches the real one raises.

The laws in `tests/tidy/test_purity.py` read the source; the seal catches what no source shows, such
as a function that was passed in. Callers outside of the product (the loop, the fakes, `logging`)
pass.
"""

import builtins
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
SEALED: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (time, ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "sleep")),
    (random, ("random", "randrange", "randint", "choice", "shuffle", "uniform", "getrandbits")),
    (os, ("urandom", "open", "fsync", "rename", "replace", "unlink", "listdir", "stat")),
    (socket, ("socket", "create_connection")),
    (builtins, ("open",)),
)
"""Of each module what a simulated node must not call."""


class RealWorldError(AssertionError):
    """Product code has touched the real clock, randomness, disk or network."""


def _sealed(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller.startswith(PRODUCT):
            raise RealWorldError(f"{caller} calls {name} in a simulation")
        return real(*arguments, **options)

    return call


class _SealedSocket(socket.socket):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        caller = sys._getframe(1).f_globals.get("__name__", "")
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
