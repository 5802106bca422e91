"""Percentiles of latencies, in microseconds."""

from collections.abc import Sequence


def percentile(ordered: Sequence[int], share: float) -> float:
    """Return the value below which `share` of the ordered nanoseconds lie, in microseconds."""
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] / 1000


def summary(nanoseconds: list[int]) -> dict[str, float]:
    """Return p50, p99, p99.9 and the largest."""
    ordered = sorted(nanoseconds)
    return {
        "p50_us": percentile(ordered, 0.5),
        "p99_us": percentile(ordered, 0.99),
        "p999_us": percentile(ordered, 0.999),
        "max_us": percentile(ordered, 1.0),
    }
