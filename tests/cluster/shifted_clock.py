"""`dlogd` with a wall clock that is wrong: `shifted_clock SECONDS [arguments of dlogd]`.

SIGUSR1 puts the clock back by an hour. The monotonic clock stays what it is, as on a host.
"""

import signal
import sys
import time

from dlogd.__main__ import main

BACK_S = 3_600


class Shift:
    """How wrong the clock is."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def back(self, _number: int, _frame: object) -> None:
        """Put the clock back."""
        self.seconds -= BACK_S


def shift_wall_clock(shift: Shift) -> None:
    """Let everybody in this process see the wrong time."""
    right, right_ns = time.time, time.time_ns
    time.time = lambda: right() + shift.seconds
    time.time_ns = lambda: right_ns() + int(shift.seconds * 1e9)


if __name__ == "__main__":
    SHIFT = Shift(float(sys.argv.pop(1)))
    shift_wall_clock(SHIFT)
    signal.signal(signal.SIGUSR1, SHIFT.back)
    sys.exit(main())
