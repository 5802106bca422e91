"""A data directory fails under replicas: its own go away or move, the others are replicated on."""

import asyncio
import errno
from unittest import mock

import pytest

from dlog.client.cluster.partition_calls import ACKS_LEADER, delete_records, produce
from dlog.types import Offset
from dlogd.replication.follower.divergence import Divergence
from dlogd.replication.follower.followed_partition import HOLD_S
from dlogd.replication.partition.partition import Partition
from tests.fakes.faults import DiskFault
from tests.fakes.logs import batch_of
from tests.fakes.small_fleet import SmallFleet, tell

TOPICS = [f"t{number}" for number in range(6)]


def _mount_of(fleet: SmallFleet, node_id: int, topic: str) -> str:
    return "/" + fleet.replica(node_id, topic).log.directory.path.split("/")[1]


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_the_other_directories_go_on(role: str) -> None:
    async def story(fleet: SmallFleet) -> None:
        for topic in TOPICS:
            await fleet.create(topic, min_insync_replicas="2")
            await fleet.produce(topic, b"before")
        victim = fleet.leader("t0") if role == "leader" else fleet.followers("t0")[0]
        mount = _mount_of(fleet, victim, "t0")
        lost = [topic for topic in TOPICS if _mount_of(fleet, victim, topic) == mount]
        kept = [topic for topic in TOPICS if topic not in lost]
        assert lost and kept, "logs are spread over both disks"
        disk = fleet.host(victim).machine.disks[mount]
        disk.faults.append(DiskFault(("write", "sync"), errno.EIO))
        for topic in TOPICS:
            await fleet.produce(topic, b"after")
        await fleet.until(lambda: all(victim in fleet.state(topic).offline for topic in lost))
        for topic in lost:
            state = fleet.state(topic)
            assert victim not in state.isr and state.leader != victim and len(state.isr) == 2
        for topic in kept:
            await fleet.until_in_sync(topic)
            assert victim in fleet.state(topic).isr
        (failed,) = fleet.image.nodes[victim].failed_directory_ids  # type: ignore[index]
        assert failed
        for topic in TOPICS:
            # What a leader has appended and not acknowledged is sent again: perhaps it is there.
            found = list(dict.fromkeys(await fleet.values(topic)))
            assert found == [b"before", b"after"]
        assert any(mount in each for each in fleet.broker(victim).report.status()["problems"])

    tell(story, mounts=2)


@pytest.mark.parametrize("is_back", [True, False])
def test_a_disk_that_hangs_under_a_follower_holds_up_no_partition_of_another_one(
    is_back: bool,
) -> None:
    async def story(fleet: SmallFleet) -> None:
        for topic in TOPICS:
            await fleet.create(topic, min_insync_replicas="2")
        leader, victim = fleet.leader("t0"), fleet.followers("t0")[0]
        mount = _mount_of(fleet, victim, "t0")
        (other, *_) = (
            topic
            for topic in TOPICS
            if fleet.leader(topic) == leader and _mount_of(fleet, victim, topic) != mount
        )
        disk = fleet.host(victim).machine.disks[mount]
        disk.stick()
        node = await fleet.cluster.leader("t0", 0)
        large = bytes(batch_of(b"x" * 60_000, timestamp_ms=fleet.clock.timestamp_ms()))
        for _ in range(60):  # more than the follower's directory may keep in memory
            await produce(node, "t0", 0, large, acks=ACKS_LEADER)
        began = asyncio.get_running_loop().time()
        await fleet.produce(other, b"first")
        assert asyncio.get_running_loop().time() - began < 2
        for _ in range(20):
            began = asyncio.get_running_loop().time()
            await fleet.produce(other, b"then")
            assert asyncio.get_running_loop().time() - began < 0.2
            await fleet.sleep(0.6)
        assert victim in fleet.state(other).isr
        assert victim not in fleet.state("t0").isr, "it lags there"
        if is_back:
            disk.unstick()
            await fleet.until_in_sync("t0")
            return
        await fleet.until(lambda: victim in fleet.state("t0").offline)
        following = fleet.broker(victim).replicating.fetching.current(  # type: ignore[union-attr]
            (fleet.image.topics["t0"].topic_id, 0)
        )
        assert following is not None
        await fleet.sleep(2)
        assert following.timer is None, "nobody looks again and again at what has failed"

    tell(story, mounts=2, config={"disk.timeout": "40s"})


