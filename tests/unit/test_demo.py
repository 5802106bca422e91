"""The demo's verdict: it must not say "nothing was lost" when something was."""

from collections import defaultdict
from pathlib import Path

import pytest

from scripts import flights
from scripts.ledger import Ledger, Verdict, judge
from scripts.timeline import Timeline, draw, lines, timeline


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


def shown(columns_max: int = 100) -> Timeline:
    """Return ten seconds: one partition that was hit with a gap from 4 to 6, one without."""
    hit = [100 + each / 10 for each in range(100) if not 40 <= each < 60]
    others = [100 + each / 10 for each in range(100)]
    return timeline(100, 110, [hit], [others], [(104, "killed"), (109.5, "back")], columns_max)


def test_the_timeline_counts_every_acknowledgement_once() -> None:
    for columns_max in (40, 100, 1000):
        found = shown(columns_max)
        assert (sum(found.hit), sum(found.others)) == (80, 100)
        assert len(found.hit) <= columns_max + 1
        assert found.events == [(4, "killed"), (9.5, "back")]


def test_the_picture_in_the_terminal_shows_the_gap_and_the_events() -> None:
    text = [line.plain for line in lines(shown(50))]
    gap = text[6].index(" ")
    assert 4 <= (gap - 1) * 0.2 <= 4.2
    assert " " not in text[14].rstrip()
    assert text[7].startswith("└0 s") and "5 s" in text[7]
    assert text[-2].index("↑ 4.0 s: killed") == gap
    # No room at the right: the words stand before the arrow.
    assert text[-1].endswith("9.5 s: back ↑")
    assert max(map(len, text[-2:])) <= 52


def test_the_picture_is_written(tmp_path: Path) -> None:
    draw(shown(), "a title", tmp_path / "new" / "demo.png")
    assert (tmp_path / "new" / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_the_ledger_tells_how_long_it_took() -> None:
    found = Ledger()
    for number, (sent_s, acked_s) in enumerate([(1.0, 1.1), (1.2, 3.0), (2.9, 3.1)]):
        if number == 1:
            found.killed_s = 2.0
        found.acknowledge(number, 0, number, sent_s, acked_s)
    assert found.count == 3
    assert found.longest_s == pytest.approx(1.8)
    assert found.pause_s(0) == pytest.approx(1.9)
    assert found.pause_s(1) == 0
    assert found.answered_s == {0: 3.1}
