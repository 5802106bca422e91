"""An event loop on a thread of its own, for blocking twins of what needs one.

The one place in the library that starts a thread. `lock` guards what both sides touch; it is a
condition, so that threads can wait for what happens on the loop.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """A loop and its thread. Owner: whoever made it. Life: `start` to `close`, or the program."""

    def __init__(self, name: str) -> None:
        self.lock = threading.Condition(threading.Lock())
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop, once started."""
        if self._loop is None:
            raise RuntimeError("the thread was not started")
        return self._loop

    @property
    def is_open(self) -> bool:
        """Whether calls are taken: between `start` and `close`."""
        return self._loop is not None and not self._loop.is_closed()

    def start(self) -> None:
        """Run a loop from now on."""
        self._loop = asyncio.new_event_loop()
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the loop and return what it returns; not from the loop itself.

        It is cancelled when the calling thread is interrupted.
        """
        outcome = asyncio.run_coroutine_threadsafe(work(), self.loop)
        try:
            return outcome.result()
        finally:
            outcome.cancel()

    def close(self) -> None:
        """Stop the loop and wait for the thread. Idempotent."""
        if not self.is_open:
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
