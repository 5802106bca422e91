"""Queue of produce requests that wait for an offset to be safe, by offset.

A request may have a deadline for what *other* replicas do, as in Kafka (DelayedProduce). While this
log has not promised the batch, no deadline counts: the batch is written, and an error would make
the client write the batch again. Owner: the event loop's thread; made by
`dlogd.replication.partition.partition`, one queue for each kind of safety. No timer runs on the way
of an acknowledgement: one per queue looks for late requests.
"""

import asyncio
import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from operator import itemgetter

from dlog.errors import WireError
from dlogd.replication.partition.waiters import AckWaiter, Drainable

Entry = tuple[int, float, AckWaiter, int]
"""End offset (exclusive), deadline by the loop's time, who waits, which part of its request."""

END_OFFSET = itemgetter(0)

Judge = Callable[[WireError | None], tuple[WireError | None, int]]
"""Says what becomes of an outcome at this moment, and what time it is (`Clock.now_us`)."""


LOOK_S_MIN = 0.05
"""Between two looks for late requests: each look passes over all that wait."""

NO_DEADLINE = math.inf


class AckQueue:
    """Who waits, in the order of what they wait for.

    Invariant: end offsets ascend. Those of appends do by themselves; a batch that was sent again
    waits for its old offsets, below those of batches that came before the repetition.
    """

    __slots__ = (
        "_entries",
        "_judge",
        "_late",
        "_looked_at_s",
        "_loop",
        "_timer",
        "_timer_at_s",
        "has_overdue",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, judge: Judge, late: Callable[[int], WireError | None]
    ) -> None:
        """`late(end_offset)` is the error of a request whose time is over.

        None: only this log is waited for. The owner calls `look_soon` when that has changed.
        """
        self.has_overdue = False
        """Whether a request is kept although its time is over."""
        self._entries: deque[Entry] = deque()
        self._loop = loop
        self._judge = judge
        self._late = late
        self._looked_at_s = -math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = math.inf

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, end_offset: int, timeout_ms: int | None, waiter: AckWaiter, index: int) -> None:
        """Call `waiter.on_acked` when all below `end_offset` is safe, or cannot be, or too late."""
        deadline_s = NO_DEADLINE if timeout_ms is None else self._loop.time() + timeout_ms / 1000
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
        self.has_overdue = False
        entries = list(self._entries)
        self._entries.clear()
        if entries:
            self._settle(entries, error)

    def look_soon(self) -> None:
        """Look for late requests; not at once, so that frequent flushes do not cost a look each."""
        self._arm(self._loop.time())

    def _look(self) -> None:
        """Answer requests whose time is over, unless only this log is waited for."""
        self._disarm()
        now_s = self._looked_at_s = self._loop.time()
        late: list[Entry] = []
        kept: deque[Entry] = deque()
        error: WireError | None = None
        next_s = NO_DEADLINE
        self.has_overdue = False
        for entry in self._entries:
            if entry[1] > now_s:
                next_s = min(next_s, entry[1])
            elif (why := self._late(entry[0])) is not None:
                error = why
                late.append(entry)
                continue
            else:
                self.has_overdue = True
            kept.append(entry)
        self._entries = kept
        if next_s != NO_DEADLINE:
            self._arm(next_s)
        if late:
            self._settle(late, error)

    def _arm(self, deadline_s: float) -> None:
        at_s = max(deadline_s, self._looked_at_s + LOOK_S_MIN)
        if at_s >= self._timer_at_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_s = at_s
        self._timer = self._loop.call_at(self._timer_at_s, self._look)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._timer_at_s = math.inf

    def _settle(self, entries: list[Entry], error: WireError | None) -> None:
        touched: dict[Drainable, None] = {}
        error, now_us = self._judge(error)
        for _, _, waiter, index in entries:
            replies = waiter.on_acked(index, error, now_us)
            if replies is not None:
                touched[replies] = None
        for replies in touched:
            replies.drain()
