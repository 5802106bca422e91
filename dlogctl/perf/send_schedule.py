"""Schedule of sends in a `perf` run: at a rate, or as fast as possible. Pure."""

from dataclasses import dataclass

TICK_S = 0.005
"""At a rate, records are sent in groups this far apart, or one by one where fewer are due."""
GROUP_RECORDS = 500
"""As fast as it goes, so many at once."""


@dataclass(slots=True, kw_only=True)
class Pace:
    """The schedule of a run. Invariant: `sent` never exceeds what is due or wanted."""

    rate: float | None
    """Records per second; None: no limit."""
    records_max: int | None
    duration_s: float | None
    sent: int = 0

    def next_group(self, elapsed_s: float) -> tuple[int, float] | None:
        """Return how many records to send, and when they were due (seconds since the start).

        When they are due later than now, wait until then. None: it is over. Latency is counted
        from when a record was due, so that a stall is not left out of it.
        """
        left = None if self.records_max is None else self.records_max - self.sent
        if left is not None and left <= 0:
            return None
        if self.duration_s is not None and elapsed_s >= self.duration_s:
            return None
        if self.rate is None:
            count, due_s = GROUP_RECORDS, elapsed_s
        else:
            count = max(1, int(self.rate * TICK_S))
            # The last record of the group is due then.
            due_s = (self.sent + count) / self.rate
            if self.duration_s is not None and due_s > self.duration_s:
                return None
        count = count if left is None else min(count, left)
        self.sent += count
        return count, due_s
