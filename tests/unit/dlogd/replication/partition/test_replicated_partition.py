"""A partition that is led with followers: when acknowledgements leave, and who is told what."""

import asyncio
from pathlib import Path

import pytest

from dlog.errors import (
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OffsetNotAvailableError,
    RequestTimedOutError,
)
from dlog.types import LeaderEpoch, NodeId, PartitionEpoch
from dlogd.replication.partition.leader_state import WAIT_MS_MAX, Leadership
from dlogd.replication.partition.partition import Partition
from tests.fakes.front import Front, until
from tests.fakes.led_partition import Follower, Waiter, append, batch, check

TWO, THREE = NodeId(2), NodeId(3)


def led(partition: Partition, *, min_isr: int = 2, epoch: int = 3) -> tuple[Follower, Follower]:
    facts = Leadership(followers=(TWO, THREE), isr=(TWO, THREE), min_isr=min_isr)
    partition.lead(LeaderEpoch(epoch), facts)
    return Follower(partition, TWO), Follower(partition, THREE)


@pytest.mark.parametrize("how", ["it goes", "it begins anew"])
def test_who_dies_while_it_is_about_to_join_holds_nobody_up(tmp_path: Path, how: str) -> None:
    async def scenario(front: Front, partition: Partition) -> None:
        facts = Leadership(followers=(TWO, THREE), isr=(TWO,), min_isr=2)
        partition.lead(LeaderEpoch(3), facts)
        two, three = Follower(partition, TWO), Follower(partition, THREE)
        three.progress.log_start_offset = partition.log.log_start_offset
        three.promise(0)
        three.progress.behind_ms = 10
        assert partition.leader is not None
        assert partition.leader.wait_for(three.progress, 0, front.clock.now_ms())
        end = append(partition, batch())[1]
        await partition.log.flush()
        waiter = Waiter()
        partition.wait(end, -1, 60_000, waiter)
        two.promise(end)
        assert not waiter.settled, "it is waited for"
        if how == "it goes":
            three.progress.end()
            partition.unsubscribe(three)
        else:
            Follower(partition, THREE)
        assert waiter.settled and partition.high_watermark == end

    check(scenario, tmp_path)


def test_all_means_every_member_and_leader_means_the_leader(tmp_path: Path) -> None:
    async def scenario(front: Front, partition: Partition) -> None:
        two, three = led(partition)
        end = append(partition, batch())[1]
        assert (two.appends, three.appends) == (1, 1)  # before anything is flushed here
        all_, one = Waiter(), Waiter()
        partition.wait(end, -1, 60_000, all_)
        partition.wait(end, 1, 60_000, one)
        two.promise(end)
        assert not all_.settled and partition.high_watermark == 0
        await partition.log.flush()
        assert one.settled == [(0, None)] and not all_.settled
        assert partition.is_safe(end, 1) and not partition.is_safe(end, -1)
        three.promise(end)
        assert all_.settled == [(0, None)] and partition.high_watermark == end
        assert two.watermarks == three.watermarks == 1
        assert not partition.waiting_count

    check(scenario, tmp_path)


def test_who_loses_its_replicas_after_the_append_hears_why(tmp_path: Path) -> None:
    """NOT_ENOUGH_REPLICAS_AFTER_APPEND: the watermark rests, so it cannot be known (KIP-966)."""

    async def scenario(front: Front, partition: Partition) -> None:
        led(partition)
        waiter = Waiter()
        partition.wait(append(partition, batch())[1], -1, 50, waiter)
        alone = Leadership(followers=(TWO, THREE), min_isr=2, partition_epoch=PartitionEpoch(1))
        partition.lead(LeaderEpoch(3), alone)
        await partition.log.flush()
        assert partition.high_watermark == 0 and not waiter.settled
        await until(lambda: waiter.settled)
        assert isinstance(waiter.settled[0][1], NotEnoughReplicasAfterAppendError)
        with pytest.raises(NotEnoughReplicasError):
            append(partition, batch())

    check(scenario, tmp_path)


