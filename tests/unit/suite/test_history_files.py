"""Histories in files: what is read is what was added, and is judged alike."""

from pathlib import Path
from uuid import UUID

from tests.histories.checkers import check
from tests.histories.files import Event, Facts, Recorder, Strike, Violation, load
from tests.histories.history import (
    EpochSeen,
    FinalLog,
    Follower,
    LogFacts,
    LogKey,
    Outcome,
    Poll,
    Seen,
    Send,
    Trim,
    WatermarkTold,
)

KEY = LogKey(UUID(int=1), "t", 0)
EVENTS: list[Event] = [
    Facts(KEY, LogFacts(flush_policy="interval", replicas=3)),
    Send("p", KEY, (1, 2), -1, 10, (7, 0, 0), 1, 15, Outcome.OK, 0),
    Send("q", KEY, (3,), -1, 11, None, 2, 16, Outcome.UNKNOWN, error="RequestTimedOutError"),
    Poll("c", KEY, 20, 25, 0, 2, 0, (Seen(0, 1, 5), Seen(1, 2, 6)), tailing=True),
    WatermarkTold("c", KEY, 26, 2),
    Trim(KEY, 26, 27, 1, 1),
    EpochSeen(KEY, 28, 29, 4),
    Follower("c", KEY),
    FinalLog(KEY, 1, 3, (Seen(1, 2, 6), Seen(2, 3, 7))),
    Strike(30, "kill all"),
    Violation("watermark: the end is 3 after 4"),
]


def test_a_history_comes_back_as_it_was(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.jsonl")
    for event in EVENTS:
        recorder.add(event)
    recorder.close()
    found = load([recorder.path])
    assert found == recorder.history
    assert found.sends[0].numbers == (1, 2) and found.sends[0].session == (7, 0, 0)
    assert check(found) == check(recorder.history)
    # The follower was never given what the third record holds.
    assert {text.split(":")[0] for text in check(found)} == {"watermark", "unseen"}
