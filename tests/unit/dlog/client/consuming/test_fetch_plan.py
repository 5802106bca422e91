"""What a node is asked for next: fairness, bounds, and nobody waiting behind an idle partition."""

import random

import pytest

from dlog.client.consuming.fetch_plan import HELD_BACK_WAIT_MS, FetchLimits, FetchPlan, plan_fetch
from dlog.client.consuming.fetched_batches import scan
from dlog.client.consuming.partition_cursor import PartitionCursor
from dlog.client.gaps import Gap, GapReason
from dlog.client.views import PartitionLeader
from dlog.errors import NotLeaderOrFollowerError
from dlog.transport import Address
from dlog.types import PartitionId, TopicPartition
from tests.fakes.batches import batch, joined

LEADER = PartitionLeader(node_id=1, address=Address("localhost", 1), leader_epoch=2)
LIMITS = FetchLimits(max_wait_ms=500)


def cursor(number: int, batches: int = 0) -> PartitionCursor:
    """Return a cursor with some batches at hand."""
    made = PartitionCursor(TopicPartition("t", PartitionId(number)), 0)
    made.leader = LEADER
    for _ in range(batches):
        data = joined([batch(made.fetch_offset)])
        made.add(scan(data, made.fetch_offset)[0])
    return made


def plan(*cursors: PartitionCursor, bytes_max: int = 1000, now_s: float = 0.0) -> FetchPlan:
    """Return the plan for these cursors."""
    return plan_fetch(cursors, now_s=now_s, node_bytes_max=bytes_max, limits=LIMITS)


def numbers(made: FetchPlan) -> list[int]:
    """Return which partitions are asked for."""
    return [each.cursor.topic_partition.partition for each in made.asked]


def test_all_that_have_room_are_asked_for_in_the_order_of_their_turn() -> None:
    made = plan(cursor(2), cursor(0), cursor(1))
    assert numbers(made) == [2, 0, 1]
    assert made.bytes_max == 1000
    assert made.max_wait_ms == 500
    assert made.due_s is None


def test_who_cannot_go_on_is_left_out() -> None:
    paused, lost, gone, failed = cursor(0), cursor(1), cursor(2), cursor(3)
    paused.is_paused = True
    lost.leader = None
    gone.gap = Gap(
        topic_partition=gone.topic_partition,
        reason=GapReason.RETENTION,
        offset=0,
        resume_offset=5,
    )
    failed.failure = NotLeaderOrFollowerError("moved")
    assert numbers(plan(paused, lost, gone, failed, cursor(4))) == [4]
    nothing = plan(paused, lost, gone, failed)
    assert not nothing.asked
    assert nothing.due_s is None


def test_who_waits_after_an_error_shortens_the_wait_of_the_others() -> None:
    waiting = cursor(0)
    waiting.fail(NotLeaderOrFollowerError("moved"), 10.0, 0.2, 30.0)
    made = plan(waiting, cursor(1), now_s=10.0)
    assert numbers(made) == [1]
    assert made.max_wait_ms == 199 or made.max_wait_ms == 200
    alone = plan(waiting, now_s=10.0)
    assert not alone.asked
    assert alone.due_s == 10.2
    assert numbers(plan(waiting, now_s=10.2)) == [0]


def test_a_full_partition_waits_and_the_node_does_not_wait_long_for_the_others() -> None:
    full = cursor(0, batches=3)
    size = full.buffered_bytes
    made = plan(full, cursor(1), bytes_max=2 * size)
    assert numbers(made) == [1]
    assert made.bytes_max == size
    assert made.max_wait_ms == HELD_BACK_WAIT_MS
    full.take_records(3)
    assert numbers(plan(full, cursor(1), bytes_max=2 * size)) == [0, 1]


def test_nothing_is_asked_for_when_there_is_little_room() -> None:
    full, other = cursor(0, batches=3), cursor(1)
    size = full.buffered_bytes
    assert not plan(full, other, bytes_max=size).asked
    assert not plan(full, other, bytes_max=size * 5 // 4).asked
    assert numbers(plan(full, other, bytes_max=size * 3 // 2)) == [1]


def test_paused_partitions_give_way_when_there_is_no_room() -> None:
    paused = cursor(0, batches=3)
    paused.is_paused = True
    size = paused.buffered_bytes
    made = plan(paused, cursor(1), bytes_max=4 * size)
    assert made.released_bytes == 0
    assert made.bytes_max == 3 * size
    made = plan(paused, cursor(1), bytes_max=size)
    assert numbers(made) == [1]
    assert made.released_bytes == made.bytes_max == size
    assert not paused.has_data
    assert paused.fetch_offset == paused.position == 0


def test_what_is_at_hand_stays_within_the_bound_and_everybody_gets_some() -> None:
    """Answers of any size up to what was asked for; a reader that takes from one at a time."""
    rng = random.Random(7)
    size = len(batch(0))
    cursors = [cursor(number) for number in range(5)]
    bytes_max = 12 * size
    read = dict.fromkeys(range(5), 0)
    for _ in range(2000):
        made = plan(*cursors, bytes_max=bytes_max)
        left = made.bytes_max
        assert left + sum(each.buffered_bytes for each in cursors) <= bytes_max or not made.asked
        for asked in made.asked:
            count = min(left // size, rng.randrange(3))
            left -= count * size
            for _ in range(count):
                start = asked.cursor.fetch_offset
                # Every batch of this test has one size.
                asked.cursor.add(scan(joined([batch(start % 10)]), start % 10)[0])
                asked.cursor.fetch_offset = start
        held = sum(each.buffered_bytes for each in cursors)
        assert held <= bytes_max
        taker = rng.choice(cursors)
        if taker.has_data:
            read[taker.topic_partition.partition] += 1
            taker.rewind()
    assert all(read.values())


@pytest.mark.parametrize(
    "wrong",
    [
        {"prefetch_bytes_max": 0},
        {"partition_bytes_max": -1},
        {"max_wait_ms": -1},
        {"max_wait_ms": 1 << 31},
        {"min_bytes": -1},
    ],
)
def test_limits_that_make_no_sense(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        FetchLimits(**wrong)  # type: ignore[arg-type]


def test_more_than_a_request_can_say_is_not_asked_for() -> None:
    assert plan(cursor(0), bytes_max=1 << 40).bytes_max == (1 << 31) - 1
