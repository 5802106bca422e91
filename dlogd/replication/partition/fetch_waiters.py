"""Waiting Fetch requests of a partition, and the turns in which they are woken.

A waiter says how many bytes it needs. An append costs the waiters whose bytes it brings, not all
waiters: a heap holds them by the position in the active segment up to which the partition must be
readable. A position counts as long as the log is the same: a new segment, a cut, or another log
start wakes all. Owner: the event loop's thread.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from dlogd.replication.partition.waiters import FetchWaiter
from dlogd.storage.log.partition_log import PartitionLog

BURST = 8
"""Waiters that are woken in one iteration of the loop, over all partitions of a node."""
STALE_MIN = 64
"""Entries of waiters that have left, before the heap is built again without them."""

Due = tuple[FetchWaiter, int]
"""Who is woken, and the number by which it knows the partition."""


class Wakes:
    """The waiters of all partitions that are due; one per node.

    The first BURST are woken at once. The others are woken in later iterations, the partitions by
    turns, so that appends and their acknowledgements go on between them.
    """

    __slots__ = ("_is_scheduled", "_left", "_loop", "_rounds")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._rounds: deque[Iterator[Due]] = deque()
        self._left = BURST
        self._is_scheduled = False

    def wake(self, due: list[Due]) -> None:
        """Call `on_data` of each, now or in a later iteration of the loop."""
        self._rounds.append(iter(due))
        if not self._is_scheduled:
            self._schedule()
        self._work()

    def _schedule(self) -> None:
        self._is_scheduled = True
        self._left = BURST
        self._loop.call_soon(self._on_iteration)

    def _on_iteration(self) -> None:
        self._is_scheduled = False
        if self._rounds:
            self._schedule()
            self._work()

    def _work(self) -> None:
        """Wake as many as this iteration of the loop has left; what is left over comes last."""
        rounds = self._rounds
        while self._left and rounds:
            one = rounds.popleft()
            for waiter, number in one:
                self._left -= 1
                waiter.on_data(number)
                if self._left <= 0:
                    rounds.append(one)
                    break


class Mark(NamedTuple):
    """A place in a partition's log that can be compared with later ones."""

    history: tuple[int, int, int, int]
    """Marks of different histories have nothing in common."""
    offset: int
    position: int


class FetchWaiters:
    """Who waits for one partition.

    Invariant: all entries of the heap are of `_history`. Life of a waiter: `add`, then it is handed
    over to be woken or `remove` is called; who is woken and wants more adds itself again.
    """

    __slots__ = (
        *("_changes", "_heap", "_history", "_known", "_log", "_order", "_orders", "_soon"),
        "_wakes",
    )

    def __init__(self, log: PartitionLog, wakes: Wakes) -> None:
        self._log = log
        self._wakes = wakes
        self._soon: dict[FetchWaiter, int] = {}
        """Who waits for any byte."""
        self._heap: list[tuple[int, int, FetchWaiter, int]] = []
        """Position, order of arrival, waiter, number; also of waiters that have left."""
        self._orders: dict[FetchWaiter, int] = {}
        """The entry of each waiter in the heap that counts."""
        self._history: tuple[int, int, int, int] | None = None
        self._known: Mark | None = None
        self._changes = 0
        self._order = 0

    def __len__(self) -> int:
        return len(self._soon) + len(self._orders)

    def mark(self, offset: int) -> Mark | None:
        """Return the place of `offset`; None when it is not known without asking the disk."""
        log = self._log
        history = (self._changes, log.active.base_offset, log.cut_count, log.log_start_offset)
        known = self._known
        if known is not None and known.history != history:
            known = None
        if known is not None and known.offset == offset:
            return known
        near = None
        if known is not None and known.offset < offset:
            near = known.offset, known.position
        position = log.reader.place_in_active(offset, near)
        if position is None:
            return None
        self._known = Mark(history, offset, position)
        return self._known

    def add(
        self, waiter: FetchWaiter, number: int, mark: Mark | None = None, bytes_more: int = 1
    ) -> None:
        """Call `waiter.on_data(number)` once, when `bytes_more` are readable beyond `mark`.

        Without a mark, when anything more is readable; in any case when something else changes.
        """
        if mark is None or bytes_more <= 1:
            self._soon[waiter] = number
            return
        if mark.history != self._history:
            self._wakes.wake(self._take_heap())
            self._history = mark.history
        self._order += 1
        self._orders[waiter] = self._order
        heappush(self._heap, (mark.position + bytes_more, self._order, waiter, number))

    def remove(self, waiter: FetchWaiter) -> None:
        """Forget `waiter`."""
        self._soon.pop(waiter, None)
        if self._orders.pop(waiter, None) is not None:
            self._clean()

    def _clean(self) -> None:
        """Drop what has left, once that is most of the heap."""
        heap, orders = self._heap, self._orders
        if len(heap) - len(orders) > max(STALE_MIN, len(orders)):
            self._heap = [each for each in heap if orders.get(each[2]) == each[1]]
            heapify(self._heap)

    def advance_to(self, offset: int) -> None:
        """All below `offset` is readable: wake those who have enough now."""
        due: list[Due] = []
        if self._soon:
            due, self._soon = list(self._soon.items()), {}
        if self._orders:
            mark = self.mark(offset)
            if mark is None or mark.history != self._history:
                due += self._take_heap()
            else:
                due += self._take_up_to(mark.position)
        if due:
            self._wakes.wake(due)

    def wake_all(self) -> None:
        """Something else has changed: all look again."""
        self._changes += 1
        due = [*self._soon.items(), *self._take_heap()]
        self._soon = {}
        if due:
            self._wakes.wake(due)

    def _take_up_to(self, position: int) -> list[Due]:
        heap, orders = self._heap, self._orders
        due = []
        while heap and heap[0][0] <= position:
            _, order, waiter, number = heappop(heap)
            if orders.get(waiter) == order:
                del orders[waiter]
                due.append((waiter, number))
        return due

    def _take_heap(self) -> list[Due]:
        """Return all who wait by position, in order of arrival."""
        orders = self._orders
        entries = [each for each in self._heap if orders.get(each[2]) == each[1]]
        self._heap, self._orders = [], {}
        return [(waiter, number) for _, _, waiter, number in sorted(entries, key=_order_of)]


def _order_of(entry: tuple[int, int, FetchWaiter, int]) -> int:
    return entry[1]
