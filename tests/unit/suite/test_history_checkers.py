"""The judges of histories: each finds its breach, and none complains about a good history."""

from uuid import UUID

import pytest

from tests.histories.checkers import check
from tests.histories.history import (
    EpochSeen,
    FinalLog,
    Follower,
    History,
    LogFacts,
    LogKey,
    Outcome,
    Poll,
    Seen,
    Send,
    TimeSeen,
    Trim,
    WatermarkTold,
)
from tests.histories.offset_checkers import watermarks_fallen_back

KEY = LogKey(UUID(int=1), "t", 0)


def sent(number: int, offset: int, start: int, **changes: object) -> Send:
    """Return an acknowledged send of one record."""
    send = Send("p", KEY, (number,), -1, start)
    send.attempts, send.completed_ns = 1, start + 5
    send.outcome, send.base_offset = Outcome.OK, offset
    for name, value in changes.items():
        setattr(send, name, value)
    return send


def final(*numbers: int, start: int = 0) -> dict[LogKey, FinalLog]:
    """Return a final log that holds these records."""
    records = tuple(Seen(start + index, number) for index, number in enumerate(numbers))
    return {KEY: FinalLog(KEY, start, start + len(numbers), records)}


def timed(*times_ms: int) -> dict[LogKey, FinalLog]:
    """Return a final log of records with these timestamps."""
    records = tuple(Seen(number, number, ms) for number, ms in enumerate(times_ms))
    return {KEY: FinalLog(KEY, 0, len(times_ms), records)}


def polled(start: int, *records: tuple[int, int], watermark: int = 100, trimmed: int = 0) -> Poll:
    """Return what a tailing consumer was given."""
    seen = tuple(Seen(offset, number) for offset, number in records)
    first = records[0][0] if records else 0
    return Poll("c", KEY, start, start + 5, first, watermark, trimmed, seen, tailing=True)


GOOD = History(
    sends=[sent(1, 0, 10), sent(2, 1, 20), sent(3, 2, 30, outcome=Outcome.UNKNOWN)],
    polls=[polled(40, (0, 1), watermark=2), polled(50, (1, 2), (2, 3), watermark=3)],
    watermarks=[WatermarkTold("c", KEY, 41, 2), WatermarkTold("late", KEY, 52, 1)],
    trims=[Trim(KEY, 60, 65, 1, 1)],
    epochs=[EpochSeen(KEY, 1, 2, 0), EpochSeen(KEY, 3, 4, 1)],
    followers=[Follower("c", KEY), Follower("late", KEY, 3)],
    finals=final(2, 3, start=1),
)

BAD: dict[str, list[History]] = {
    "lost-write": [
        History(sends=[sent(1, 0, 10), sent(2, 1, 20)], finals=final(1)),
        History(sends=[sent(1, -1, 10)], finals=final()),
        History(
            sends=[sent(1, 0, 10), sent(2, 1, 20)],
            finals=final(9, 2),
            facts={KEY: LogFacts(flush_policy="never")},
            power_cuts_ns=[100],
        ),
    ],
    "lost-read": [History(polls=[polled(10, (0, 1))], finals=final())],
    "inconsistent-offsets": [
        History(polls=[polled(10, (0, 1)), polled(20, (0, 2))]),
        History(sends=[sent(1, 0, 10)], polls=[polled(20, (0, 2))]),
    ],
    "duplicate": [
        History(sends=[sent(1, 0, 10, session=(1, 0, 0), attempts=3)], finals=final(1, 1)),
        History(sends=[sent(1, 0, 10)], finals=final(1, 1)),
    ],
    "phantom": [
        History(finals=final(7)),
        History(sends=[sent(1, -1, 10, outcome=Outcome.REFUSED)], polls=[polled(20, (0, 1))]),
        History(
            sends=[sent(1, 0, 10, key=LogKey(UUID(int=2), "t", 0))],
            finals=final(1),
            facts={KEY: LogFacts(damaged=True)},
        ),
    ],
    "torn-batch": [
        History(sends=[sent(1, 0, 10), sent(2, -1, 20, numbers=(2, 3))], finals=final(1, 2)),
    ],
    "nonmonotonic-send": [
        History(sends=[sent(1, 1, 10), sent(2, 0, 20)], finals=final(2, 1)),
        History(
            sends=[sent(1, 1, 10, session=(1, 0, 0)), sent(2, 0, 11, session=(1, 0, 1))],
            finals=final(2, 1),
        ),
    ],
    "nonmonotonic-poll": [
        History(polls=[polled(10, (0, 1), (1, 2)), polled(20, (1, 2))]),
        History(polls=[polled(10, (1, 1), (0, 2))]),
    ],
    "poll-skip": [
        History(polls=[polled(10, (0, 1)), polled(20, (2, 3))]),
        History(polls=[polled(10, (0, 1), (2, 3))]),
        History(finals={KEY: FinalLog(KEY, 0, 2, (Seen(1, 1),))}),
    ],
    "unseen": [
        History(polls=[polled(10, (0, 1))], followers=[Follower("c", KEY)], finals=final(1, 2)),
        History(followers=[Follower("c", KEY, 1)], finals=final(1, 2)),
    ],
    "watermark": [
        History(polls=[polled(10, watermark=5), polled(20, watermark=4)]),
        History(sends=[sent(1, 7, 10)], polls=[polled(20, watermark=7)]),
        History(watermarks=[WatermarkTold("c", KEY, 10, 5)], polls=[polled(20, watermark=4)]),
        History(watermarks=[WatermarkTold("c", KEY, 10, 2)], finals=final(1)),
    ],
    "offsets-chain": [History(polls=[polled(10, watermark=5, trimmed=6)])],
    "resurrected": [History(trims=[Trim(KEY, 10, 15, 4, 4)], polls=[polled(20, (3, 1))])],
    "vanished": [History(trims=[Trim(KEY, 10, 15, 1, 1)], finals=final(1, start=2))],
    "early": [
        History(
            sends=[sent(1, 0, 10)],
            polls=[polled(20, watermark=1, trimmed=1)],
            facts={KEY: LogFacts(retention=True, kept_ms=1000)},
        )
    ],
    "timestamp": [
        History(times=[TimeSeen(KEY, 10, 15, 7, 1, 9)], finals=timed(8, 9)),
        History(times=[TimeSeen(KEY, 10, 15, 7, 0, 6)], finals=timed(6, 9)),
        History(times=[TimeSeen(KEY, 10, 15, 7, 0, 8)], finals=timed(7, 8)),
        History(
            sends=[sent(1, 0, 10)],
            times=[TimeSeen(KEY, 16, 20, 7, -1, -1)],
            finals={KEY: FinalLog(KEY, 0, 1, (Seen(0, 1, 7),))},
        ),
    ],
    "epoch": [History(epochs=[EpochSeen(KEY, 1, 2, 5), EpochSeen(KEY, 3, 4, 4)])],
}


