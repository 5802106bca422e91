"""Rate limiter of throttled replication: a token bucket on given time.

Pure: no clock. A throttle is for replicas that catch up (a reassignment, a node that was away): who
is in the ISR is counted, and never waits, or the throttle would cost producers (KIP-73). One object
for what a node sends as leader and one for what it takes as follower;
`dlogd.replication.leader.follower_sessions` and `dlogd.replication.follower.frame_applier` ask
them, the rates come from the configs of the cluster and of the node.

    wait_us = limiter.may_send(size_bytes, now_us)    # 0: counted, send it; else look again then
    limiter.count(size_bytes, now_us)                 # sent in any case
    wait_us = limiter.may_begin(expected_bytes, now_us)    # 0: ask for more
    limiter.pay(size_bytes, now_us)                   # when it has come
"""

BURST_US = 1_000_000
"""So much time's worth may go at once after a pause."""
WAIT_US_MAX = 1_000_000
"""Nobody is told to wait for longer: the rate may be raised meanwhile."""
DEBT_US_MAX = 5_000_000
"""What must be sent in any case holds others up for no longer than this."""
UNLIMITED = (1 << 63) - 1
"""Kafka's default of both rates."""


class RateLimiter:
    """Bytes per second, on average over some seconds.

    Anything may be sent while there is some allowance left, also when it is larger than that: the
    rest is owed by those that come later. So a frame of any size passes, and the average holds.
    Times are of one monotonic clock; one that goes back counts as standing still.
    """

    __slots__ = ("_at_us", "_left", "_rate", "sent_bytes")

    def __init__(self, rate: int = UNLIMITED, now_us: int = 0) -> None:
        """`rate` in bytes per second; 0 stops what is throttled, UNLIMITED throttles nothing."""
        self._rate = rate
        self._at_us = now_us
        # In millionths of a byte, so that no time is lost by rounding.
        self._left = rate * BURST_US
        self.sent_bytes = 0
        """All that was counted, also of who did not have to wait."""

    @property
    def rate(self) -> int:
        """Bytes per second."""
        return self._rate

    @property
    def is_limited(self) -> bool:
        """Whether there is a throttle at all."""
        return self._rate < UNLIMITED

    def set_rate(self, rate: int, now_us: int) -> None:
        """Use another rate from now on. What is owed is forgotten: it was owed to another rate."""
        if rate == self._rate:
            return
        self._rate = rate
        self._at_us = max(self._at_us, now_us)
        self._left = rate * BURST_US

    def may_send(self, size_bytes: int, now_us: int) -> int:
        """Return 0 and count what is sent, or the time in us after which to ask again."""
        if self._rate >= UNLIMITED:
            self.sent_bytes += size_bytes
            return 0
        self._earn(now_us)
        if self._left > 0:
            self._spend(size_bytes)
            return 0
        return self._wait_us()

    def may_begin(self, expected_bytes: int, now_us: int) -> int:
        """Return 0 when something may be asked for, beside `expected_bytes` that are on the way.

        Else the time in us after which to ask again. Nothing is counted before it is there.
        """
        if self._rate >= UNLIMITED:
            return 0
        self._earn(now_us)
        if self._left > expected_bytes * 1_000_000:
            return 0
        return WAIT_US_MAX if self._left > 0 else self._wait_us()

    def _wait_us(self) -> int:
        if self._rate <= 0:
            return WAIT_US_MAX
        # Until there is at least one whole byte.
        return min(WAIT_US_MAX, (1_000_000 - self._left) // self._rate + 1)

    def pay(self, size_bytes: int, now_us: int) -> None:
        """Count what `may_begin` let be asked for; of any size, it has to be paid for."""
        self._earn(now_us)
        self._spend(size_bytes)

    def count(self, size_bytes: int, now_us: int) -> None:
        """Count what did not have to ask."""
        self._earn(now_us)
        left = self._left
        self._spend(size_bytes)
        if self.is_limited:
            # It holds others up for a while only; what they owe already stays.
            self._left = max(self._left, min(left, -max(self._rate, 1) * DEBT_US_MAX))

    def _earn(self, now_us: int) -> None:
        passed_us = now_us - self._at_us
        if passed_us > 0:
            self._at_us = now_us
            self._left = min(self._left + passed_us * self._rate, self._rate * BURST_US)

    def _spend(self, size_bytes: int) -> None:
        self.sent_bytes += size_bytes
        self._left -= size_bytes * 1_000_000
