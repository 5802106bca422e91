"""Log starts over all replicas: DeleteRecords and retention reach followers, and stay."""

from unittest import mock

import pytest

from dlog.client.cluster.partition_calls import delete_records
from dlog.errors import KafkaStorageError, RequestTimedOutError
from dlogd.storage.log.partition_log import PartitionLog
from tests.fakes.faults import Latency
from tests.fakes.small_fleet import SmallFleet, tell


def test_a_cluster_takes_records() -> None:
    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t")
        await fleet.produce("t", b"a", b"b", b"c")
        assert await fleet.values("t") == [b"a", b"b", b"c"]
        await fleet.until_in_sync("t")

    tell(story)


def test_deleted_records_stay_deleted_under_the_next_leader() -> None:
    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t")
        await fleet.produce("t", *[b"%d" % number for number in range(10)])
        leader = fleet.leader("t")
        node = await fleet.cluster.leader("t", 0)
        assert await delete_records(node, "t", {0: 7}) == {0: 7}
        starts = [fleet.replica(each, "t").log.log_start_offset for each in (1, 2, 3)]
        assert starts == [7, 7, 7], "nothing was written since, all the same"
        fleet.host(leader).crash()
        await fleet.until(lambda: fleet.leader("t") not in (leader, -1))
        assert fleet.replica(fleet.leader("t"), "t").log.log_start_offset == 7

    tell(story)


def test_a_replica_that_was_down_trims_before_it_joins() -> None:
    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t")
        await fleet.produce("t", *[b"%d" % number for number in range(10)])
        leader, (absent, other) = fleet.leader("t"), fleet.followers("t")
        fleet.host(absent).is_held_down = True
        fleet.host(absent).crash()
        await fleet.until(lambda: absent not in fleet.state("t").isr)
        node = await fleet.cluster.leader("t", 0)
        assert await delete_records(node, "t", {0: 4}) == {0: 4}, "it is not waited for"
        assert fleet.replica(other, "t").log.log_start_offset == 4

        joined: list[int] = []

        def look() -> bool:
            if absent in fleet.state("t").isr:
                joined.append(fleet.replica(absent, "t").log.log_start_offset)
            return bool(joined)

        fleet.host(absent).is_held_down = False
        fleet.host(absent).boot()
        for _ in range(200_000):
            if look():
                break
            await fleet.sleep(0.0002)
        assert joined == [4]
        assert fleet.leader("t") == leader

    tell(story)


def test_a_live_replica_that_does_not_follow_is_waited_for() -> None:
    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t")
        await fleet.produce("t", *[b"%d" % number for number in range(10)])
        slow = fleet.followers("t")[0]
        plog = fleet.replica(slow, "t").log

        stuck = True
        real = PartitionLog.trim_to

        async def trim_to(self: PartitionLog, offset: int) -> None:
            if self is plog and stuck:
                raise KafkaStorageError("not now")
            await real(self, offset)

        with mock.patch.object(PartitionLog, "trim_to", trim_to):
            node = await fleet.cluster.leader("t", 0)
            with pytest.raises(RequestTimedOutError):
                await delete_records(node, "t", {0: 5}, timeout_ms=1000)
            stuck = False
            assert await delete_records(node, "t", {0: 5}, timeout_ms=5000) == {0: 5}
            assert plog.log_start_offset == 5

    tell(story)


def test_a_trim_that_was_ahead_of_the_flush_is_not_forgotten() -> None:
    """The leader says once where it begins: who had not flushed that far trims later."""

    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t")
        await fleet.produce("t", *[b"%d" % number for number in range(5)])
        absent = fleet.followers("t")[0]
        fleet.host(absent).is_held_down = True
        fleet.host(absent).crash()
        await fleet.until(lambda: absent not in fleet.state("t").isr)
        await fleet.produce("t", *[b"%d" % number for number in range(5)])
        node = await fleet.cluster.leader("t", 0)
        assert await delete_records(node, "t", {0: -1}) == {0: 10}
        disk = fleet.host(absent).machine.disks["/data0"]
        disk.latency = Latency(fixed=0.2)
        fleet.host(absent).is_held_down = False
        fleet.host(absent).boot()
        await fleet.until(lambda: absent in fleet.state("t").isr)
        assert fleet.replica(absent, "t").log.log_start_offset == 10

    tell(story)


def test_retention_reaches_followers_of_an_idle_partition() -> None:
    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t", segment_bytes="2000", retention_ms="3000")
        await fleet.produce("t", *[b"x" * 500] * 12)
        ends = {each: fleet.replica(each, "t").log.log_end_offset for each in (1, 2, 3)}
        assert set(ends.values()) == {12}
        await fleet.until(
            lambda: (
                [fleet.replica(each, "t").log.log_start_offset for each in (1, 2, 3)] == [12] * 3
            )
        )
        assert await fleet.values("t", start=12) == []

    tell(story, config={"retention.check.interval": "200ms"})


def test_a_follower_may_not_be_beyond_its_leaders_start_for_ever() -> None:
    """A topic that keeps records for longer again: a new replica begins where the leader does."""

    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t", replicas=1)
        await fleet.produce("t", *[b"%d" % number for number in range(10)])
        node = await fleet.cluster.leader("t", 0)
        await delete_records(node, "t", {0: 3})
        nodes = [fleet.leader("t"), *(n for n in (1, 2, 3) if n != fleet.leader("t"))]
        await fleet.admin.alter_reassignments({("t", 0): nodes})
        await fleet.until(lambda: len(fleet.state("t").isr) == 3)
        starts = [fleet.replica(each, "t").log.log_start_offset for each in (1, 2, 3)]
        assert starts == [3, 3, 3]

    tell(story)
