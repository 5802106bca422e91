"""Budget of entries in requests under way, over all connections of a node.

An entry is one element of an array: a name, a partition, a config. A byte of a request becomes
some hundred bytes of objects, so bytes alone bound nothing. Entries are counted before objects
exist, by the bytes of the request. Large and small requests have half of the budget each, so that
a small request never waits for a large one. Who finds no room waits; addresses take turns.
Pure accounts: no socket, no clock, no loop. Owner: the event loop's thread.
"""

from collections.abc import Callable

from dlog.wire.reader import ENTRIES_MAX
from dlogd.telemetry.metrics import ServerMetrics

FREE_BYTES = 256
"""A request of at most this size is not counted: a crowd of small changes that wait for the quorum
must not hold up the questions of other clients."""
LARGE_PART = 8
"""A request of more than this part of the budget is a large one."""


class Room:
    """Place of one request that found none at once. Life: waiting, held, over."""

    __slots__ = ("_go_on", "_is_held", "_is_over", "_lane", "_on_over", "address", "entries")

    def __init__(self, lane: "Lane", entries: int, address: str, go_on: Callable[[], object]):
        self.entries = entries
        self.address = address
        self._lane = lane
        self._go_on = go_on
        self._on_over: Callable[[Room], object] | None = None
        self._is_held = False
        self._is_over = False

    def grant(self) -> None:
        """The entries are counted: let the request go on."""
        self._is_held = True
        self._go_on()

    def add_done_callback(self, callback: "Callable[[Room], object]", /) -> None:
        """Call `callback` when the place is given up, in whatever way."""
        self._on_over = callback

    def hand_over(self) -> None:
        """Leave it to the caller to give the entries back."""
        assert self._is_held and not self._is_over
        self._end()

    def cancel(self) -> None:
        """Wait no more, or give the entries back; nothing when that was done before."""
        if self._is_over:
            return
        self._end()
        if self._is_held:
            self._lane.give_back(self.entries)
        else:
            self._lane.leave(self)

    def _end(self) -> None:
        self._is_over = True
        if self._on_over is not None:
            self._on_over(self)


class Lane:
    """Half of the budget. Invariant: used <= entries_max, apart from one request alone."""

    __slots__ = ("_metrics", "_waiting", "entries_max", "used")

    def __init__(self, entries_max: int, metrics: ServerMetrics) -> None:
        self.entries_max = entries_max
        self.used = 0
        self._metrics = metrics
        # By address, in the order of turns; of an address in the order of arrival.
        self._waiting: dict[str, dict[Room, None]] = {}

    def take(self, entries: int) -> bool:
        """Count `entries`; False when others wait, or when they do not fit."""
        if self._waiting or not self._fits(entries):
            return False
        self._count(entries)
        return True

    def wait(self, room: Room) -> None:
        """Grant the room, now or later."""
        self._metrics.entries_waits_total += 1
        self._metrics.entries_waiting += 1
        self._waiting.setdefault(room.address, {})[room] = None
        self._grant()

    def leave(self, room: Room) -> None:
        """Forget one that waits; maybe the next one fits."""
        line = self._waiting[room.address]
        del line[room]
        if not line:
            del self._waiting[room.address]
        self._metrics.entries_waiting -= 1
        self._grant()

    def give_back(self, entries: int) -> None:
        """Forget what was counted; maybe the next one fits."""
        self._count(-entries)
        assert self.used >= 0
        self._grant()

    def _fits(self, entries: int) -> bool:
        return not self.used or self.used + entries <= self.entries_max

    def _count(self, entries: int) -> None:
        self.used += entries
        self._metrics.inflight_entries += entries

    def _grant(self) -> None:
        """Let those go on who fit, one of each address in turn; the first one holds up the rest."""
        while self._waiting:
            address, line = next(iter(self._waiting.items()))
            room = next(iter(line))
            if not self._fits(room.entries):
                return
            del self._waiting[address], line[room]
            if line:
                self._waiting[address] = line  # behind the others
            self._metrics.entries_waiting -= 1
            self._count(room.entries)
            room.grant()


class EntryBudget:
    """The budget of one node."""

    __slots__ = ("_large", "_large_from", "_small")

    def __init__(self, entries_max: int, metrics: ServerMetrics) -> None:
        self._large_from = max(1, entries_max // LARGE_PART)
        half = max(1, entries_max // 2)
        self._small, self._large = Lane(half, metrics), Lane(half, metrics)

    @property
    def used(self) -> int:
        """Entries of requests under way."""
        return self._small.used + self._large.used

    def _lane(self, entries: int) -> Lane:
        return self._large if entries >= self._large_from else self._small

    def take(self, entries: int) -> bool:
        """Count a request of `entries`; False when it has to wait."""
        return not entries or self._lane(entries).take(entries)

    def wait(self, entries: int, address: str, go_on: Callable[[], object]) -> Room:
        """Call `go_on`, now or later, once `entries` are counted."""
        lane = self._lane(entries)
        room = Room(lane, entries, address, go_on)
        lane.wait(room)
        return room

    def give_back(self, entries: int) -> None:
        """Forget a request whose answer is made, or that has none."""
        if entries:
            self._lane(entries).give_back(entries)


def entries_of(size: int) -> int:
    """Return how many entries a request of `size` bytes may have at most; 0: it is not counted.

    An empty name has one byte in a flexible version, and its answer is as large as any other.
    """
    return min(size, ENTRIES_MAX) if size > FREE_BYTES else 0
