"""The budget of entries: never more than it has, everything given back, nobody forgotten."""

from collections.abc import Callable

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dlogd.server.entry_budget import FREE_BYTES, LARGE_PART, EntryBudget, Room, entries_of
from dlogd.telemetry.metrics import ServerMetrics

MAX = 1_000
HALF = MAX // 2
LARGE = 400


def nothing() -> None:
    """Go on with nothing."""


def test_a_small_request_never_waits_for_large_ones() -> None:
    metrics = ServerMetrics()
    budget = EntryBudget(MAX, metrics)
    assert budget.take(LARGE)
    assert not budget.take(LARGE)
    room = budget.wait(LARGE, "a", nothing)
    assert budget.take(20)
    assert (metrics.entries_waiting, metrics.entries_waits_total) == (1, 1)
    room.cancel()
    budget.give_back(LARGE)
    budget.give_back(20)
    assert metrics.entries_waiting == metrics.inflight_entries == budget.used == 0


def test_a_request_of_more_than_all_goes_alone() -> None:
    budget = EntryBudget(MAX, ServerMetrics())
    assert budget.take(10 * MAX)
    assert not budget.take(LARGE)
    budget.give_back(10 * MAX)
    assert budget.take(LARGE)


def test_addresses_take_turns() -> None:
    budget = EntryBudget(MAX, ServerMetrics())
    assert budget.take(HALF)
    went: list[str] = []

    def say(name: str) -> Callable[[], None]:
        return lambda: went.append(name)

    crowd = [budget.wait(HALF, "crowd", say(f"crowd {n}")) for n in range(3)]
    single = budget.wait(HALF, "single", say("single"))
    budget.give_back(HALF)
    assert went == ["crowd 0"]
    crowd[0].cancel()
    assert went == ["crowd 0", "single"]
    single.cancel()
    single.cancel()  # given back once
    assert went[2:] == ["crowd 1"]
    assert budget.used == HALF


def test_who_leaves_the_line_lets_the_next_one_in() -> None:
    budget = EntryBudget(MAX, ServerMetrics())
    assert budget.take(150)
    first = budget.wait(HALF, "a", nothing)
    went: list[str] = []
    budget.wait(200, "b", lambda: went.append("b"))
    assert not went  # the first one holds up the rest
    first.cancel()
    assert went == ["b"]
    assert budget.used == 350


def test_a_room_that_is_handed_over_is_given_back_by_its_new_owner() -> None:
    budget = EntryBudget(MAX, ServerMetrics())
    room = budget.wait(LARGE, "a", nothing)
    over: list[Room] = []
    room.add_done_callback(over.append)
    room.hand_over()
    room.cancel()
    assert over == [room]
    assert budget.used == LARGE


def test_entries_follow_the_bytes_up_to_what_a_request_may_have() -> None:
    assert (entries_of(300), entries_of(1 << 30)) == (300, 100_000)


def test_the_smallest_requests_are_not_counted_and_never_wait() -> None:
    assert (entries_of(FREE_BYTES), entries_of(FREE_BYTES + 1)) == (0, FREE_BYTES + 1)
    budget = EntryBudget(MAX, ServerMetrics())
    assert budget.take(MAX // LARGE_PART - 1)
    room = budget.wait(HALF, "a", nothing)
    assert budget.take(100) and budget.take(100) and budget.take(100)
    assert not budget.take(100)
    small = budget.wait(100, "a", nothing)
    assert budget.take(0)
    budget.give_back(0)
    small.cancel()
    room.cancel()


class Requests(RuleBasedStateMachine):
    """Requests that come, wait, leave and end in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.metrics = ServerMetrics()
        self.budget = EntryBudget(MAX, self.metrics)
        self.rooms: dict[Room, int] = {}
        self.granted: set[int] = set()
        self.taken: list[int] = []
        self.number = 0

    def held(self) -> list[Room]:
        """Return the rooms whose requests go on."""
        return [room for room, number in self.rooms.items() if number in self.granted]

    @rule(entries=st.integers(1, MAX))
    def take(self, entries: int) -> None:
        """A request comes that does not wait."""
        if self.budget.take(entries):
            self.taken.append(entries)

    @rule(entries=st.integers(1, MAX), address=st.sampled_from("abc"))
    def wait(self, entries: int, address: str) -> None:
        """A request comes that waits when it has to."""
        self.number += 1
        number = self.number
        room = self.budget.wait(entries, address, lambda: self.granted.add(number))
        self.rooms[room] = number

    @rule(choice=st.integers(0, 1_000))
    def cancel(self, choice: int) -> None:
        """One that waits leaves, or one that goes on ends."""
        if self.rooms:
            room = list(self.rooms)[choice % len(self.rooms)]
            del self.rooms[room]
            room.cancel()

    @rule()
    def give_back(self) -> None:
        """A request that did not wait ends."""
        if self.taken:
            self.budget.give_back(self.taken.pop())

    @invariant()
    def counts_are_true_and_within_bounds(self) -> None:
        """What is counted is what goes on; a lane holds half of all, or one request."""
        sizes = [*self.taken, *(room.entries for room in self.held())]
        assert self.budget.used == self.metrics.inflight_entries == sum(sizes)
        assert self.metrics.entries_waiting == len(self.rooms) - len(self.held())
        large_from = MAX // LARGE_PART
        for lane in (
            [each for each in sizes if each < large_from],
            [each for each in sizes if each >= large_from],
        ):
            assert sum(lane) <= HALF or len(lane) == 1

    def teardown(self) -> None:
        """Whoever goes lets others in, till nobody waits."""
        while self.taken:
            self.give_back()
        while held := self.held():
            for room in held:
                del self.rooms[room]
                room.cancel()
        assert not self.rooms
        assert self.budget.used == self.metrics.inflight_entries == 0


TestRequests = Requests.TestCase
