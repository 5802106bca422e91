"""The demo's verdict: it must not say "nothing was lost" when something was."""

from collections import defaultdict

import pytest

from scripts import flights
from scripts.ledger import Ledger, Verdict, judge


def ledger(partition: int, *numbers: int) -> Ledger:
    """Return a ledger in which these flights were acknowledged from offset 0 on."""
    acknowledged: dict[int, dict[int, int]] = defaultdict(dict)
    acknowledged[partition] = dict(enumerate(numbers))
    return Ledger(acknowledged=acknowledged, count=len(numbers))


@pytest.mark.parametrize(
    ("read", "verdict"),
    [
        ([(0, 5), (1, 7), (2, 9)], Verdict(0, 0, 0, 0)),
        # Written and never acknowledged: allowed.
        ([(0, 5), (1, 7), (2, 9), (3, 11)], Verdict(0, 0, 0, 0)),
        ([(0, 5), (1, 7)], Verdict(1, 0, 0, 0)),
        ([(0, 5), (2, 9)], Verdict(1, 0, 1, 0)),
        ([(0, 5), (1, 9), (2, 7)], Verdict(2, 0, 1, 0)),
        ([(0, 5), (1, 7), (2, 9), (3, 9)], Verdict(0, 1, 1, 0)),
        ([(0, 5), (1, 7), (2, 9), (3, flights.COUNT)], Verdict(0, 0, 0, 1)),
        ([], Verdict(3, 0, 0, 0)),
    ],
)
def test_the_verdict(read: list[tuple[int, int]], verdict: Verdict) -> None:
    found = judge(ledger(1, 5, 7, 9), {1: read})
    assert found == verdict
    assert found.good == (verdict == Verdict(0, 0, 0, 0))


def test_a_partition_that_is_not_read_at_all_is_missing() -> None:
    assert judge(ledger(1, 5, 7, 9), {0: []}).missing == 3


def test_the_flights_are_all_there() -> None:
    events = flights.load()
    assert len(events) == flights.COUNT
    assert events[0].key == b"UA1545"
    assert events[0].value.startswith(b'{"number":0,"year":2013')
    assert max(len(event.value) for event in events) < 1000
