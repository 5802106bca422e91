"""Damage above the high watermark: mended, too, or those that need the batch never get it."""

import pytest

from dlog.client.cluster.partition_calls import ACKS_LEADER, produce
from dlogd.storage.segment.segment_names import file_name
from tests.fakes.logs import batch_of
from tests.fakes.small_fleet import SmallFleet, tell

BATCH = bytes(batch_of(b"x" * 100))
COUNT = 8
BAD = 3
EPOCH_AT, RECORD_AT = 12, 70


async def _until_leads(fleet: SmallFleet, node_id: int) -> None:
    """Restart a node, so that nothing is in its memory, and have it lead again."""
    fleet.host(node_id).stop(downtime_ns=100_000_000)
    await fleet.until(lambda: not fleet.is_up(node_id))
    await fleet.until(lambda: fleet.is_up(node_id) and node_id in fleet.state("t").isr)

    async def elect() -> None:
        await fleet.admin.elect_leaders([("t", 0)])

    await fleet.retry(elect)
    await fleet.until(lambda: fleet.leader("t") == node_id)


@pytest.mark.parametrize("position", [EPOCH_AT, RECORD_AT])
def test_a_leader_mends_what_is_not_committed_for_a_follower_that_needs_it(position: int) -> None:
    """Without that follower too few are in sync, and nothing is committed (seed 193810)."""

    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t", min_insync_replicas="3")
        await fleet.produce("t", b"first")
        await fleet.until_in_sync("t")
        leader, (other, away) = fleet.leader("t"), fleet.followers("t")
        fleet.host(away).crash()
        await fleet.until(lambda: away not in fleet.state("t").isr)
        node = await fleet.cluster.leader("t", 0)
        for _ in range(COUNT):
            await produce(node, "t", 0, BATCH, acks=ACKS_LEADER)
        await fleet.until(lambda: fleet.replica(other, "t").log.flushed_offset == COUNT + 1)
        await _until_leads(fleet, leader)
        assert fleet.replica(leader, "t").high_watermark == 1, "what comes then is not committed"

        plog = fleet.replica(leader, "t").log
        file = plog.directory.open(file_name(0))
        start = len(file.pread(1 << 20, 0)) - len(BATCH) * (COUNT - BAD)
        file.pwrite(b"\xee", start + position)
        file.close()
        fleet.host(away).boot()
        await fleet.until(lambda: len(fleet.state("t").isr) == 3, 120)
        replicating = fleet.broker(leader).replicating
        assert replicating is not None and replicating.mender.counters.mended_total == 1
        assert fleet.leader("t") == leader
        assert fleet.replica(away, "t").log.log_end_offset == COUNT + 1
        await fleet.until(lambda: fleet.replica(leader, "t").high_watermark == COUNT + 1)
        assert len(await fleet.values("t")) == COUNT + 1

    tell(story, config={"scrub.interval": "-1", "flush.policy": "always"})