def test_l1_a_silent_follower_is_waited_for_until_it_leaves(tmp_path: Path) -> None:
    async def scenario(front: Front, partition: Partition) -> None:
        two, _ = led(partition)
        waiter, late = Waiter(), Waiter()
        end = append(partition, batch())[1]
        partition.wait(end, -1, 60_000, waiter)
        partition.wait(end, -1, 30, late)
        two.promise(end)
        await partition.log.flush()
        await until(lambda: late.settled)
        assert isinstance(late.settled[0][1], RequestTimedOutError) and not waiter.settled
        smaller = PartitionEpoch(1)
        facts = Leadership(followers=(TWO, THREE), isr=(TWO,), min_isr=2, partition_epoch=smaller)
        partition.lead(LeaderEpoch(3), facts)
        assert waiter.settled == [(0, None)]

    check(scenario, tmp_path)


def test_each_wait_for_others_ends_in_its_own_time(tmp_path: Path) -> None:
    """A short patience behind a long one is not kept waiting for that."""

    async def scenario(front: Front, partition: Partition) -> None:
        two, three = led(partition)
        await partition.log._flusher.freeze()
        patient, hasty, hastier = Waiter(), Waiter(), Waiter()
        for waiter, timeout_ms in ((patient, 60_000), (hasty, 400), (hastier, 0)):
            partition.wait(append(partition, batch())[1], -1, timeout_ms, waiter)
        partition.log._flusher.thaw()
        await partition.log.flush()
        await until(lambda: hastier.settled)
        assert not hasty.settled
        await until(lambda: hasty.settled)
        assert isinstance(hasty.settled[0][1], RequestTimedOutError) and hasty.drains == 1
        assert not patient.settled
        for each in (two, three):
            each.promise(partition.log.log_end_offset)
        assert patient.settled == [(0, None)]
        assert len(hasty.settled) == len(hastier.settled) == 1

    check(scenario, tmp_path)


def test_h5_a_deposed_leader_acknowledges_nothing(tmp_path: Path) -> None:
    async def scenario(front: Front, partition: Partition) -> None:
        two, three = led(partition)
        waiter = Waiter()
        end = append(partition, batch())[1]
        partition.wait(end, -1, 60_000, waiter)
        partition.follow(LeaderEpoch(4), NotLeaderOrFollowerError("another leads"))
        assert isinstance(waiter.settled[0][1], NotLeaderOrFollowerError)
        assert two.ended is not None and three.ended is not None
        two.promise(end)
        three.promise(end)
        await partition.log.flush()
        assert partition.high_watermark == 0 and len(waiter.settled) == 1

    check(scenario, tmp_path)


def test_a_new_epoch_counts_from_nothing_and_says_when_it_knows(tmp_path: Path) -> None:
    async def scenario(front: Front, partition: Partition) -> None:
        two, three = led(partition)
        end = append(partition, batch(count=3))[1]
        await partition.log.flush()
        two.promise(end)
        three.promise(1)
        assert partition.high_watermark == 1
        again_two, again_three = led(partition, epoch=4)
        assert two.ended is not None and partition.high_watermark == 1
        with pytest.raises(OffsetNotAvailableError):
            partition.check_watermark()
        again_two.promise(end)
        assert partition.high_watermark == 1
        again_three.promise(end)
        partition.check_watermark()
        assert partition.high_watermark == end

    check(scenario, tmp_path)


async def all_promised(partition: Partition) -> tuple[Follower, Follower, int]:
    """Lead, and let both followers have three records; return them and the log's end."""
    two, three = led(partition)
    end = append(partition, batch(count=3))[1]
    await partition.log.flush()
    for each in (two, three):
        each.promise(end)
    return two, three, end


