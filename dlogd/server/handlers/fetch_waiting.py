"""Watched partitions of a parked Fetch request, and their budget.

Nothing is read to find out: each partition says how far its readable end has moved. Of several
partitions none can bring what is missing before one of them has brought its share of the missing
bytes; so the request is woken when a partition has moved by half a share. Bytes that no partition
has reported are then fewer than half of what was missing. Used by `dlogd.server.handlers.fetch`.
"""

import asyncio
from collections import deque
from collections.abc import Sequence

from dlog.wire import fetch
from dlogd.replication.partition.fetch_waiters import Mark
from dlogd.replication.partition.partition import Partition
from dlogd.replication.partition.waiters import FetchWaiter

WATCHED_MAX = 200_000
"""Partitions that all parked requests watch; each takes some 400 bytes."""
WATCHED_OF_ADDRESS_MAX = WATCHED_MAX // 4
UNCOUNTED = 16
"""A request for at most so many partitions is not counted: connections are bounded."""
LEAVING_AT_ONCE = 500
"""Partitions that requests of closed connections cease to watch in one iteration of the loop."""


class WatchBudget:
    """How many partitions are watched, over all connections and for each address."""

    __slots__ = ("_by_address", "_leaving", "_loop", "used")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.used = 0
        self._by_address: dict[str, int] = {}
        self._leaving: deque[Waiting] = deque()

    def take(self, address: str, count: int) -> bool:
        """Count `count` partitions; False: a request of `address` must not watch so many more."""
        if count <= UNCOUNTED:
            return True
        own = self._by_address.get(address, 0) + count
        if self.used + count > WATCHED_MAX or own > WATCHED_OF_ADDRESS_MAX:
            return False
        self.used += count
        self._by_address[address] = own
        return True

    def give_back(self, address: str, count: int) -> None:
        """Forget what was counted."""
        if count <= UNCOUNTED:
            return
        self.used -= count
        self._by_address[address] -= count
        if not self._by_address[address]:
            del self._by_address[address]

    def leave(self, waiting: "Waiting") -> None:
        """End a request whose connection has closed, a piece in each iteration of the loop."""
        self._leaving.append(waiting)
        if len(self._leaving) == 1:
            self._loop.call_soon(self._leave_some)

    def _leave_some(self) -> None:
        left = LEAVING_AT_ONCE
        while left > 0 and self._leaving:
            left -= self._leaving[0].end_some(left)
            if self._leaving[0].is_ended:
                self._leaving.popleft()
        if self._leaving:
            self._loop.call_soon(self._leave_some)


class Watched:
    """One partition of a parked request, and how many bytes it has for the request."""

    __slots__ = ("bytes_max", "found_bytes", "mark", "partition")

    def __init__(self, partition: Partition, bytes_max: int, found_bytes: int) -> None:
        self.partition = partition
        self.bytes_max = bytes_max
        """What the answer may hold of it: with more, the request waits no longer."""
        self.found_bytes = found_bytes
        self.mark: Mark | None = None
        """The high watermark when the bytes were counted; None: any byte wakes the request."""


class Waiting:
    """The partitions that one request waits for. Life: made when it is parked, then `end`."""

    __slots__ = (
        "_address",
        "_budget",
        "_half_bytes",
        "_missing_bytes",
        "_share_bytes",
        "_waiter",
        "_watched",
        "_watched_count",
    )

    def __init__(
        self,
        waiter: FetchWaiter,
        request: fetch.FetchRequest,
        found: Sequence[tuple[Partition, fetch.FetchPartition, int]],
        budget: WatchBudget,
        address: str,
    ) -> None:
        """`found`: each partition, what is asked of it, and how many bytes it has.

        The caller has taken room for all of them from `budget`.
        """
        self._budget = budget
        self._address = address
        self._watched_count = len(found)
        bytes_max = max(0, request.max_bytes)
        self._waiter = waiter
        self._watched = [
            Watched(partition, max(0, min(bytes_max, entry[5])), found_bytes)
            for partition, entry, found_bytes in found
        ]
        need_bytes = min(request.min_bytes, bytes_max + 1)
        self._missing_bytes = need_bytes - sum([each.found_bytes for each in self._watched])
        self._share_bytes = self._half_bytes = 1
        if self._missing_bytes <= 1:
            for number, watched in enumerate(self._watched):
                watched.partition.fetches.add(waiter, number)
            return
        for watched in self._watched:
            watched.mark = _mark_of(watched.partition)
        self._wait_for_shares()

    @property
    def is_ended(self) -> bool:
        """Whether `end_some` has nothing left to do."""
        return not self._watched

    def end(self) -> None:
        """Wait no more."""
        self.end_some(len(self._watched))

    def end_some(self, count: int) -> int:
        """Cease to watch up to `count` partitions; return how many there were."""
        some = self._watched[-count:]
        del self._watched[-count:]
        for watched in some:
            watched.partition.fetches.remove(self._waiter)
        if some and not self._watched:
            self._budget.give_back(self._address, self._watched_count)
        return len(some)

    def _rest(self) -> None:
        """Cease to watch for the moment."""
        for watched in self._watched:
            watched.partition.fetches.remove(self._waiter)

    def is_over(self, number: int) -> bool:
        """Tell whether there may be enough, now that a partition has moved; else wait on."""
        watched = self._watched[number]
        if len(self._watched) == 1 or self._has_enough(watched):
            return True
        if self._half_bytes > 0:
            self._add(number, watched)
            return False
        self._rest()
        if any([self._has_enough(each) for each in self._watched]):
            return True
        self._wait_for_shares()
        return False

    def _wait_for_shares(self) -> None:
        missing, count = self._missing_bytes, len(self._watched)
        self._share_bytes = missing if count == 1 else max(1, missing // (2 * count))
        self._half_bytes = missing // 2
        for number, watched in enumerate(self._watched):
            self._add(number, watched)

    def _add(self, number: int, watched: Watched) -> None:
        room_bytes = watched.bytes_max + 1 - watched.found_bytes
        bytes_more = min(self._share_bytes, room_bytes)
        watched.partition.fetches.add(self._waiter, number, watched.mark, bytes_more)

    def _has_enough(self, watched: Watched) -> bool:
        """Count what a partition has brought; tell whether the request must look at its logs."""
        before = watched.mark
        watched.mark = mark = _mark_of(watched.partition)
        if before is None or mark is None or mark.history != before.history:
            return True
        gained = mark.position - before.position
        watched.found_bytes += gained
        self._missing_bytes -= gained
        self._half_bytes -= gained
        return self._missing_bytes <= 0 or watched.found_bytes > watched.bytes_max


def _mark_of(partition: Partition) -> Mark | None:
    return partition.fetches.mark(partition.high_watermark)
