"""What the demo's producer was told, and how that compares with what is read back. Pure."""

from array import array
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

from scripts.flights import COUNT

Found = dict[int, list[tuple[int, int]]]
"""Of each partition (offset, number of the flight) as it came."""


@dataclass
class Ledger:
    """What was acknowledged: for each partition, offset -> number of the flight; and when."""

    acknowledged: dict[int, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    count: int = 0
    refused: list[str] = field(default_factory=list)
    moments: dict[int, "array[float]"] = field(default_factory=lambda: defaultdict(_floats))
    """Of each partition the times of its acknowledgements, in order."""
    longest_s: float = 0.0
    """From handing a record over to its acknowledgement."""
    killed_s: float = float("inf")
    answered_s: dict[int, float] = field(default_factory=dict)
    """Of each partition when a record was acknowledged that was sent after the kill."""

    def acknowledge(
        self, number: int, partition: int, offset: int, sent_s: float, now_s: float
    ) -> None:
        """Note an acknowledgement."""
        self.acknowledged[partition][offset] = number
        self.moments[partition].append(now_s)
        self.count += 1
        self.longest_s = max(self.longest_s, now_s - sent_s)
        if sent_s > self.killed_s:
            self.answered_s.setdefault(partition, now_s)

    def pause_s(self, partition: int) -> float:
        """Return the longest time without an acknowledgement of a partition."""
        moments = self.moments[partition]
        return max((late - early for early, late in pairwise(moments)), default=0.0)


def _floats() -> "array[float]":
    return array("d")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the comparison found; all zero is what is promised."""

    missing: int
    repeated: int
    out_of_order: int
    unexpected: int

    @property
    def good(self) -> bool:
        """Whether the promise was kept."""
        return not (self.missing or self.repeated or self.out_of_order or self.unexpected)


def judge(ledger: Ledger, found: Found) -> Verdict:
    """Compare what was acknowledged with what was read."""
    missing = out_of_order = unexpected = 0
    seen: dict[int, int] = defaultdict(int)
    for partition, acknowledged in ledger.acknowledged.items():
        by_offset = dict(found.get(partition, ()))
        missing += sum(by_offset.get(offset) != number for offset, number in acknowledged.items())
    for records in found.values():
        for (offset, number), (next_offset, next_number) in pairwise(records):
            out_of_order += next_offset != offset + 1 or next_number <= number
        for _, number in records:
            seen[number] += 1
            unexpected += not 0 <= number < COUNT
    repeated = sum(count - 1 for count in seen.values())
    return Verdict(missing, repeated, out_of_order, unexpected)