def test_a_log_that_cannot_begin_anew_holds_up_no_partition_of_another_disk() -> None:
    """Where its leader's log begins within a batch, a follower's has to begin with that batch."""

    async def story(fleet: SmallFleet) -> None:
        for topic in TOPICS:
            await fleet.create(topic, min_insync_replicas="2")
        leader, victim = fleet.leader("t0"), fleet.followers("t0")[0]
        mount = _mount_of(fleet, victim, "t0")
        led = [topic for topic in TOPICS if fleet.leader(topic) == leader]
        (other, *_) = (topic for topic in led if _mount_of(fleet, victim, topic) != mount)
        fleet.host(victim).is_held_down = True
        fleet.host(victim).crash()
        await fleet.until(lambda: victim not in fleet.state("t0").isr)
        await fleet.produce("t0", *[b"%d" % number for number in range(10)], each=10)
        node = await fleet.cluster.leader("t0", 0)
        assert await delete_records(node, "t0", {0: 4}) == {0: 4}
        disk = fleet.host(victim).machine.disks[mount]
        real = Divergence.start_at
        begun: list[Offset] = []

        async def start_at(self: Divergence, partition: Partition, offset: Offset) -> None:
            if not offset and not begun:
                disk.stick()
                begun.append(offset)
            await real(self, partition, offset)

        with mock.patch.object(Divergence, "start_at", start_at):
            fleet.host(victim).is_held_down = False
            fleet.host(victim).boot()
            await fleet.until(lambda: begun)
            await fleet.sleep(HOLD_S * 1.5)
            await fleet.until_in_sync(other, seconds=1)
            for _ in range(20):
                began = asyncio.get_running_loop().time()
                await fleet.produce(other, b"then")
                assert asyncio.get_running_loop().time() - began < 0.2
                await fleet.sleep(0.6)
            assert victim in fleet.state(other).isr and victim not in fleet.state("t0").isr
            disk.unstick()
            await fleet.until_in_sync("t0")
        log = fleet.replica(victim, "t0").log
        assert (log.log_start_offset, log.log_end_offset) == (4, 10)

    tell(story, mounts=2, config={"disk.timeout": "60s"})


def test_a_log_that_takes_long_to_begin_anew_does_so_in_the_end() -> None:
    async def story(fleet: SmallFleet) -> None:
        for topic in TOPICS:
            await fleet.create(topic, min_insync_replicas="2")
        victim = fleet.followers("t0")[0]
        fleet.host(victim).is_held_down = True
        fleet.host(victim).crash()
        await fleet.until(lambda: victim not in fleet.state("t0").isr)
        await fleet.produce("t0", *[b"%d" % number for number in range(10)], each=10)
        node = await fleet.cluster.leader("t0", 0)
        assert await delete_records(node, "t0", {0: 4}) == {0: 4}
        real = Divergence.start_at
        begun: list[Offset] = []

        async def start_at(self: Divergence, partition: Partition, offset: Offset) -> None:
            begun.append(offset)
            await asyncio.sleep(HOLD_S * 3)
            await real(self, partition, offset)

        with mock.patch.object(Divergence, "start_at", start_at):
            fleet.host(victim).is_held_down = False
            fleet.host(victim).boot()
            await fleet.until_in_sync("t0")
        assert begun.count(Offset(0)) == 3, "others wait for 1, 2, then 4 s"

    tell(story, mounts=2, config={"disk.timeout": "60s"})
