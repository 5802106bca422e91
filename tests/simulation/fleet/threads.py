"""Raft's own thread, without a thread: its loop is driven in virtual time beside the node's.

`ThreadedRaftStore` is the real one; only what it starts is replaced. Its disk operations block its
loop for as long as the disk takes, and nothing else of the node.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from dlogd.metadata.raft import thread
from tests.simulation.loop import SimLoop


class LoopThread:
    """Stands in for `threading.Thread`: what it would run is driven by the world."""

    def __init__(self, *, target: Callable[[], None], name: str = "", daemon: bool = False) -> None:
        self._owner: Any = getattr(target, "__self__", None)
        self._alive = False

    def start(self) -> None:
        """Begin; the loop runs already."""
        self._alive = True

    def is_alive(self) -> bool:
        """Return whether it was started and not joined."""
        return self._alive

    def join(self, timeout: float | None = None) -> None:
        """End; the thread's loop runs nothing any more."""
        self._alive = False
        self._owner._away.stop()


class _Threading:
    """Stands in for the module `threading`."""

    Thread = LoopThread


def _new_event_loop() -> asyncio.AbstractEventLoop:
    running = asyncio.events._get_running_loop()
    assert isinstance(running, SimLoop), "a loop is made outside of the simulation"
    return running.thread("raft")


@contextmanager
def virtual_threads() -> Iterator[None]:
    """Replace the thread of the metadata for a while."""
    with (
        mock.patch.object(thread, "threading", _Threading),
        mock.patch.object(asyncio, "new_event_loop", _new_event_loop),
    ):
        yield
