"""`dlogctl produce` with a producer that a test plays: what is told when it ends too soon."""

import json
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from dlog.client.futures import BatchResult, Delivery, UnknownOutcomeError
from dlog.errors import ConnectFailedError, UnknownTopicOrPartitionError
from dlogctl.__main__ import main
from dlogctl.commands import produce
from tests.fakes.accumulators import Quiet


class Played:
    """Takes two records, whose outcome is never known, and does with the third what it is told."""

    def __init__(self) -> None:
        self.on_third: Callable[[], Any] = lambda: None
        self.batch = BatchResult(0, Quiet())
        self.taken = 0
        self.timeouts_ms: list[int | None] = []

    def start(self) -> None:
        """Be ready."""

    def send_many(self, _topic: str, _records: Any) -> None:
        """Know the topic."""

    def send(self, *_record: Any) -> Delivery:
        if self.taken == 2:
            self.on_third()
            raise AssertionError("nothing has ended it")
        self.taken += 1
        return Delivery(self.batch, self.taken - 1, 0)

    def close(self, timeout_ms: int | None = None) -> None:
        self.timeouts_ms.append(timeout_ms)
        self.batch.settle(error=UnknownOutcomeError("no answer"))


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    made = Played()
    monkeypatch.setattr(produce, "Producer", lambda *_arguments, **_options: made)
    pieces = [b"one\ntwo\nthree\nfour\n"]
    monkeypatch.setattr(os, "read", lambda *_: pieces.pop() if pieces else b"")
    return made


def told(capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any], list[str]]:
    code = main(["produce", "events", "-o", "json", "--bootstrap", "127.0.0.1:1"])
    captured = capsys.readouterr()
    return code, json.loads(captured.out)[0], captured.err.splitlines()


LOST = "dlogctl: lines 1-2: it is not known whether written: no answer"


def test_a_second_interrupt_in_a_send_that_waits_names_what_is_unknown(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt() -> None:
        signal.raise_signal(signal.SIGINT)  # it waits for memory: the cluster does not answer
        signal.raise_signal(signal.SIGINT)

    played.on_third = interrupt
    code, summary, said = told(capsys)
    assert (code, summary["unknown"]) == (1, 2)
    given_up = "line 3: interrupted; it may have been written; nothing behind it was sent"
    assert said == [LOST, f"dlogctl: {given_up}"]
    assert played.timeouts_ms == [0], "it waits no longer"


@pytest.mark.parametrize(
    "error", [UnknownTopicOrPartitionError("it was deleted"), ConnectFailedError("nobody there")]
)
def test_what_was_sent_before_the_topic_went_is_told(
    played: Played, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def fail() -> None:
        raise error

    played.on_third = fail
    code, summary, said = told(capsys)
    assert (code, summary["unknown"]) == (1, 2)
    assert said == [LOST, f"dlogctl: line 3: {error}; nothing behind it was sent"]
    assert played.timeouts_ms == [None]
