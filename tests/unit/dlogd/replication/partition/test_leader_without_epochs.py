"""A leader whose log begins where all was deleted, and who is in sync and has not deleted yet."""

import asyncio
from typing import Any

import pytest

from dlogd.replication.partition.partition import Partition
from dlogd.storage.log.partition_log import PartitionLog
from tests.fakes.logs import batch_of
from tests.fakes.small_fleet import SmallFleet, tell


class LateTrims:
    """Logs that are slow to drop what is below their start; and to where logs were cut."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.slow: list[PartitionLog] = []
        self.may_trim = asyncio.Event()
        self.ends: list[int] = []
        trim_to, truncate_to = PartitionLog.trim_to, PartitionLog.truncate_to

        async def trim_late(plog: PartitionLog, offset: int) -> None:
            if plog in self.slow:
                await self.may_trim.wait()
            await trim_to(plog, offset)

        async def truncate(plog: PartitionLog, offset: int) -> None:
            await truncate_to(plog, offset)
            self.ends.append(plog.log_end_offset)

        monkeypatch.setattr(PartitionLog, "trim_to", trim_late)
        monkeypatch.setattr(PartitionLog, "truncate_to", truncate)


async def who_joins_after_all_is_deleted(fleet: SmallFleet, late: LateTrims) -> Partition:
    """Let node `new` begin where all is deleted, in sync; return the replica that has yet to."""
    await fleet.create("t", min_insync_replicas="1")
    old, new, other = map(int, fleet.state("t").replicas)
    assert fleet.leader("t") == old
    fleet.host(new).is_held_down = True
    fleet.host(new).crash()
    await fleet.until(lambda: new not in fleet.state("t").isr)
    await fleet.produce("t", b"a", b"b", b"c")
    led, held = fleet.replica(old, "t").log, fleet.replica(other, "t")
    late.slow.append(held.log)
    broker = fleet.broker(old)
    broker._loop.call_soon(broker._tasks.spawn, "trim", led.trim_to(3))
    await fleet.until(lambda: led.log_start_offset == 3)
    fleet.host(new).is_held_down = False
    fleet.host(new).boot()
    await fleet.until_in_sync("t")
    anew = fleet.replica(new, "t").log
    assert (anew.log_start_offset, anew.log_end_offset, anew.epochs.entries) == (3, 3, [])
    assert (held.log.log_start_offset, held.log.log_end_offset) == (0, 3)
    return held


@pytest.mark.parametrize("surplus", [0, 2])
def test_who_is_in_sync_is_never_cut_below_what_was_committed(
    surplus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`surplus`: batches that the old leader sent to it alone, and that never counted."""
    late = LateTrims(monkeypatch)

    async def story(fleet: SmallFleet) -> None:
        held = await who_joins_after_all_is_deleted(fleet, late)
        old, new, other = fleet.state("t").replicas
        led = fleet.replica(old, "t")

        def send_to_one() -> None:
            led._subscribers.pop(new)
            for _ in range(surplus):
                data: Any = batch_of(b"never counted")
                led.append_as_leader(data, 0, len(data), 1)

        fleet.broker(old)._loop.call_soon(send_to_one)
        await fleet.until(lambda: held.log.log_end_offset == 3 + surplus)
        fleet.host(old).is_held_down = True
        fleet.host(old).crash()
        await fleet.until(lambda: fleet.leader("t") == new and held.log.log_end_offset == 3)
        await fleet.sleep(1)
        assert late.ends == [3] * (surplus > 0) and other in fleet.state("t").isr
        assert (held.log.log_end_offset, held.high_watermark) == (3, 3)
        late.may_trim.set()
        await fleet.until(lambda: held.log.log_start_offset == 3)
        await fleet.retry(lambda: fleet.cluster.metadata("t", refresh=True))
        await fleet.produce("t", b"d")
        await fleet.until(lambda: held.high_watermark == 4)
        assert held.log.epochs.entries == fleet.replica(new, "t").log.epochs.entries
        assert await fleet.values("t", start=3) == [b"d"]

    tell(story)
