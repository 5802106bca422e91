"""Turns for large requests, so that one request of 100,000 entries does not delay others.

What costs ten microseconds for each entry costs the event loop a second for all of them, and six
such requests at once cost the node its lease. So the work on them is done in pieces, of some
milliseconds each, and one piece of one request in each iteration of the loop, however many of them
there are. Counted, not timed: a simulation does the same again.

Small requests are answered at once as long as few of them come together: a thousand in one read,
of some milliseconds each, would be no better than a large one.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable
from typing import Any, TypeVar, cast

T = TypeVar("T")

PIECE_ENTRIES = 500
"""Entries of a request or an answer that are worked on before others get their turn."""
REQUEST_ENTRIES = 10
"""What a request costs besides its entries, counted as such."""


class RequestTurns:
    """The queue of who rests, one per node. Owner: the event loop's thread.

    Invariant: scheduled when somebody waits; what was spent is forgotten in the next iteration.
    """

    __slots__ = ("_is_scheduled", "_spent", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], object]] = deque()
        self._is_scheduled = False
        self._spent = 0  # entries that were worked on at once since the loop's last iteration

    @property
    def is_spent(self) -> bool:
        """Whether so much was done at once in this iteration of the loop that others must rest."""
        return self._spent >= PIECE_ENTRIES

    def spend(self, entries: int) -> None:
        """Count what is done at once, without a turn."""
        if not self._spent:
            asyncio.get_running_loop().call_soon(self._forget_spent)
        self._spent += entries

    def _forget_spent(self) -> None:
        self._spent = 0

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
        """Yield `items`; rest after every `burst` of them, or when more was done than that."""
        left = burst
        for item in items:
            if not left or self.is_spent:
                await self.rest()
                left = burst
            left -= 1
            yield item

    def begin(self, pieces: Generator[None, None, T]) -> T | Coroutine[Any, Any, T]:
        """Return what `pieces` returns, now when that is little, else when it is awaited."""
        if self.is_spent:
            return self.finish(pieces)
        ended = self._advance(pieces)
        return self.finish(pieces) if ended is None else ended[0]

    async def finish(self, pieces: Generator[None, None, T]) -> T:
        """Return what `pieces` returns; rest after every PIECE_ENTRIES of its steps."""
        if self.is_spent:
            await self.rest()
        while (ended := self._advance(pieces)) is None:
            await self.rest()
        return ended[0]

    def _advance(self, pieces: Generator[None, None, T]) -> tuple[T] | None:
        """Do PIECE_ENTRIES steps at most; return in a tuple what `pieces` returns, if it ends."""
        steps = 0
        try:
            while steps < PIECE_ENTRIES:
                steps += 1
                next(pieces)
        except StopIteration as ended:
            return (ended.value,)
        finally:
            self.spend(steps)
        return None


def at_once(pieces: Generator[None, None, T]) -> T:
    """Return what `pieces` returns, without a rest."""
    while True:
        try:
            next(pieces)
        except StopIteration as ended:
            return cast(T, ended.value)