def test_deletions_wait_for_the_logs_of_all_in_sync(tmp_path: Path) -> None:
    async def scenario(front: Front, partition: Partition) -> None:
        two, three, end = await all_promised(partition)
        await partition.log.trim_to(2)
        waiting = partition.trims.add(2)
        two.progress.log_start_offset = partition.log.log_start_offset
        two.promise(end)
        assert not waiting.done()
        three.progress.log_start_offset = partition.log.log_start_offset
        three.promise(end)
        assert waiting.done()
        lost = partition.trims.add(3)
        partition.follow(LeaderEpoch(4), NotLeaderOrFollowerError("another leads"))
        with pytest.raises(NotLeaderOrFollowerError):
            await asyncio.wait_for(lost, 1)

    check(scenario, tmp_path)


def test_deletions_are_not_acknowledged_while_the_isr_is_too_small(tmp_path: Path) -> None:
    """Who has left it is eligible, and would show the records again as leader."""

    async def scenario(front: Front, partition: Partition) -> None:
        two, _, end = await all_promised(partition)
        partition.lead(LeaderEpoch(3), Leadership(followers=(TWO, THREE), isr=(), min_isr=2))
        await partition.log.trim_to(2)
        waiting = partition.trims.add(2)
        partition.settle_trims()
        two.promise(end)
        assert not waiting.done()
        two.progress.log_start_offset = partition.log.log_start_offset
        partition.lead(LeaderEpoch(3), Leadership(followers=(TWO, THREE), isr=(TWO,), min_isr=2))
        assert waiting.done()

    check(scenario, tmp_path)


def test_what_is_not_safe_here_yet_is_not_acknowledged_by_who_leads_then(tmp_path: Path) -> None:
    """Elected uncleanly, it has heard before that others have what it was about to flush."""

    async def scenario(front: Front, partition: Partition) -> None:
        end = append(partition, batch())[1]
        partition.follow(LeaderEpoch(3), NotLeaderOrFollowerError("another leads"))
        partition.on_leader_watermark(end)
        assert partition.log.promised_offset == 0 and partition.high_watermark == end
        partition.lead(LeaderEpoch(4))
        assert not partition.is_safe(end, -1) and partition.high_watermark == 0
        await partition.log.flush()
        assert partition.is_safe(end, -1)

    check(scenario, tmp_path)


@pytest.mark.parametrize("how", ["it goes", "it takes too long", "its joining is refused"])
def test_a_deletion_does_not_wait_for_who_is_waited_for_no_more(tmp_path: Path, how: str) -> None:
    """Who was about to join, and does not, was the last whose log begins earlier."""

    async def scenario(front: Front, partition: Partition) -> None:
        facts = Leadership(followers=(TWO, THREE), isr=(TWO,), min_isr=2)
        partition.lead(LeaderEpoch(3), facts)
        two, three = Follower(partition, TWO), Follower(partition, THREE)
        end = append(partition, batch())[1]
        await partition.log.flush()
        for each in (two, three):
            each.progress.log_start_offset = partition.log.log_start_offset
            each.promise(end)
        assert partition.high_watermark == end and partition.leader is not None
        if how == "its joining is refused":
            partition.propose_isr([THREE])
        else:
            three.progress.behind_ms = 10
            assert partition.leader.wait_for(three.progress, 0, front.clock.now_ms())
        await partition.log.trim_to(end)
        waiting = partition.trims.add(end)
        two.progress.log_start_offset = partition.log.log_start_offset
        two.promise(end)
        assert not waiting.done(), "it may lead soon, and would show the records"
        if how == "it goes":
            three.progress.end()
            partition.unsubscribe(three)
        elif how == "it takes too long":
            assert partition.leader.stop_waiting(front.clock.now_ms() + WAIT_MS_MAX + 1)
            partition.look_at_watermark()
        else:
            partition.leader.withdraw()
            partition.look_at_watermark()
        assert waiting.done()

    check(scenario, tmp_path)
