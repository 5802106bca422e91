"""The demo's verdict: it must not say "nothing was lost" when something was."""

import asyncio
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scripts import demo, flights
from scripts.ledger import Ledger, Verdict, judge
from scripts.patience import LateError, Patience
from scripts.sandbox import Sandbox, SandboxError
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


def test_patience_lasts_as_long_as_something_comes() -> None:
    patience = Patience(30, 100.0)
    for now_s, count in [(130, 0), (159, 1), (189, 1), (190, 3), (220, 3)]:
        patience.look("read", count, 1000, now_s)
    with pytest.raises(LateError, match=r"^not read in time: 3 of 1,000, then nothing came"):
        patience.look("read", 3, 1000, 221)


class SlowConsumer:
    """aiokafka's, on a machine where a poll takes 20 s; from `stop_at` on nothing comes."""

    stop_at = flights.COUNT
    now_s = 1000.0
    count = 0

    def __init__(self, **_: Any) -> None:
        type(self).count = 0

    async def __aenter__(self) -> "SlowConsumer":
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is held."""

    def assign(self, partitions: list[Any]) -> None:
        """Read them all."""
        self.partitions = partitions

    async def end_offsets(self, partitions: list[Any]) -> dict[Any, int]:
        """Each has ten records."""
        return dict.fromkeys(partitions, 10)

    async def getmany(self, **_: Any) -> dict[Any, list[Any]]:
        """Return a record of one partition, if there is to be one."""
        cls = type(self)
        cls.now_s += 20
        if cls.count >= cls.stop_at:
            return {}
        offset, index = divmod(cls.count, len(self.partitions))
        cls.count += 1
        record = SimpleNamespace(offset=offset, value=b'{"number": %d}' % (cls.count - 1))
        return {self.partitions[index]: [record]}


def read_slowly(monkeypatch: pytest.MonkeyPatch, stop_at: int) -> dict[int, list[tuple[int, int]]]:
    """Let the demo read with a slow consumer."""
    monkeypatch.setattr(SlowConsumer, "stop_at", stop_at)
    monkeypatch.setattr(demo, "AIOKafkaConsumer", SlowConsumer)
    monkeypatch.setattr(demo, "time", SimpleNamespace(monotonic=lambda: SlowConsumer.now_s))
    return asyncio.run(demo._read("", lambda _: None))


def test_what_is_read_slowly_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    found = read_slowly(monkeypatch, flights.COUNT)
    assert {index: len(records) for index, records in found.items()} == dict.fromkeys(range(4), 10)


def test_what_is_not_read_in_time_is_called_that(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LateError, match=r"^not read in time: 7 of 40, then nothing came for 30 s$"):
        read_slowly(monkeypatch, 7)


class MuteProducer:
    """confluent-kafka's, without an answer; a poll takes as long as it may, but a second at least.

    The first `answered` records are acknowledged.
    """

    answered = 0
    now_s = 1000.0

    def __init__(self, _: Any) -> None:
        self._told: list[Any] = []

    def __len__(self) -> int:
        return 1

    def produce(self, _topic: str, _value: bytes, _key: bytes, *, on_delivery: Any) -> None:
        """Take a record."""
        self._told.append(on_delivery)

    def poll(self, timeout_s: float) -> None:
        """Acknowledge one."""
        cls = type(self)
        cls.now_s += max(1.0, timeout_s)
        if cls.answered and self._told:
            cls.answered -= 1
            offset = cls.answered
            self._told.pop(0)(None, SimpleNamespace(partition=lambda: 0, offset=lambda: offset))


def produce_slowly(monkeypatch: pytest.MonkeyPatch, error: str, tmp_path: Path) -> None:
    """Let the demo write 100 records, of which 90 are answered, and the node return or not."""
    monkeypatch.setattr(MuteProducer, "answered", 90)
    monkeypatch.setattr(demo, "Producer", MuteProducer)
    monkeypatch.setattr(demo, "time", SimpleNamespace(monotonic=lambda: MuteProducer.now_s))
    monkeypatch.setattr(demo.Crash, "choose", lambda self: setattr(self, "error", error))
    events = [flights.Event(b"key", b"value")] * 100
    demo.produce(events, Sandbox(tmp_path, "", {}))


def test_what_is_not_acknowledged_in_time_is_called_that(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(LateError, match=r"^not acknowledged in time: 90 of 100, then nothing came"):
        produce_slowly(monkeypatch, "", tmp_path)
    with pytest.raises(SandboxError, match=r"^node 1 did not return$"):
        produce_slowly(monkeypatch, "node 1 did not return", tmp_path)


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
