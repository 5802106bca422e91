"""Latencies in buckets of at most 1 % width, from one microsecond to an hour.

Pure. Like an HDR histogram: as many buckets per doubling as keep the relative error, so that the
tail is as exact as the middle and a long run takes no more memory than a short one.
"""

import math
from collections.abc import Sequence

STEPS = 72
"""Buckets per doubling: each is 2 ** (1 / 72), about 0.97 %, wide."""
LEAST_S = 1e-6
MOST_S = 3600.0
_COUNT = math.ceil(math.log2(MOST_S / LEAST_S) * STEPS) + 1

PERCENTILES = (50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99)
BAR_CELLS = 50
_EIGHTHS = " ▏▎▍▌▋▊▉█"


class Histogram:
    """Counts of durations in seconds."""

    __slots__ = ("_counts", "count", "least_s", "most_s", "total_s")

    def __init__(self) -> None:
        self._counts = [0] * _COUNT
        self.count = 0
        self.total_s = 0.0
        self.least_s = math.inf
        self.most_s = 0.0

    def add(self, duration_s: float, count: int = 1) -> None:
        """Count a duration so many times; what is out of range counts as the nearest in it."""
        bounded = min(max(duration_s, LEAST_S), MOST_S)
        self._counts[int(math.log2(bounded / LEAST_S) * STEPS)] += count
        self.count += count
        self.total_s += duration_s * count
        self.least_s = min(self.least_s, duration_s)
        self.most_s = max(self.most_s, duration_s)

    def merge(self, other: "Histogram") -> None:
        """Add all that another one counted."""
        self._counts = [a + b for a, b in zip(self._counts, other._counts, strict=True)]
        self.count += other.count
        self.total_s += other.total_s
        self.least_s = min(self.least_s, other.least_s)
        self.most_s = max(self.most_s, other.most_s)

    @property
    def mean_s(self) -> float:
        """The mean, exact; 0 when there is nothing."""
        return self.total_s / self.count if self.count else 0.0

    def percentile(self, percent: float) -> float:
        """Return the duration that `percent` of all do not exceed, within 1 %; 0 for nothing."""
        wanted = max(1, math.ceil(self.count * percent / 100))
        seen = 0
        for index, count in enumerate(self._counts):
            seen += count
            if seen >= wanted:
                return min(self.most_s, max(self.least_s, _upper(index)))
        return 0.0

    def rows(self, row_count: int) -> list[tuple[float, float, int]]:
        """Return (from, to, count) of about `row_count` equal steps on a logarithmic scale.

        They span the durations there are, up to the 99.9th percentile; the last row has the rest.
        """
        used = [index for index, count in enumerate(self._counts) if count]
        if not used:
            return []
        first, last = used[0], used[-1]
        knee = self.percentile(99.9)
        stop = next((i for i in range(first, last + 1) if _upper(i) >= knee), last) + 1
        width = max(1, math.ceil((stop - first) / row_count))
        found = [
            (_upper(low - 1), _upper(low + width - 1), sum(self._counts[low : low + width]))
            for low in range(first, stop, width)
        ]
        end = first + len(found) * width
        rest = sum(self._counts[end:])
        if rest:
            found.append((_upper(end - 1), self.most_s, rest))
        return found


def _upper(index: int) -> float:
    return float(LEAST_S * 2.0 ** ((index + 1) / STEPS))


def format_latency(seconds: float) -> str:
    """Return a latency in the unit that suits it, three digits."""
    for size, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def bars(rows: Sequence[tuple[float, float, int]], *, ascii_only: bool = False) -> list[str]:
    """Return rows as bars of text, the longest `BAR_CELLS` long."""
    most = max((count for _, _, count in rows), default=0)
    lines = []
    for low, high, count in rows:
        eighths = round(BAR_CELLS * 8 * count / most) if count else 0
        eighths = max(1, eighths) if count else 0
        if ascii_only:
            bar = "#" * max(1, round(eighths / 8)) if count else ""
        else:
            bar = "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")
        place = f"{format_latency(low):>8} .. {format_latency(high):>8}"
        lines.append(f"{place}  {count:>9}  {bar}".rstrip())
    return lines
