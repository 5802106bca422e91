"""Turns for large requests, so that one of a hundred thousand entries holds up nobody.

What costs ten microseconds for each entry costs the event loop a second for all of them, and six
such requests at once cost the node its lease. So the work on them is done in pieces, of some
milliseconds each, and one piece of one request in each iteration of the loop, however many of them
there are. Counted, not timed: a simulation does the same again.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable
from typing import Any, TypeVar

T = TypeVar("T")

PIECE_ENTRIES = 500
"""Entries of a request or an answer that are worked on before others get their turn."""


class Turns:
    """The queue of who rests, one per node. Owner: the event loop's thread.

    Invariant: scheduled when somebody waits.
    """

    __slots__ = ("_is_scheduled", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], object]] = deque()
        self._is_scheduled = False

    def ask(self, go_on: Callable[[], object]) -> None:
        """Call `go_on` in a later iteration of the loop, alone, behind all who wait already."""
        self._waiting.append(go_on)
        if not self._is_scheduled:
            self._schedule(asyncio.get_running_loop())

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_scheduled = bool(self._waiting)
        if self._is_scheduled:
            loop.call_soon(self._run, loop)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        go_on = self._waiting.popleft()
        self._schedule(loop)
        go_on()

    async def rest(self) -> None:
        """Return in a later iteration of the loop, behind all who wait already."""
        future = asyncio.get_running_loop().create_future()

        def go_on() -> None:
            if not future.done():  # else it was cancelled
                future.set_result(None)

        self.ask(go_on)
        await future

    async def each(self, items: Iterable[T], burst: int = PIECE_ENTRIES) -> AsyncIterator[T]:
        """Yield `items`; rest after every `burst` of them."""
        left = burst
        for item in items:
            if not left:
                await self.rest()
                left = burst
            left -= 1
            yield item

    def begin(self, pieces: Generator[None, None, T]) -> T | Coroutine[Any, Any, T]:
        """Return what `pieces` returns, now when it is little, else when it is awaited."""
        ended = _advance(pieces)
        return self.finish(pieces) if ended is None else ended[0]

    async def finish(self, pieces: Generator[None, None, T]) -> T:
        """Return what `pieces` returns; rest after every PIECE_ENTRIES of its steps."""
        while (ended := _advance(pieces)) is None:
            await self.rest()
        return ended[0]


def at_once(pieces: Generator[None, None, T]) -> T:
    """Return what `pieces` returns, without a rest."""
    while (ended := _advance(pieces)) is None:
        pass
    return ended[0]


def _advance(pieces: Generator[None, None, T]) -> tuple[T] | None:
    """Do PIECE_ENTRIES steps at most; return what `pieces` returns if it has ended, as a tuple."""
    try:
        for _ in range(PIECE_ENTRIES):
            next(pieces)
    except StopIteration as ended:
        return (ended.value,)
    return None
