"""What a leader knows of its followers: whom the watermark waits for, who may join, who lags."""

import pytest

from dlog.types import LeaderEpoch, NodeId, Offset, PartitionEpoch
from dlogd.replication.partition.leader_state import FollowerProgress, Leadership, LeaderState

TWO, THREE, FOUR = NodeId(2), NodeId(3), NodeId(4)


def led(
    isr: tuple[NodeId, ...] = (TWO, THREE),
    *,
    followers: tuple[NodeId, ...] = (TWO, THREE),
    min_isr: int = 1,
    start: int = 0,
) -> LeaderState:
    state = LeaderState(LeaderEpoch(5), Offset(start))
    facts = Leadership(followers=followers, isr=isr, min_isr=min_isr)
    state.update(facts, now_ms=0)
    for node_id in followers:
        state.followers[node_id].begin(node_epoch=7)
    return state


def says(state: LeaderState, node_id: NodeId, promised: int, end: int = 100, now: int = 0) -> None:
    state.followers[node_id].on_progress(promised, end, 100, now)


def test_the_watermark_is_the_least_that_all_in_sync_have_promised() -> None:
    state = led()
    assert state.watermark(50, 0) == 0  # nobody has said anything in this epoch
    says(state, TWO, 30)
    assert state.watermark(50, 0) == 0
    says(state, THREE, 20)
    assert state.watermark(50, 0) == 20
    assert state.watermark(10, 0) == 10  # the leader counts with what it has promised itself
    assert state.watermark(10, 15) == 15  # never back


def test_who_is_out_of_sync_does_not_hold_the_watermark() -> None:
    state = led(isr=(TWO,))
    says(state, TWO, 30)
    says(state, THREE, 5)
    assert state.watermark(50, 0) == 30


def test_the_watermark_rests_while_the_isr_is_too_small() -> None:
    """KIP-966: whoever left such an ISR has all that was acknowledged, and stays eligible."""
    state = led(isr=(), min_isr=2)
    assert state.watermark(50, 10) == 10
    assert led(isr=(), min_isr=1).watermark(50, 10) == 50


def test_h6_an_expansion_counts_from_before_it_is_proposed() -> None:
    state = led(isr=(TWO,))
    says(state, TWO, 30)
    says(state, THREE, 25)
    state.propose((THREE,))
    assert state.maximal_isr == (TWO, THREE)
    assert state.watermark(50, 0) == 25
    facts = Leadership(followers=(TWO, THREE), isr=(TWO,), partition_epoch=PartitionEpoch(0))
    state.update(facts, now_ms=0)
    assert state.maximal_isr == (TWO, THREE)  # the image that it was proposed against, once more
    state.withdraw()
    assert state.watermark(50, 0) == 30


def test_a_newer_image_settles_what_was_proposed() -> None:
    state = led(isr=(TWO,))
    state.propose((THREE,))
    newer = PartitionEpoch(1)
    state.update(
        Leadership(followers=(TWO, THREE), isr=(TWO, THREE), partition_epoch=newer), now_ms=0
    )
    assert state.maximal_isr == (TWO, THREE) and not state.pending
    assert state.isr_count == 3


def test_h8_what_was_promised_in_an_earlier_life_does_not_count() -> None:
    state = led()
    says(state, TWO, 30)
    says(state, THREE, 30)
    state.followers[TWO].begin(node_epoch=8)
    assert state.watermark(50, 20) == 20
    says(state, TWO, 25)
    assert state.watermark(50, 20) == 25


@pytest.mark.parametrize(
    ("promised", "watermark", "start", "may"),
    [(20, 20, 0, True), (19, 20, 0, False), (20, 10, 21, False), (21, 10, 21, True)],
)
def test_h3_only_who_has_all_that_counts_may_join(
    promised: int, watermark: int, start: int, may: bool
) -> None:
    state = led(isr=(TWO,), start=start)
    says(state, THREE, promised)
    follower = state.followers[THREE]
    follower.log_start_offset = Offset(2)
    assert state.may_join(follower, watermark, 2) is may
    assert not state.may_join(follower, watermark, 3)  # it would show what was deleted
    follower.end()
    assert not state.may_join(follower, watermark, 2)  # nobody follows any more


def test_h9_a_node_without_a_replica_is_no_follower() -> None:
    state = led(isr=(TWO, FOUR))
    assert state.isr == (TWO,) and FOUR not in state.followers
    state.propose((FOUR,))
    assert state.maximal_isr == (TWO,)


def test_lag_is_a_time_also_for_who_never_says_anything() -> None:
    state = led()
    assert state.laggards(100, 1000, 1000) == []
    assert state.laggards(100, 1001, 1000) == [TWO, THREE]


def test_who_always_has_what_there_was_a_moment_ago_does_not_lag() -> None:
    """Under load nobody ever has all: what counts is when it had what there was before."""
    progress = FollowerProgress(TWO, 0)
    progress.begin(1)
    for now_ms in range(100, 5000, 100):
        # Each time it has what the leader had at its last word.
        progress.on_progress(now_ms - 100, now_ms, now_ms, now_ms)
        assert progress.is_caught_up(now_ms, now_ms, 200)
    stuck = progress.promised_offset
    for now_ms in range(5000, 5500, 100):
        progress.on_progress(stuck, now_ms, now_ms, now_ms)
    assert not progress.is_caught_up(6000, 5500, 200)


def test_who_is_behind_by_the_way_of_its_words_does_not_lag() -> None:
    """It says something each millisecond, and each word is on its way for ten."""
    progress = FollowerProgress(TWO, 0)
    progress.begin(1)
    for now_ms in range(20, 5000):
        progress.on_progress(now_ms - 20, now_ms - 10, now_ms, now_ms)
        assert progress.is_caught_up(now_ms, now_ms, 50)
    for now_ms in range(5000, 5100):
        progress.on_progress(4980, 4990, now_ms, now_ms)
    assert not progress.is_caught_up(5100, 5100, 50)


def test_who_has_all_there_is_never_lags() -> None:
    progress = FollowerProgress(TWO, 0)
    progress.begin(1)
    progress.on_progress(10, 10, 10, 5)
    assert progress.is_caught_up(10, 1_000_000, 1)
    assert progress.is_caught_up(11, 1_000_001, 1)  # it had all one millisecond ago
    assert not progress.is_caught_up(11, 1_000_002, 1)


def test_the_watermark_waits_a_moment_for_who_is_about_to_join() -> None:
    """Else a follower whose word is older than the watermark never joins under load."""
    state = led(isr=(TWO,))
    three = state.followers[THREE]
    three.log_start_offset = Offset(0)
    says(state, TWO, 40)
    three.on_progress(10, 10, 20, 1000)
    state.wait_for(three, 0, 1000)
    assert not state.awaited, "one word says nothing about how far it is behind"
    three.on_progress(20, 20, 30, 1010)
    state.wait_for(three, 1, 1010)
    assert not state.awaited, "its log begins too early"
    state.wait_for(three, 0, 1010)
    assert state.awaited == (THREE,) and state.watermark(50, 0) == 20
    assert not state.stop_waiting(1500)
    assert state.stop_waiting(2500) and state.watermark(50, 0) == 40
    state.wait_for(three, 0, 3000)
    assert not state.awaited, "it was waited for in vain"
    state.wait_for(three, 0, 20_000)
    assert state.release(THREE) and not state.awaited and state.watermark(50, 0) == 40
    assert not state.release(THREE)
