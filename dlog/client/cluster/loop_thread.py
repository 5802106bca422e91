"""Event loop on a thread of its own, and what one without a thread needs, for the blocking twins.

The one place in the library that starts a thread. `lock` guards what both sides touch; it is a
condition, so that threads can wait for what happens on the loop.
"""

import asyncio
import concurrent.futures
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from dlog.errors import DlogError

T = TypeVar("T")


async def up_to_date(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Return what the coroutine that `work` makes returns; first see what came between two calls.

    A server closes an idle connection (`connections.idle.timeout`). A request that is sent on it
    fails, and nothing tells whether it took effect. The loop's first turn reads the end of the
    connection, the second one tells its owner.
    """
    for _ in range(2):
        await asyncio.sleep(0)
    return await work()


class LoopThread:
    """A loop and its thread. Owner: whoever made it. Life: `start` to `close`, or the program.

    A forked process has no thread but the one that forked: there `on_fork` is called, calls are
    refused, and `close` does nothing.
    """

    def __init__(self, name: str, on_fork: Callable[[], None] | None = None) -> None:
        self._on_fork = on_fork
        self._is_lost = False
        self.lock = threading.Condition(threading.Lock())
        self._name = name
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._calls: set[concurrent.futures.Future[Any]] = set()
        self._closing = threading.Lock()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop, once started."""
        if self._loop is None:
            raise RuntimeError("the thread was not started")
        return self._loop

    @property
    def is_open(self) -> bool:
        """Whether calls are taken: between `start` and `close`."""
        return self._loop is not None and not self._loop.is_closed() and not self._is_lost

    def check(self) -> None:
        """Raise DlogError in a process that was forked after the start."""
        if self._is_lost:
            raise DlogError("it belongs to the process that started it; start another one here")

    def start(self) -> None:
        """Run a loop from now on."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()
        _running[next(_numbers)] = self

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the loop and return what it returns.

        It is cancelled when the calling thread is interrupted. Raises DlogError on the loop's own
        thread, which would wait for itself, and when another thread closes it meanwhile.
        """
        self.check()
        if threading.current_thread() is self._thread:
            raise DlogError("called on its own thread, as from a callback: use another one")
        outcome = asyncio.run_coroutine_threadsafe(work(), self.loop)
        self._calls.add(outcome)
        try:
            if self.loop.is_closed():
                outcome.cancel()
            return outcome.result()
        except (concurrent.futures.CancelledError, asyncio.CancelledError):
            raise DlogError("it was closed by another thread") from None
        finally:
            self._calls.discard(outcome)
            if not self.loop.is_closed():
                outcome.cancel()

    def close(self) -> None:
        """End what still runs, stop the loop and wait for the thread. Idempotent."""
        if self._thread is None or not self.is_open:
            return
        if threading.current_thread() is self._thread:
            raise DlogError("closed on its own thread, as from a callback: use another one")
        with self._closing:
            if not self.is_open:
                return
            asyncio.run_coroutine_threadsafe(_end_all(), self.loop).result()
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.close()
        for outcome in list(self._calls):  # of who called in the last moment
            outcome.cancel()

    def lose(self) -> None:
        """Note, in a forked process, that the thread is not here."""
        self._is_lost = True
        # Whoever held the old one will never give it back.
        self.lock = threading.Condition(threading.Lock())
        if self._on_fork is not None:
            self._on_fork()


async def _end_all() -> None:
    own = asyncio.current_task()
    others = [task for task in asyncio.all_tasks() if task is not own]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


_numbers = itertools.count()
_running: weakref.WeakValueDictionary[int, LoopThread] = weakref.WeakValueDictionary()


def _after_fork() -> None:
    for thread in list(_running.values()):
        if thread.is_open:
            thread.lose()


os.register_at_fork(after_in_child=_after_fork)
