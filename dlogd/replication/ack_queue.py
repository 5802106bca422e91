"""Produce requests that wait for an offset to be safe, each with its own deadline.

Owner: the event loop's thread; made by `dlogd.replication.partition`, one queue for each kind of
safety. No timer runs on the way of an acknowledgement: one per queue looks for what is late.
"""

import asyncio
import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from operator import itemgetter

from dlog.errors import WireError
from dlogd.replication.waiters import AckWaiter, Drainable

Entry = tuple[int, float, AckWaiter, int]
"""End offset (exclusive), deadline by the loop's time, who waits, which part of its request."""

END_OFFSET = itemgetter(0)

Judge = Callable[[WireError | None], tuple[WireError | None, int]]
"""Says what becomes of an outcome at this moment, and what time it is (`Clock.now_us`)."""


LOOK_S_MIN = 0.05
"""Between two looks for what is late: each passes over all that wait."""


class AckQueue:
    """Who waits, in the order of what they wait for.

    Invariant: end offsets ascend. Those of appends do by themselves; a batch that was sent again
    waits for its old offsets, below those of batches that came before the repetition.
    """

    __slots__ = ("_entries", "_judge", "_late", "_loop", "_timer", "_timer_at_s")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, judge: Judge, late: Callable[[], WireError]
    ) -> None:
        """`late()` is what those hear whose time is over."""
        self._entries: deque[Entry] = deque()
        self._loop = loop
        self._judge = judge
        self._late = late
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = math.inf

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, end_offset: int, timeout_ms: int, waiter: AckWaiter, index: int) -> None:
        """Call `waiter.on_acked` when all below `end_offset` is safe, or cannot be, or too late."""
        deadline_s = self._loop.time() + timeout_ms / 1000
        entries, entry = self._entries, (end_offset, deadline_s, waiter, index)
        if not entries or entries[-1][0] <= end_offset:
            entries.append(entry)
        else:
            entries.insert(bisect_right(entries, end_offset, key=END_OFFSET), entry)
        if deadline_s < self._timer_at_s:
            self._arm(deadline_s)

    def settle_to(self, offset: int) -> None:
        """All below `offset` is safe."""
        entries = self._entries
        if not entries or entries[0][0] > offset:
            return
        ready = []
        while entries and entries[0][0] <= offset:
            ready.append(entries.popleft())
        self._settle(ready, None)

    def fail(self, error: WireError) -> None:
        """Nobody knows whether what is waited for will ever be safe."""
        self._disarm()
        entries = list(self._entries)
        self._entries.clear()
        if entries:
            self._settle(entries, error)

    def _arm(self, deadline_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_s = deadline_s
        self._timer = self._loop.call_at(deadline_s, self._on_deadline)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._timer_at_s = math.inf

    def _on_deadline(self) -> None:
        self._disarm()
        now_s = self._loop.time()
        expired = [entry for entry in self._entries if entry[1] <= now_s]
        if expired:
            self._entries = deque(entry for entry in self._entries if entry[1] > now_s)
            self._settle(expired, self._late())
        if self._entries:
            earliest_s = min(self._timer_at_s, *(entry[1] for entry in self._entries))
            self._arm(max(earliest_s, now_s + LOOK_S_MIN))

    def _settle(self, entries: list[Entry], error: WireError | None) -> None:
        touched: dict[Drainable, None] = {}
        error, now_us = self._judge(error)
        for _, _, waiter, index in entries:
            replies = waiter.on_acked(index, error, now_us)
            if replies is not None:
                touched[replies] = None
        for replies in touched:
            replies.drain()