def test_good_history_is_good() -> None:
    assert check(GOOD) == []


def test_a_time_may_be_found_or_not_while_its_record_is_sent() -> None:
    found = {KEY: FinalLog(KEY, 0, 1, (Seen(0, 1, 7),))}
    for answer in (TimeSeen(KEY, 12, 20, 7, -1, -1), TimeSeen(KEY, 12, 20, 7, 0, 7)):
        assert check(History(sends=[sent(1, 0, 10)], times=[answer], finals=found)) == []


def test_what_was_due_or_trimmed_is_not_deleted_early() -> None:
    history = History(
        sends=[sent(1, 0, 10), sent(2, 1, 950_000_000)],
        polls=[polled(950_000_000, watermark=2, trimmed=1)],
        facts={KEY: LogFacts(retention=True, kept_ms=1000)},
    )
    assert check(history) == []
    history.polls[0] = polled(950_000_010, watermark=2, trimmed=2)
    assert [text.split(":")[0] for text in check(history)] == ["early"]
    history.trims.append(Trim(KEY, 60, 65, 2, 2))
    assert check(history) == []


def test_watermarks_that_fall_back_in_answers_to_fetch_are_counted() -> None:
    told = [WatermarkTold("c", KEY, 10, 5), WatermarkTold("d", KEY, 20, 4)]
    assert watermarks_fallen_back(History(watermarks=told)) == 0
    history = History(
        watermarks=[*told, WatermarkTold("c", KEY, 30, 4)], finals=final(1, 2, 3, 4, 5)
    )
    assert watermarks_fallen_back(history) == 1
    assert not [text for text in check(history) if text.startswith("watermark")]


@pytest.mark.parametrize("name", sorted(BAD))
def test_each_breach_is_found(name: str) -> None:
    for history in BAD[name]:
        names = {text.split(":")[0] for text in check(history)}
        assert name in names, f"{names} in {history}"


def test_power_cut_may_take_the_end_of_a_weak_log_only() -> None:
    history = History(
        sends=[sent(1, 0, 10), sent(2, 1, 20), sent(3, 1, 200)],
        polls=[polled(30, (0, 1), (1, 2), watermark=2), polled(210, (1, 3), watermark=2)],
        finals=final(1, 3),
        power_cuts_ns=[100],
        facts={KEY: LogFacts(flush_policy="interval")},
    )
    assert check(history) == []
    history.facts[KEY].flush_policy = "always"
    names = {text.split(":")[0] for text in check(history)}
    assert {"lost-write", "lost-read", "inconsistent-offsets"} <= names


def test_a_leader_alone_promises_nothing_of_a_replicated_log() -> None:
    history = History(
        sends=[sent(1, 0, 10, acks=1), sent(2, 0, 20)],
        polls=[polled(40, (0, 2), watermark=1)],
        facts={KEY: LogFacts(replicas=3)},
        finals=final(2),
    )
    assert check(history) == []
    history.facts[KEY].replicas = 1
    names = {text.split(":")[0] for text in check(history)}
    assert {"lost-write", "inconsistent-offsets", "nonmonotonic-send"} <= names


def test_overlapping_calls_have_no_order() -> None:
    history = History(sends=[sent(1, 1, 10), sent(2, 0, 12)], finals=final(2, 1))
    assert check(history) == []
