"""Deletions of records that wait until every replica in sync has trimmed its log.

Before that a deletion is not acknowledged: another leader would show the records again. Owner: the
event loop's thread; part of `dlogd.replication.partition.partition`.
"""

import asyncio

from dlog.errors import WireError


class PendingTrims:
    """Who waits, and for which log start offset."""

    __slots__ = ("_loop", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, offset: int) -> "asyncio.Future[None]":
        """Return a future that is done when the low watermark has reached `offset`."""
        future = self._loop.create_future()
        self._waiting = [each for each in self._waiting if not each[1].done()]
        self._waiting.append((offset, future))
        return future

    def settle_to(self, low_watermark: int) -> None:
        """All replicas in sync begin at `low_watermark` or later."""
        waiting = self._waiting
        self._waiting = [each for each in waiting if each[0] > low_watermark]
        for offset, future in waiting:
            if offset <= low_watermark and not future.done():
                future.set_result(None)

    def fail(self, error: WireError) -> None:
        """This node does not lead any more."""
        waiting, self._waiting = self._waiting, []
        for _, future in waiting:
            if not future.done():
                future.set_exception(error.with_traceback(None))
