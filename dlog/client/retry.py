"""Retry policy: exponential backoff with full jitter, capped, with a deadline.

Pure: the caller gives the random generator and the time. "Full jitter" as in the AWS Architecture
Blog, "Exponential Backoff And Jitter" (2015): clients that failed together do not return together.
Also what an error says of what the client knows: of a leader, of a node, of its connection.
"""

import random
from dataclasses import dataclass
from enum import Enum

from dlog.errors import (
    BrokerNotAvailableError,
    ConnectFailedError,
    DisconnectedError,
    NotControllerError,
    ProtocolError,
    RequestTimedOutError,
    TransportError,
    UnknownLeaderEpochError,
    WireError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Bounds of retrying one call, and of the look-ups that it needs."""

    base_s: float = 0.05
    cap_s: float = 1.0
    deadline_s: float = 30.0
    """A call ends by then, whatever happens; 0: one attempt, as long as the requests may take."""
    lookup_timeout_s: float = 5.0
    """How long one node may take to tell who leads what."""
    patience_s: float = 0.5
    """When a node has not told by then, the next one is asked as well."""
    metadata_age_s_max: float = 300.0
    """What is known of a topic is asked for again after this time."""

    def backoff_s(self, attempt: int, rng: random.Random) -> float:
        """Return how long to wait after failed attempt number `attempt`, counted from 0."""
        # 2.0 ** 1024 overflows; far below that the cap has won.
        return rng.uniform(0.0, min(self.cap_s, self.base_s * 2.0 ** min(attempt, 64)))


class Fault(Enum):
    """What an error says about the client's knowledge."""

    NONE = "none"
    """Nothing: the node is right, the request or the moment is not."""
    LEADER = "leader"
    """The leader may be another node: look it up."""
    CONNECTION = "connection"
    """The connection is broken, or was never made: drop it, look up what the node led."""
    SILENCE = "silence"
    """Nobody answered in time: look up what the node led; the connection judges itself."""


def fault_of(error: Exception) -> Fault:
    """Return what an error says about the client's knowledge."""
    if isinstance(error, RequestTimedOutError):
        return Fault.SILENCE
    if isinstance(error, TransportError | ProtocolError):
        return Fault.CONNECTION
    if isinstance(error, UnknownLeaderEpochError | BrokerNotAvailableError):
        return Fault.LEADER
    if isinstance(error, NotControllerError) or not isinstance(error, WireError):
        return Fault.NONE
    return Fault.LEADER if error.refresh_metadata else Fault.NONE


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
    if isinstance(error, TransportError):
        return error.was_sent
    return isinstance(error, ProtocolError)


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
    refresh = fault_of(error) is not Fault.NONE or isinstance(error, NotControllerError)
    return TryAgain(wait_s=wait_s, refresh_metadata=refresh)
