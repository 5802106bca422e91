"""Proposals on their way into the log, at the proposer and at the leader.

Pure. A proposal is applied at most once although it is sent again, because it is
sent again only when all earlier copies are known to be dead or are recognised:

* within one term the leader takes each key once (`Intake`);
* a copy that a leader of term T was given can only be in the log with term T, so it is dead when an
  entry of a later term has been applied here and the proposal has not.

That holds as well for what nobody waited for any longer and is proposed once more.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from dlog.errors import NotControllerError
from dlogd.metadata.raft.entries import ITEMS_BYTES_MAX, Item, What
from dlogd.metadata.state.image import Outcome, Refused, Unknown

WAITING_MAX = 1_000
INTAKE_ITEMS_MAX = 10_000
KEYS_REMEMBERED = 100_000
ENTRY_ITEMS_MAX = 256
ENTRIES_IN_FLIGHT_MAX = 4
RESEND_S = 0.5
REFUSED_PAUSE_S = 0.05
NO_LEADER = "The quorum has no leader that can be reached"

_NEVER_AGAIN = 1 << 62
_NEVER = 1 << 62

OnSettled = Callable[[Outcome], None]
"""Takes the outcome of a proposal, once. Called from the step in which it is known."""


@dataclass(slots=True)
class Pending:
    """One proposal of this node, until it is settled."""

    item: Item
    term: int = -1  # in which it was last sent
    sent_s: float = 0.0
    # Until when (milliseconds) somebody waits, and who.
    waiters: list[tuple[int, OnSettled]] = field(default_factory=list)


class Outbox:
    """The proposals of this node that are not settled."""

    def __init__(self) -> None:
        self.pending: dict[bytes, Pending] = {}
        self._fresh: dict[bytes, Pending] = {}
        # When what nobody waits for any more was last sent, as long as a copy may be in the log.
        self._given_up: dict[bytes, tuple[int, float]] = {}
        # What was sent need not be looked at before this changes, or before this time.
        self._looked_at = (-1, -1)
        self._look_again_s = 0.0
        self._expire_ms = _NEVER

    def __len__(self) -> int:
        return len(self.pending)

    def add(self, item: Item, deadline_ms: int, on_settled: OnSettled) -> Pending:
        """Have an item sent, unless it is on its way already; wait until a time for its outcome."""
        pending = self.pending.get(item.key)
        if pending is None:
            pending = self.pending[item.key] = Pending(item)
            sent = self._given_up.pop(item.key, None)
            if sent is None:
                self._fresh[item.key] = pending
            else:
                pending.term, pending.sent_s = sent
                self._looked_at = (-1, -1)
        pending.waiters.append((deadline_ms, on_settled))
        self._expire_ms = min(self._expire_ms, deadline_ms)
        return pending

    def expect(self, key: bytes, deadline_ms: int, on_settled: OnSettled) -> Pending:
        """Wait for the outcome of what is sent by other means, once."""
        pending = self.pending[key] = Pending(Item(What.BARRIER, key), term=_NEVER_AGAIN)
        pending.waiters.append((deadline_ms, on_settled))
        self._expire_ms = min(self._expire_ms, deadline_ms)
        return pending

    def settle(self, key: bytes, outcome: Outcome) -> None:
        """Give a proposer its outcome, if he waits."""
        found = self.pending.pop(key, None)
        # Also while there is no leader, when nobody asks for what is due.
        self._fresh.pop(key, None)
        self._given_up.pop(key, None)
        if found is not None:
            for _, on_settled in found.waiters:
                on_settled(outcome)

    def expire(self, now_ms: int) -> None:
        """Tell those whose time is up; what nobody waits for is not sent again."""
        if now_ms < self._expire_ms:
            return
        self._expire_ms = _NEVER
        for key, pending in list(self.pending.items()):
            waiters, pending.waiters = pending.waiters, []
            for deadline_ms, on_settled in waiters:
                if now_ms < deadline_ms:
                    pending.waiters.append((deadline_ms, on_settled))
                    self._expire_ms = min(self._expire_ms, deadline_ms)
                elif pending.term < 0:
                    on_settled(Refused.of(NotControllerError(NO_LEADER)))
                else:
                    on_settled(Unknown(message="The deadline passed"))
            if not pending.waiters:
                self._give_up(key, pending)

    def withdraw(self, key: bytes, on_settled: OnSettled) -> None:
        """Somebody waits no longer and is told nothing; what nobody waits for is not sent again.

        Nothing is undone: a copy that was sent may be applied yet.
        """
        pending = self.pending.get(key)
        if pending is not None:
            pending.waiters = [each for each in pending.waiters if each[1] != on_settled]
            if not pending.waiters:
                self._give_up(key, pending)

    def _give_up(self, key: bytes, pending: Pending) -> None:
        """Send something no more; remember it as long as a copy may be in the log."""
        self.pending.pop(key, None)
        self._fresh.pop(key, None)
        if 0 <= pending.term < _NEVER_AGAIN:
            self._given_up[key] = pending.term, pending.sent_s
            if len(self._given_up) > KEYS_REMEMBERED:
                del self._given_up[next(iter(self._given_up))]

    def due(self, term: int, applied_term: int, now_s: float) -> list[Item]:
        """Return what is to be sent to the leader of `term` now, and note it as sent."""
        fresh, self._fresh = self._fresh, {}
        if self._given_up and applied_term != self._looked_at[1]:
            alive = [each for each in self._given_up.items() if each[1][0] >= applied_term]
            self._given_up = dict(alive)
        if self._looked_at == (term, applied_term) and now_s < self._look_again_s:
            found = list(fresh.values())
        else:
            waiting = self.pending.values()
            found = [each for each in waiting if _due(each, term, applied_term, now_s)]
            earlier = [each.sent_s for each in waiting if each.term == term]
            self._looked_at = (term, applied_term)
            self._look_again_s = min([now_s, *earlier]) + RESEND_S
        for pending in found:
            pending.term, pending.sent_s = term, now_s
        return [pending.item for pending in found]

    def refuse(self, items: tuple[Item, ...], term: int, now_s: float) -> None:
        """The leader took none of these: they may be sent again soon."""
        for item in items:
            pending = self.pending.get(item.key)
            if pending is not None and pending.term == term:
                # Earlier copies of this term may have been taken, so the term stays.
                pending.sent_s = now_s - RESEND_S + REFUSED_PAUSE_S
                self._look_again_s = min(self._look_again_s, now_s + REFUSED_PAUSE_S)

    def abandon(self, outcome: Outcome) -> None:
        """Settle all; the node stops."""
        for key in list(self.pending):
            self.settle(key, outcome)

    def give_up_sent(self) -> None:
        """Settle as unknown what may have been applied unseen, within a snapshot."""
        for key, pending in [each for each in self.pending.items() if each[1].term >= 0]:
            self.settle(key, Unknown(message="A snapshot replaced the log meanwhile"))
            # Or it is behind the snapshot, and is applied yet.
            self._give_up(key, pending)


def _due(pending: Pending, term: int, applied_term: int, now_s: float) -> bool:
    fresh = pending.term < 0 or applied_term > pending.term
    return fresh or (pending.term == term and now_s - pending.sent_s >= RESEND_S)


class Contacts:
    """Who waits for a proof that this node leads."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[float, int, OnSettled]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, since_s: float, deadline_ms: int, on_settled: OnSettled) -> None:
        """Wait for a moment since `since_s` at which this node surely led."""
        self._waiting.append((since_s, deadline_ms, on_settled))

    def settle(self, led_at_s: float, now_ms: int, proven: Outcome) -> None:
        """Tell those who have it, and those whose time is up."""
        for _ in range(len(self._waiting)):
            since_s, deadline_ms, on_settled = self._waiting.popleft()
            if led_at_s >= since_s:
                on_settled(proven)
            elif now_ms >= deadline_ms:
                on_settled(Refused.of(NotControllerError("This node may lead no longer")))
            else:
                self._waiting.append((since_s, deadline_ms, on_settled))

    def abandon(self, outcome: Outcome) -> None:
        """Settle all; the node stops."""
        while self._waiting:
            self._waiting.popleft()[2](outcome)


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
