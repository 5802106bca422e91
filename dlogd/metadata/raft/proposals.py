"""Proposals on their way into the log, on the side of who proposes and on the leader's.

Pure but for futures. A proposal is applied at most once although it is sent again, because it is
sent again only when all earlier copies are known to be dead or are recognised:

* within one term the leader takes each key once (`Intake`);
* a copy that a leader of term T was given can only be in the log with term T, so it is dead when an
  entry of a later term has been applied here and the proposal has not.
"""

import asyncio
from collections import deque
from dataclasses import dataclass

from dlogd.metadata.image import Outcome, Unknown
from dlogd.metadata.raft.entries import ITEMS_BYTES_MAX, Item, What

WAITING_MAX = 1_000
INTAKE_ITEMS_MAX = 10_000
KEYS_REMEMBERED = 100_000
ENTRY_ITEMS_MAX = 256
ENTRIES_IN_FLIGHT_MAX = 4
RESEND_S = 0.5
REFUSED_PAUSE_S = 0.05

_NEVER_AGAIN = 1 << 62


@dataclass(slots=True)
class Pending:
    """One proposal of this node, until it is settled."""

    item: Item
    settled: asyncio.Future[Outcome]
    term: int = -1  # in which it was last sent
    sent_s: float = 0.0


class Outbox:
    """The proposals of this node that are not settled."""

    def __init__(self) -> None:
        self.pending: dict[bytes, Pending] = {}

    def __len__(self) -> int:
        return len(self.pending)

    def expect(self, key: bytes, settled: asyncio.Future[Outcome]) -> Pending:
        """Wait for the outcome of what is sent by other means, once."""
        pending = self.pending[key] = Pending(Item(What.BARRIER, key), settled, term=_NEVER_AGAIN)
        return pending

    def settle(self, key: bytes, outcome: Outcome) -> None:
        """Give a proposer its outcome, if he waits."""
        found = self.pending.pop(key, None)
        if found is not None and not found.settled.done():
            found.settled.set_result(outcome)

    def due(self, term: int, applied_term: int, now_s: float) -> list[Item]:
        """Return what is to be sent to the leader of `term` now, and note it as sent."""
        items = []
        for pending in self.pending.values():
            fresh = pending.term < 0 or applied_term > pending.term
            again = pending.term == term and now_s - pending.sent_s >= RESEND_S
            if fresh or again:
                pending.term, pending.sent_s = term, now_s
                items.append(pending.item)
        return items

    def refuse(self, items: tuple[Item, ...], term: int, now_s: float) -> None:
        """The leader took none of these: they may be sent again soon."""
        for item in items:
            pending = self.pending.get(item.key)
            if pending is not None and pending.term == term:
                # Earlier copies of this term may have been taken, so the term stays.
                pending.sent_s = now_s - RESEND_S + REFUSED_PAUSE_S

    def abandon(self, outcome: Outcome) -> None:
        """Settle all; the node stops."""
        for key in list(self.pending):
            self.settle(key, outcome)

    def give_up_sent(self) -> None:
        """Settle as unknown what may have been applied unseen, within a snapshot."""
        for key in [key for key, pending in self.pending.items() if pending.term >= 0]:
            self.settle(key, Unknown(message="A snapshot replaced the log meanwhile"))


class Intake:
    """What a leader was given in its term and has not put into the log yet."""

    def __init__(self) -> None:
        self._term = -1
        self._waiting: deque[Item] = deque()
        self._taken: dict[bytes, None] = {}
        self.in_flight: deque[int] = deque()

    def begin(self, term: int) -> None:
        """Begin a term as leader."""
        if term != self._term:
            self._term = term
            self._waiting.clear()
            self._taken.clear()
            self.in_flight.clear()

    def offer(self, items: tuple[Item, ...] | list[Item]) -> bool:
        """Take what is new; False when there is no room for any of it."""
        if len(self._waiting) + len(items) > INTAKE_ITEMS_MAX:
            return False
        for item in items:
            if item.key not in self._taken:
                self._taken[item.key] = None
                self._waiting.append(item)
        while len(self._taken) > KEYS_REMEMBERED:
            self._taken.pop(next(iter(self._taken)))
        return True

    def next_entry(self, applied_index: int) -> list[Item]:
        """Return what goes into one entry now; few are in flight, so that the rest gathers."""
        while self.in_flight and self.in_flight[0] <= applied_index:
            self.in_flight.popleft()
        if len(self.in_flight) >= ENTRIES_IN_FLIGHT_MAX:
            return []
        items: list[Item] = []
        size = 0
        while self._waiting and len(items) < ENTRY_ITEMS_MAX:
            size += len(self._waiting[0].data) + 5
            if items and size > ITEMS_BYTES_MAX:
                break
            items.append(self._waiting.popleft())
        return items
