"""Throttles of replication: the average holds, nothing starves, who is throttled is named."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import InvalidConfigError
from dlogd.metadata.state import topic_configs
from dlogd.metadata.state.throttled_replicas import NOBODY, throttled
from dlogd.replication.rate_limiter import (
    BURST_US,
    DEBT_US_MAX,
    UNLIMITED,
    WAIT_US_MAX,
    RateLimiter,
)

SECOND = 1_000_000


def test_without_a_rate_nobody_waits() -> None:
    limiter = RateLimiter()
    assert not limiter.is_limited
    assert limiter.may_send(1 << 40, 0) == 0 == limiter.may_send(1 << 40, 0)
    limiter.count(1, 5)
    assert limiter.sent_bytes == (2 << 40) + 1


def test_after_the_burst_the_rate_holds() -> None:
    limiter = RateLimiter(1000, now_us=7)
    now_us, sent = 7, 0
    while now_us < 60 * SECOND:
        wait_us = limiter.may_send(100, now_us)
        if wait_us:
            assert 0 < wait_us <= WAIT_US_MAX
            now_us += wait_us
        else:
            sent += 100
    burst = 1000 * BURST_US // SECOND
    assert 59_900 <= sent <= 60_000 + burst + 100 and limiter.sent_bytes == sent


def wait_s(limiter: RateLimiter, now_us: int) -> int:
    """Return for how many whole seconds nothing may be sent."""
    begin_us = now_us
    while wait_us := limiter.may_send(0, now_us):
        now_us += wait_us
    return (now_us - begin_us) // SECOND


def test_what_does_not_have_to_ask_shortens_nobodys_wait() -> None:
    """Else the debt of one large frame is forgotten with the next one that is only counted."""
    limiter = RateLimiter(1000)
    assert limiter.may_send(512_000, 0) == 0
    limiter.count(100, SECOND)
    assert wait_s(limiter, SECOND) in range(509, 512)
    limiter = RateLimiter(1000)
    for _ in range(100):  # and holds up nobody for long
        limiter.count(1000, 0)
    assert wait_s(limiter, 0) == DEBT_US_MAX // SECOND


def test_another_one_may_begin_when_a_whole_frame_is_left_for_each_under_way() -> None:
    limiter = RateLimiter(100_000)
    assert limiter.may_begin(0, 0) == 0 == limiter.may_begin(99_999, 0)
    assert limiter.may_begin(100_000, 0) == WAIT_US_MAX
    limiter.pay(100_000, 0)
    assert limiter.may_begin(0, 0) == 11
    assert limiter.may_begin(1, 11) == 0 < limiter.may_begin(2, 11)
    limiter.set_rate(0, 11)
    assert limiter.may_begin(0, 60 * SECOND) == WAIT_US_MAX
    limiter.set_rate(UNLIMITED, 11)
    assert limiter.may_begin(1 << 40, 11) == 0


def test_a_frame_larger_than_the_burst_passes_and_is_paid_for() -> None:
    limiter = RateLimiter(1000)
    assert limiter.may_send(30_000, 0) == 0
    now_us = 0
    while wait_us := limiter.may_send(1, now_us):
        now_us += wait_us
    assert 28 * SECOND < now_us < 31 * SECOND


def test_what_did_not_ask_holds_others_up_for_some_seconds_only() -> None:
    limiter = RateLimiter(1000)
    for _ in range(1000):
        limiter.count(100_000, 0)
    now_us = 0
    while wait_us := limiter.may_send(1, now_us):
        now_us += wait_us
    assert 4 * SECOND < now_us < 7 * SECOND


def test_nothing_is_sent_at_no_rate_until_it_is_raised() -> None:
    limiter = RateLimiter(0)
    for now_us in range(0, 100 * SECOND, SECOND):
        assert limiter.may_send(1, now_us) == WAIT_US_MAX
    limiter.set_rate(5, 100 * SECOND)
    assert limiter.may_send(1, 100 * SECOND) == 0
    limiter.set_rate(UNLIMITED, 100 * SECOND)
    assert limiter.may_send(1 << 40, 100 * SECOND) == 0


def test_the_same_rate_again_changes_nothing() -> None:
    limiter = RateLimiter(10)
    assert limiter.may_send(10_000, 0) == 0
    limiter.set_rate(10, 0)
    assert limiter.may_send(1, 0) > 0


@given(
    rate=st.integers(1, 1 << 40),
    seed=st.integers(0, 1 << 30),
)
def test_the_average_holds_for_any_sizes_and_times(rate: int, seed: int) -> None:
    rng = random.Random(seed)
    limiter = RateLimiter(rate)
    now_us = sent = largest = 0
    for _ in range(200):
        size = rng.randrange(1, max(2, rate // 2))
        wait_us = limiter.may_send(size, now_us)
        if wait_us:
            # Also who asks too early, or with a clock that went back, gets no more.
            now_us += rng.choice((wait_us, wait_us // 2, 0, -5, SECOND))
        else:
            sent += size
            largest = max(largest, size)
        assert sent <= rate * (max(now_us, 0) + SECOND + 2 * BURST_US) // SECOND + largest


@pytest.mark.parametrize(
    ("text", "yes", "no"),
    [
        ("*", [(0, 0), (99, 7)], []),
        ("", [], [(0, 0)]),
        ("0:1, 3:2", [(0, 1), (3, 2)], [(0, 2), (3, 1), (1, 0)]),
    ],
)
def test_who_is_throttled(text: str, yes: list[tuple[int, int]], no: list[tuple[int, int]]) -> None:
    for name in ("leader", "follower"):
        key = topic_configs.TOPIC_CONFIGS[f"{name}.replication.throttled.replicas"]
        found = throttled(key.kind.parse(text))
        assert all(found.holds(*each) for each in yes)
        assert not any(found.holds(*each) for each in no)
    assert throttled(()) is NOBODY


@pytest.mark.parametrize("text", ["0", "0:", ":1", "*,0:1", "a:b", "0:1;1:2", "-1:2", "0:1:2"])
def test_what_names_no_replicas_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfigError, match="partition:node"):
        topic_configs.validate_topic({"leader.replication.throttled.replicas": text})
