"""Lock whose waiters take turns by owner, so that one owner with many waiters delays no other."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FairLock:
    """One holder at a time. Owners in the order of turns; of an owner in the order of arrival.

    Owner: one event loop's thread. Invariant: it is held while somebody waits.
    """

    __slots__ = ("_is_held", "_waiting")

    def __init__(self) -> None:
        self._is_held = False
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def held(self, owner: str = "") -> AsyncIterator[None]:
        """Hold the lock for `owner`, after at most one turn of each other owner."""
        await self._acquire(owner)
        try:
            yield
        finally:
            self._release()

    async def _acquire(self, owner: str) -> None:
        if not self._is_held:
            self._is_held = True
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._release()  # it was handed over in the same moment
            raise

    def _release(self) -> None:
        while self._waiting:
            owner = next(iter(self._waiting))
            line = self._waiting.pop(owner)
            future = line.popleft()
            if line:
                self._waiting[owner] = line  # behind the others
            if not future.done():
                future.set_result(None)
                return
        self._is_held = False
