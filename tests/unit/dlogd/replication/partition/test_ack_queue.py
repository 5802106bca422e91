"""Who waits for acknowledgements: all hear in time, whatever the order in which they came.

Deadlines: many that end one after the other are looked at together.
"""

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import RequestTimedOutError, WireError
from dlogd.replication.partition.ack_queue import AckQueue
from tests.fakes.led_partition import Waiter


class Timers:
    """A loop that has only timers, and time that the test lets pass."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.waiting: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now_s

    def call_at(self, at_s: float, work: Callable[[], None]) -> "Timers":
        self.waiting = [(at_s, work)]  # the queue has one at a time
        return self

    def cancel(self) -> None:
        self.waiting = []

    def step(self) -> None:
        (self.now_s, work), self.waiting = self.waiting[0], []
        work()


def test_many_deadlines_one_after_the_other_are_looked_at_together() -> None:
    looks = 0
    loop: Any = Timers()
    queue, waiter = (
        AckQueue(loop, lambda error: (error, 0), lambda _: RequestTimedOutError()),
        Waiter(),
    )
    for number in range(1000):
        queue.add(number, 1 + number, waiter, number)
    while loop.waiting:
        looks += 1
        loop.step()
        assert len(waiter.settled) >= int(loop.now_s * 1000) - 1
    assert len(waiter.settled) == 1000 and not len(queue)
    assert looks <= 25 and loop.now_s < 1.1


def test_a_deadline_waits_for_the_own_log_and_costs_no_look_per_flush() -> None:
    promised, looks = 0, 0

    def late(end_offset: int) -> WireError | None:
        nonlocal looks
        looks += 1
        return RequestTimedOutError() if end_offset <= promised else None

    loop: Any = Timers()
    queue, waiter = AckQueue(loop, lambda error: (error, 0), late), Waiter()
    queue.add(5, 0, waiter, 0)
    queue.add(9, 0, waiter, 1)
    queue.add(9, 60_000, waiter, 2)
    loop.step()
    assert not waiter.settled and queue.has_overdue and looks == 2
    promised = 6
    for _ in range(3):
        queue.look_soon()
    assert looks == 2
    loop.step()
    assert [index for index, _ in waiter.settled] == [0] and queue.has_overdue
    promised = 9
    queue.look_soon()
    loop.step()
    assert [index for index, _ in waiter.settled] == [0, 1] and not queue.has_overdue
    assert len(queue) == 1 and loop.now_s < 0.2
    loop.step()
    assert len(waiter.settled) == 3 and loop.now_s == 60


END, TIME = st.integers(1, 30), st.integers(1, 5)
STEPS = st.lists(st.one_of(END.map(lambda end: ("add", end)), TIME.map(lambda up: ("safe", up))))


@given(STEPS)
def test_all_below_what_is_safe_are_answered_in_any_order_of_arrival(
    steps: list[tuple[str, int]],
) -> None:
    """A batch that is sent again waits for less than those that arrived before the repetition."""
    loop: Any = Timers()
    queue, waiter, safe = (
        AckQueue(loop, lambda error: (error, 0), lambda _: RequestTimedOutError()),
        Waiter(),
        0,
    )
    ends: list[int] = []
    for step, number in steps:
        if step == "add":
            queue.add(number, 60_000, waiter, len(ends))
            ends.append(number)
            continue
        # What is waited for may be safe already when it is added; the next advance settles it.
        safe += number
        queue.settle_to(safe)
        settled = [index for index, _ in waiter.settled]
        assert sorted(settled) == [index for index, end in enumerate(ends) if end <= safe]
        assert len(queue) == len(ends) - len(settled)
    assert all(error is None for _, error in waiter.settled)
