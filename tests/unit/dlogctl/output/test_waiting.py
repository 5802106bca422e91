"""A wait ends when nothing new is seen; what comes back is nothing new."""

import pytest

from dlogctl.output import watch
from dlogctl.output.watch import Waiting


def test_only_what_is_new_prolongs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(watch.time, "monotonic", lambda: now_s)
    waiting = Waiting(10.0)
    looks = [("a", 0, False), ("b", 9, False), ("a", 9, False), ("b", 1, True), ("c", 0, False)]
    for look, pause_s, is_over in looks:
        now_s += pause_s
        waiting.note(look)
        assert waiting.is_over is is_over, (look, now_s)
