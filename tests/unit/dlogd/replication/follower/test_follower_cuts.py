"""How a follower's log is cut, and what is known beside it."""

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from dlog.errors import CorruptMessageError, NotLeaderOrFollowerError, OffsetOutOfRangeError
from dlog.types import LeaderEpoch, Offset
from dlogd.replication.follower import divergence
from dlogd.replication.partition.partition import Partition
from tests.fakes.front import Front
from tests.fakes.led_partition import batch, check


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO])
def test_who_does_not_know_its_producers_after_a_cut_does_not_lead(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(front: Front, partition: Partition) -> None:
        data = batch(producer_id=7, producer_epoch=0, base_sequence=0)
        for part in (data, batch()):
            partition.append_as_leader(part, 0, len(part), 1)
        partition.follow(LeaderEpoch(3), NotLeaderOrFollowerError("another leads"))
        real = divergence.load_producers

        async def broken(*_: Any) -> bool:
            assert partition.is_cutting
            monkeypatch.setattr(divergence, "load_producers", real)
            raise OSError(number, "the snapshot cannot be read")

        monkeypatch.setattr(divergence, "READ_AGAIN_S", 0.01)
        monkeypatch.setattr(divergence, "load_producers", broken)
        cutter = divergence.Divergence(front.clock, lambda _: False)
        try:
            await cutter.truncate_to(partition, Offset(1))
        except OSError:
            assert partition.log.failed is not None
        else:
            assert len(partition.producers) == 1

    check(scenario, tmp_path)


def test_a_cut_within_a_batch_takes_the_watermark_with_all_of_it(tmp_path: Path) -> None:
    """Else what is appended in its place counts as committed before it is on any disk."""

    async def scenario(front: Front, partition: Partition) -> None:
        data = batch(count=3)
        partition.append_as_leader(data, 0, len(data), 1)
        await partition.log.flush()
        assert partition.high_watermark == 3
        partition.follow(LeaderEpoch(3), NotLeaderOrFollowerError("another leads"))
        await divergence.Divergence(front.clock, lambda _: False).truncate_to(partition, Offset(2))
        assert (partition.high_watermark, partition.log.log_end_offset) == (0, 0)
        partition.lead(LeaderEpoch(4))
        data = batch()
        partition.append_as_leader(data, 0, len(data), -1)
        assert not partition.is_safe(1, -1)

    check(scenario, tmp_path)


async def filled(partition: Partition, *segments: int) -> None:
    """Write segments of so many batches, follow, and let nothing of them stay in memory."""
    plog = partition.log
    for number, count in enumerate(segments):
        if number:
            plog.roll()
        for _ in range(count):
            data = batch()
            partition.append_as_leader(data, 0, len(data), 1)
        await plog.flush()
    for segment in plog.segments:
        segment.tail.forget_all()
    partition.follow(LeaderEpoch(3), NotLeaderOrFollowerError("another leads"))


def damage(partition: Partition, offset: int, at: int = 2) -> None:
    """Let a byte of the batch rot that holds an offset, of its base offset; each has one record."""
    segment = partition.log.segment_of(offset)
    with Path(segment.path).open("r+b") as file:
        file.seek(len(batch()) * (offset - segment.base_offset) + at)
        file.write(b"\1")


@pytest.mark.parametrize(
    ("segments", "log_start", "target", "end"),
    [((3,), 0, 2, 0), ((3, 3), 0, 5, 3), ((4,), 1, 3, 1)],
)
def test_where_a_cut_would_be_in_a_damaged_place_the_leader_sends_the_segment_again(
    segments: tuple[int, ...], log_start: int, target: int, end: int, tmp_path: Path
) -> None:
    """Rot that the replica alone has would keep it away from its leader for ever."""

    async def scenario(front: Front, partition: Partition) -> None:
        plog, has_others = partition.log, False
        await filled(partition, *segments)
        await plog.trim_to(log_start)
        damage(partition, target)
        cutter = divergence.Divergence(front.clock, lambda _: has_others)
        before = plog.log_end_offset
        with pytest.raises(CorruptMessageError, match="is damaged"):
            await cutter.truncate_to(partition, Offset(target))
        assert plog.log_end_offset == before  # it may have the only copy of what is whole
        has_others = True
        await cutter.truncate_to(partition, Offset(target))
        assert (plog.log_start_offset, plog.log_end_offset) == (log_start, end)
        assert partition.high_watermark <= end
        partition.lead(LeaderEpoch(4))
        data = batch()
        partition.append_as_leader(data, 0, len(data), 1)
        await plog.flush()
        assert not plog.damage.places

    check(scenario, tmp_path)


def test_a_cut_behind_a_damaged_place_needs_no_segment_anew(tmp_path: Path) -> None:
    async def scenario(front: Front, partition: Partition) -> None:
        plog = partition.log
        await filled(partition, 4)
        damage(partition, 0)
        cutter = divergence.Divergence(front.clock, lambda _: False)
        await cutter.truncate_to(partition, Offset(2))
        assert (plog.log_start_offset, plog.log_end_offset) == (0, 2)

    check(scenario, tmp_path)


@pytest.mark.parametrize("at", [2, 9], ids=["base offset", "length"])
def test_a_cut_behind_a_damaged_place_leaves_a_log_that_works(at: int, tmp_path: Path) -> None:
    """Its heads cannot all be read: the log failed in the middle of the cut (seed 218015)."""

    async def scenario(front: Front, partition: Partition) -> None:
        plog = partition.log
        await filled(partition, 6, 2)
        first = plog.segments[0]
        newest = first.max_timestamp_ms
        for offset in (1, 7):
            damage(partition, offset, at)
            await plog.locate(offset)
        assert len(plog.damage.places) == 2
        assert newest > 0
        first.max_timestamp_ms = 2 * newest
        await divergence.Divergence(front.clock, lambda _: True).truncate_to(partition, Offset(3))
        assert (plog.log_start_offset, plog.log_end_offset, plog.failed) == (0, 3, None)
        assert first.max_timestamp_ms == newest, "as in the batches that are whole"
        (place,) = plog.damage.places
        assert (place.first_offset, place.next_offset) == (1, 2), "it is still to be mended"
        data = batch()
        partition.lead(LeaderEpoch(4))
        partition.append_as_leader(data, 0, len(data), 1)
        await plog.flush()
        assert plog.log_end_offset == 4

    check(scenario, tmp_path)


def test_a_trim_that_comes_before_a_cut_takes_the_watermark_with_the_start(tmp_path: Path) -> None:
    """The cut fails, for its end is below the start by then."""

    async def scenario(front: Front, partition: Partition) -> None:
        await filled(partition, 3)
        plog, cutter = partition.log, divergence.Divergence(front.clock, lambda _: False)
        async with plog._maintenance.lock:
            work = (plog.trim_to(2), cutter.truncate_to(partition, Offset(1)))
            both = asyncio.gather(*work, return_exceptions=True)
            while partition.high_watermark > 1:
                await asyncio.sleep(0)
        assert isinstance((await both)[1], OffsetOutOfRangeError)
        assert (plog.log_start_offset, partition.high_watermark) == (2, 2)

    check(scenario, tmp_path)
