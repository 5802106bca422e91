"""Who asks a leader for more under a throttle: in turn, paid for, past those who get nothing."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from dlog.types import NodeId
from dlogd.metadata.state.throttled_replicas import NOBODY, ThrottledReplicas
from dlogd.replication.follower.fetch_throttle import LOOK_S, PATIENCE_S, FetchThrottle
from dlogd.replication.protocol import FRAME_BYTES
from dlogd.replication.rate_limiter import UNLIMITED, RateLimiter

SECOND = 1_000_000
ALL = ThrottledReplicas(True, frozenset())


class Bench:
    """A throttle, whose clock and timers the test moves."""

    def __init__(self, rate: int, count: int) -> None:
        self.now_s = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.in_sync: set[int] = set()
        self.went_on: list[int] = []
        self.limiter = RateLimiter(rate)
        loop: Any = self
        self.throttle = FetchThrottle(
            self.limiter,
            loop,
            loop,
            NodeId(3),
            lambda key: key[1] in self.in_sync,
            lambda following: self.went_on.append(following.key[1]),
        )
        self.all: list[Any] = [self._following(index) for index in range(count)]

    def _following(self, index: int) -> Any:
        settings = SimpleNamespace(follower_throttled=ALL)
        plog = SimpleNamespace(log_end_offset=0)
        partition = SimpleNamespace(settings=settings, log=plog)
        # By identity, as a following is.
        return Following(key=(None, index), partition=partition, is_current=True)

    def time(self) -> float:
        return self.now_s

    def now_us(self) -> int:
        return int(self.now_s * SECOND)

    def call_later(self, delay_s: float, work: Callable[[], None]) -> Any:
        entry = (self.now_s + delay_s, work)
        self.timers.append(entry)
        return SimpleNamespace(cancel=lambda: self.timers.remove(entry))

    def pass_s(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.timers and min(self.timers, key=lambda each: each[0])[0] <= end_s:
            first = min(self.timers, key=lambda each: each[0])
            self.timers.remove(first)
            self.now_s = max(self.now_s, first[0])
            first[1]()
        self.now_s = end_s

    def ask(self) -> list[int]:
        """Return who may ask at once."""
        return [each.key[1] for each in self.all if self.throttle.may_ask(each)]

    def take_went_on(self) -> list[int]:
        found, self.went_on = self.went_on, []
        return found


class Following(SimpleNamespace):
    """What a throttle sees of one."""

    __hash__ = object.__hash__  # type: ignore[assignment]


def test_one_after_the_other_when_the_one_before_is_paid_for() -> None:
    bench = Bench(1000, 3)
    assert bench.ask() == [0] and bench.ask() == [0], "who asks again keeps its place"
    bench.throttle.on_row(bench.all[0], 5, 0)  # only a watermark: more comes
    assert bench.take_went_on() == []
    bench.throttle.on_row(bench.all[0], 5, 6000)
    bench.pass_s(4.9)
    assert bench.take_went_on() == []
    bench.pass_s(0.2)
    assert bench.take_went_on() == [1]
    bench.throttle.on_row(bench.all[1], 0, 0)  # nothing that it does not have
    assert bench.take_went_on() == [2]


def test_nobody_overtakes_who_waits_already() -> None:
    bench = Bench(1000, 2)
    assert bench.ask() == [0]
    bench.throttle.on_row(bench.all[0], 5, 2000)
    bench.now_s += 3  # its timer is a little late
    assert not bench.throttle.may_ask(bench.all[0])
    bench.pass_s(0)
    assert bench.take_went_on() == [1]


def test_as_many_at_once_as_there_is_allowance_for() -> None:
    bench = Bench(3 * FRAME_BYTES, 10)
    assert bench.ask() == [0, 1, 2]
    bench.throttle.on_row(bench.all[0], 5, FRAME_BYTES)
    assert bench.take_went_on() == []
    bench.pass_s(0.01)
    bench.throttle.forget(bench.all[1])
    bench.throttle.forget(bench.all[2])
    assert bench.take_went_on() == [3, 4, 5]


def test_who_gets_no_answer_holds_up_the_others_for_a_moment_only() -> None:
    bench = Bench(1000, 4)
    assert bench.ask() == [0]
    bench.pass_s(PATIENCE_S - 0.1)
    assert bench.take_went_on() == []
    bench.pass_s(2 * PATIENCE_S)
    assert bench.take_went_on() == [1, 2]
    bench.throttle.on_row(bench.all[0], 5, 60_000)  # late, and paid for all the same
    bench.pass_s(50)
    assert bench.take_went_on() == []


def test_who_has_to_wait_no_more_does_not_wait_for_its_turn() -> None:
    bench = Bench(0, 5)
    assert bench.ask() == []
    bench.pass_s(10)
    assert bench.take_went_on() == []
    bench.all[2].partition.settings.follower_throttled = NOBODY
    bench.in_sync.add(3)
    bench.pass_s(LOOK_S)
    assert bench.take_went_on() == [2, 3]
    assert bench.throttle.may_ask(bench.all[3])
    bench.limiter.set_rate(UNLIMITED, bench.now_us())
    bench.pass_s(LOOK_S)
    assert bench.take_went_on() == [0, 1, 4]
    assert not bench.timers


def test_who_is_in_sync_is_counted_and_holds_up_the_others_for_seconds_only() -> None:
    bench = Bench(1000, 2)
    bench.in_sync.add(1)
    for _ in range(100):
        bench.throttle.on_row(bench.all[1], 5, 100_000)
    assert bench.ask() == [1]
    bench.pass_s(5.1)
    assert bench.take_went_on() == [0]
    assert bench.limiter.sent_bytes == 10_000_000


def test_nothing_goes_on_behind_the_end_of_a_connection() -> None:
    bench = Bench(1000, 3)
    assert bench.ask() == [0]
    bench.throttle.clear()
    bench.pass_s(10)
    assert bench.take_went_on() == [] and not bench.timers
    assert bench.ask() == [0]
