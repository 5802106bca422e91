"""When an I/O counts as one that hangs."""

from dlogd.storage.io.hung_disk import LOOKS, HangDetector


def test_what_was_there_at_all_looks_of_a_timeout_hangs() -> None:
    patience = HangDetector()
    assert [patience.look(["a", "b"]) for _ in range(LOOKS + 1)] == [False] * LOOKS + [True]


def test_what_comes_and_goes_does_not_hang() -> None:
    patience = HangDetector()
    for number in range(10 * LOOKS):
        assert not patience.look([number, number + 1])


def test_what_has_ended_and_begins_again_is_counted_anew() -> None:
    patience = HangDetector()
    for _ in range(LOOKS):
        assert not patience.look(["a"])
    assert not patience.look([])
    assert not patience.look(["a"])
