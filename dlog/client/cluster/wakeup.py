"""Wake-up signal for one waiter: a flag with a deadline, at the cost of a future.

`asyncio.Event` with a time-out costs a task or a context per wait; this is waited for once per
request or poll. Owner: the loop's thread.
"""

import asyncio


class Signal:
    """A flag that at most one coroutine waits for at a time; waiting clears it."""

    __slots__ = ("_is_set", "_loop", "_waiter")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._is_set = False
        self._waiter: asyncio.Future[bool] | None = None

    def set(self) -> None:
        """Wake the waiter, or let the next one not wait."""
        if self._waiter is None:
            self._is_set = True
        else:
            _resolve(self._waiter, True)

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Return True when it is set, False after `timeout_s`; None waits for ever."""
        if self._is_set:
            self._is_set = False
            return True
        if self._waiter is not None:
            raise RuntimeError("another task already waits")
        waiter: asyncio.Future[bool] = self._loop.create_future()
        self._waiter = waiter
        timer = None
        if timeout_s is not None:
            timer = self._loop.call_later(max(0.0, timeout_s), _resolve, waiter, False)
        try:
            return await waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()


def _resolve(waiter: "asyncio.Future[bool]", value: bool) -> None:
    if not waiter.done():
        waiter.set_result(value)
