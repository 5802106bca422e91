"""What followers are sent from the disks of a leader; one that hangs holds up only its own."""

import asyncio
import random

from dlog.client.cluster.cluster import Cluster
from dlog.client.cluster.partition_calls import ACKS_LEADER, fetch, produce
from dlog.transport import Address
from dlogd.replication.leader.follower_partition import LOAD_BYTES_MAX
from tests.fakes.logs import batch_of
from tests.fakes.small_fleet import SmallFleet, tell
from tests.simulation.fleet.plan import CLIENT_PORT, address_of

TOPICS = [f"t{number}" for number in range(6)]
PATIENT = {"disk.timeout": "60s"}


def mount_of(fleet: SmallFleet, node_id: int, topic: str) -> str:
    return "/" + fleet.replica(node_id, topic).log.directory.path.split("/")[1]


async def make_topics(fleet: SmallFleet) -> tuple[int, int, str, str]:
    """Return the leader and a follower of `t0`, and two topics led there: of that disk, or not."""
    for topic in TOPICS:
        await fleet.create(topic, min_insync_replicas="2")
    leader, follower = fleet.leader("t0"), fleet.followers("t0")[0]
    led = [topic for topic in TOPICS if fleet.leader(topic) == leader]
    mount = mount_of(fleet, leader, "t0")
    (other, *_) = (topic for topic in led if mount_of(fleet, leader, topic) != mount)
    return leader, follower, mount, other


async def fill(fleet: SmallFleet, topic: str, count: int) -> None:
    """Write more than memory keeps."""
    node = await fleet.cluster.leader(topic, 0)
    batch = bytes(batch_of(b"x" * 60_000, timestamp_ms=fleet.clock.timestamp_ms()))
    for _ in range(count):
        await produce(node, topic, 0, batch, acks=ACKS_LEADER)


async def check_others(fleet: SmallFleet, follower: int, other: str) -> None:
    """Writes to the other disk are quick, and in sync with the follower."""
    await fleet.until_in_sync(other, seconds=5)
    for _ in range(20):
        began = asyncio.get_running_loop().time()
        await fleet.produce(other, b"then")
        assert asyncio.get_running_loop().time() - began < 0.2
        await fleet.sleep(0.6)
        assert follower in fleet.state(other).isr
    assert follower not in fleet.state("t0").isr, "it lags there"


def test_a_follower_that_needs_a_disk_that_hangs_gets_what_lies_elsewhere() -> None:
    async def story(fleet: SmallFleet) -> None:
        leader, follower, mount, other = await make_topics(fleet)
        fleet.host(follower).crash()
        await fill(fleet, "t0", 120)
        await fleet.until(lambda: follower not in fleet.state("t0").isr)
        disk = fleet.host(leader).machine.disks[mount]
        disk.stick()
        fleet.host(follower).boot()
        await fleet.until(lambda: fleet.is_up(follower))
        await check_others(fleet, follower, other)
        disk.unstick()
        await fleet.until_in_sync("t0")

    tell(story, mounts=2, config=PATIENT)


def test_a_disk_that_hangs_in_the_midst_of_a_catch_up_holds_up_nothing_else() -> None:
    async def story(fleet: SmallFleet) -> None:
        leader, follower, mount, other = await make_topics(fleet)
        fleet.host(follower).crash()
        await fill(fleet, "t0", 240)
        await fleet.until(lambda: follower not in fleet.state("t0").isr)
        fleet.host(follower).boot()
        # Closely: all of it is there 5 ms after the first records.
        while not fleet.is_up(follower) or fleet.replica(follower, "t0").log.log_end_offset < 20:
            await fleet.sleep(0.0001)
        disk = fleet.host(leader).machine.disks[mount]
        disk.stick()
        assert fleet.replica(follower, "t0").log.log_end_offset < 200
        await check_others(fleet, follower, other)
        disk.unstick()
        await fleet.until_in_sync("t0")

    tell(story, mounts=2, config=PATIENT)


def test_batches_that_are_larger_than_a_read_come_whole() -> None:
    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t", replicas=2, max_message_bytes=str(4 << 20))
        (follower,) = fleet.followers("t")
        fleet.host(follower).crash()
        values = [bytes([number]) * (LOAD_BYTES_MAX + 300_000) for number in range(6)]
        values[2] = values[2][:1_000_000]
        await fleet.produce("t", *values)
        leader = fleet.replica(fleet.leader("t"), "t").log
        assert not leader.active.tail.holds(0)
        fleet.host(follower).boot()
        await fleet.until_in_sync("t")
        fleet.host(fleet.leader("t")).crash()
        await fleet.until(lambda: fleet.leader("t") == follower)
        await fleet.cluster.metadata("t", refresh=True)
        assert await fleet.values("t") == values

    tell(story, config={"append.memory.bytes": "12MiB"})


def test_consumers_that_wait_for_a_disk_that_hangs_hold_up_no_others() -> None:
    async def story(fleet: SmallFleet) -> None:
        leader, _, mount, other = await make_topics(fleet)
        for topic in ("t0", other):
            await fill(fleet, topic, 120)
            await fleet.until_in_sync(topic)
        disk = fleet.host(leader).machine.disks[mount]
        disk.stick()
        waiting = []
        for number in range(4):
            addresses = [Address(address_of(each), CLIENT_PORT) for each in (1, 2, 3)]
            client = Cluster(addresses, loop=fleet.loop, rng=random.Random(number))
            node = await client.leader("t0", 0)
            waiting.append(asyncio.ensure_future(fetch(node, "t0", 0, 0, max_wait_ms=0)))
        await fleet.sleep(0.1)
        began = asyncio.get_running_loop().time()
        assert len(await fleet.values(other)) == 120
        assert asyncio.get_running_loop().time() - began < 2
        assert not any(each.done() for each in waiting)
        disk.unstick()
        await asyncio.gather(*waiting)

    tell(story, mounts=2, config=PATIENT)
