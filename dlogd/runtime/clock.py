"""Clock: the only source of time for the daemon.

Everything below `dlogd.__main__` receives a `Clock`; the simulation passes one that follows its
virtual event loop.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic and wall time; the two are never mixed in one expression."""

    def now_ms(self) -> int:
        """Return monotonic milliseconds."""

    def now_us(self) -> int:
        """Return monotonic microseconds."""

    def timestamp_ms(self) -> int:
        """Return wall-clock milliseconds since the Unix epoch."""


# Runs while the host sleeps, where there is one: a lease must not outlast the controller's count.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The host's own clocks."""

    def now_ms(self) -> int:
        return time.clock_gettime_ns(_CLOCK) // 1_000_000

    def now_us(self) -> int:
        return time.clock_gettime_ns(_CLOCK) // 1_000

    def timestamp_ms(self) -> int:
        return time.time_ns() // 1_000_000
