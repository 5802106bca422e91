"""The retry policy: growth, cap, jitter, deadline, and what is never repeated."""

import random
import statistics

import pytest

from dlog.client.retry import GiveUp, RetryPolicy, TryAgain, is_outcome_unknown, plan_retry
from dlog.errors import (
    ConnectFailedError,
    DisconnectedError,
    InvalidTopicError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    ProtocolError,
    RequestTimedOutError,
)

POLICY = RetryPolicy(base_s=0.1, cap_s=1.0, deadline_s=10.0)


def plan(error: Exception, **given: object) -> GiveUp | TryAgain:
    arguments = {"attempt": 0, "elapsed_s": 0.0, "rng": random.Random(1)} | given
    return plan_retry(POLICY, error, **arguments)  # type: ignore[arg-type]


def test_waits_grow_up_to_the_cap_and_are_spread_over_the_whole_range() -> None:
    rng = random.Random(7)
    for attempt, most in ((0, 0.1), (1, 0.2), (3, 0.8), (4, 1.0), (5000, 1.0)):
        waits = [POLICY.backoff_s(attempt, rng) for _ in range(2000)]
        assert 0 <= min(waits) < most * 0.05
        assert most * 0.95 < max(waits) <= most
        assert statistics.mean(waits) == pytest.approx(most / 2, rel=0.1)


def test_the_same_seed_waits_the_same() -> None:
    first, second = (
        [POLICY.backoff_s(n, rng) for n in range(9)] for rng in (random.Random(3), random.Random(3))
    )
    assert first == second


def test_final_errors_are_final() -> None:
    for error in (InvalidTopicError("x"), ProtocolError("x"), ValueError("x")):
        assert isinstance(plan(error), GiveUp)


def test_retriable_errors_say_whether_metadata_is_stale() -> None:
    for error, refresh in (
        (NotLeaderOrFollowerError(), True),
        (NotEnoughReplicasError(), False),
        (DisconnectedError("x"), True),
        (ConnectFailedError("x"), True),
        (RequestTimedOutError("x"), True),
    ):
        decision = plan(error)
        assert isinstance(decision, TryAgain)
        assert decision.refresh_metadata is refresh, error


def test_a_call_that_may_have_worked_is_not_repeated_unless_it_may_be() -> None:
    for error in (DisconnectedError("x"), RequestTimedOutError("x")):
        assert is_outcome_unknown(error)
        assert isinstance(plan(error, idempotent=False), GiveUp)
    assert not is_outcome_unknown(ConnectFailedError("x"))
    assert isinstance(plan(ConnectFailedError("x"), idempotent=False), TryAgain)
    assert isinstance(plan(NotLeaderOrFollowerError(), idempotent=False), TryAgain)


def test_the_deadline_holds() -> None:
    assert isinstance(plan(NotLeaderOrFollowerError(), elapsed_s=9.0), TryAgain)
    assert isinstance(plan(NotLeaderOrFollowerError(), elapsed_s=10.0), GiveUp)
    # Not a wait that would end behind it either.
    for seed in range(50):
        rng = random.Random(seed)
        left_s = POLICY.backoff_s(0, rng)
        for spare_s, decision in ((-1e-9, GiveUp), (1e-9, TryAgain)):
            found = plan_retry(
                POLICY,
                NotLeaderOrFollowerError(),
                attempt=0,
                elapsed_s=POLICY.deadline_s - left_s - spare_s,
                rng=random.Random(seed),
            )
            assert isinstance(found, decision)
