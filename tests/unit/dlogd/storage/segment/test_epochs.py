"""The history of leader epochs; the rules of KIP-101 and KIP-279, and the file."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.types import LeaderEpoch, Offset
from dlogd.storage.io import checkpoint_files
from dlogd.storage.io.checkpoint_files import MalformedFileError
from dlogd.storage.segment import leader_epochs
from dlogd.storage.segment.leader_epochs import EpochHistory

NONE = (-1, -1)


def history(*entries: tuple[int, int]) -> EpochHistory:
    return EpochHistory([(LeaderEpoch(epoch), Offset(start)) for epoch, start in entries])


def end(found: EpochHistory, epoch: int, log_end: int = 100) -> tuple[int, int]:
    return found.end_offset_for(LeaderEpoch(epoch), Offset(log_end))


def test_only_news_are_noted() -> None:
    found = history((1, 0))
    assert not found.assign(LeaderEpoch(1), Offset(7))
    assert found.assign(LeaderEpoch(3), Offset(9))
    assert not found.assign(LeaderEpoch(-1), Offset(12))
    assert found.entries == [(1, 0), (3, 9)]
    assert found.latest == 3


def test_what_contradicts_a_new_entry_goes() -> None:
    assert history((1, 0), (2, 10), (3, 20), (2, 15)).entries == [(1, 0), (2, 15)]
    assert history((1, 0), (2, 10), (4, 10)).entries == [(1, 0), (4, 10)]
    assert history((5, 50), (6, 30)).entries == [(6, 30)]


def test_end_of_an_epoch() -> None:
    found = history((2, 10), (4, 30), (7, 60))
    assert end(found, 2) == (2, 30)
    assert end(found, 3) == (2, 30)
    assert end(found, 4) == (4, 60)
    assert end(found, 7) == (7, 100)


def test_end_of_epochs_that_the_log_does_not_know() -> None:
    found = history((2, 10), (4, 30))
    assert end(found, 5) == NONE
    assert end(found, -1) == NONE
    assert end(found, 1) == (1, 10)
    assert end(history(), 0) == NONE


def test_epoch_of_an_offset() -> None:
    found = history((2, 10), (4, 30))
    assert [found.epoch_at(Offset(at)) for at in (9, 10, 29, 30, 99)] == [-1, 2, 2, 4, 4]


def test_truncation_forgets_what_begins_at_or_after() -> None:
    found = history((2, 10), (4, 30))
    assert not found.truncate_to(Offset(31))
    assert found.truncate_to(Offset(30))
    assert found.entries == [(2, 10)]
    assert found.truncate_to(Offset(0))
    assert found.latest == -1


def test_trimming_keeps_the_epoch_that_holds_the_new_start() -> None:
    found = history((2, 10), (4, 30), (5, 40))
    assert not found.trim_to(Offset(5))
    assert not found.trim_to(Offset(10))
    assert found.trim_to(Offset(35))
    assert found.entries == [(4, 35), (5, 40)]
    assert found.trim_to(Offset(40))
    assert found.entries == [(5, 40)]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 30)), max_size=12))
def test_entries_ascend_whatever_is_assigned(entries: list[tuple[int, int]]) -> None:
    found = history(*entries).entries
    assert found == sorted(found)
    assert len({epoch for epoch, _ in found}) == len({start for _, start in found}) == len(found)
    if entries:
        assert found[-1][0] == entries[-1][0]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2**62)), max_size=12))
def test_the_file_gives_back_what_was_saved(entries: list[tuple[int, int]]) -> None:
    found = history(*entries)
    assert leader_epochs.decode(found.encode()).entries == found.entries


@given(st.binary(max_size=80), st.data())
def test_other_bytes_are_refused(noise: bytes, data: st.DataObject) -> None:
    with pytest.raises(MalformedFileError):
        leader_epochs.decode(noise)
    good = bytearray(history((1, 0), (2, 77)).encode())
    at = data.draw(st.integers(0, len(good) - 1))
    good[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(MalformedFileError):
        leader_epochs.decode(bytes(good))


@pytest.mark.parametrize("payload", ["2 10\n1 20\n", "1 10\n2 5\n", "x 1\n", "1\n", "-1 0\n"])
def test_entries_that_no_history_has_are_refused(payload: str) -> None:
    with pytest.raises(MalformedFileError):
        leader_epochs.decode(checkpoint_files.encode(leader_epochs.KIND, payload))
