"""When to try again, and after how long: exponential with full jitter, capped, with a deadline.

Pure: the caller gives the random generator and the time. "Full jitter" as in the AWS Architecture
Blog, "Exponential Backoff And Jitter" (2015): clients that failed together do not return together.
"""

import random
from dataclasses import dataclass

from dlog.errors import ConnectFailedError, DisconnectedError, RequestTimedOutError, WireError


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Bounds of retrying one call."""

    base_s: float = 0.05
    cap_s: float = 1.0
    deadline_s: float = 30.0

    def backoff_s(self, attempt: int, rng: random.Random) -> float:
        """Return how long to wait after failed attempt number `attempt`, counted from 0."""
        # 2.0 ** 1024 overflows; far below that the cap has won.
        return rng.uniform(0.0, min(self.cap_s, self.base_s * 2.0 ** min(attempt, 64)))


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The error is final, or the time is over: raise it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TryAgain:
    """Wait, then repeat the call, with fresh metadata where the error asks for it."""

    wait_s: float
    refresh_metadata: bool


Decision = GiveUp | TryAgain


def is_retriable(error: Exception) -> bool:
    """Return whether the same call may succeed later, leaving aside whether it may be repeated."""
    if isinstance(error, ConnectFailedError | DisconnectedError | RequestTimedOutError):
        return True
    return isinstance(error, WireError) and error.retriable


def is_outcome_unknown(error: Exception) -> bool:
    """Return whether the request may have taken effect although it failed."""
    return isinstance(error, DisconnectedError | RequestTimedOutError)


def plan_retry(
    policy: RetryPolicy,
    error: Exception,
    *,
    attempt: int,
    elapsed_s: float,
    rng: random.Random,
    idempotent: bool = True,
) -> Decision:
    """Decide what follows `error`; a call that is not `idempotent` is never sent twice."""
    if not is_retriable(error) or (not idempotent and is_outcome_unknown(error)):
        return GiveUp()
    wait_s = policy.backoff_s(attempt, rng)
    if elapsed_s + wait_s >= policy.deadline_s:
        return GiveUp()
    # After a lost connection the leader may be another node.
    refresh = not isinstance(error, WireError) or error.refresh_metadata
    return TryAgain(wait_s=wait_s, refresh_metadata=refresh or is_outcome_unknown(error))
