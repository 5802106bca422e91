"""What a parked Fetch request waits for: bytes of its partitions, each alone and all together.

Nothing is read to find out: each partition says how far its readable end has moved. Of several
partitions none can bring what is missing before one of them has brought its share of the missing
bytes; so the request is woken when a partition has moved by half a share. Bytes that no partition
has reported are then fewer than half of what was missing. Used by `dlogd.server.handlers.fetch`.
"""

from collections.abc import Iterable

from dlog.wire import fetch
from dlogd.replication.partition.fetch_waiters import Mark
from dlogd.replication.partition.partition import Partition
from dlogd.replication.partition.waiters import FetchWaiter


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
        "_half_bytes",
        "_missing_bytes",
        "_share_bytes",
        "_waiter",
        "_watched",
    )

    def __init__(
        self,
        waiter: FetchWaiter,
        request: fetch.FetchRequest,
        found: Iterable[tuple[Partition, fetch.FetchPartition, int]],
    ) -> None:
        """`found`: each partition, what is asked of it, and how many bytes it has."""
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

    def end(self) -> None:
        """Wait no more."""
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
        self.end()
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
