"""Throttles of replication over whole nodes: who catches up waits, who is in sync never does."""

import pytest

from dlog.client.admin import Resource
from dlog.errors import TransportError
from tests.fakes.fleet_followers import following_of, on_node
from tests.fakes.small_fleet import SmallFleet, tell

VALUES = [b"%04d" % number + b"v" * 996 for number in range(1500)]  # 1.5 MB
RATE = 200_000


async def _fill(fleet: SmallFleet) -> list[int]:
    """Write a topic with two replicas; return its nodes and the third one."""
    await fleet.create("t", replicas=2, segment_bytes="300000")
    await fleet.produce("t", *VALUES, each=20)
    await fleet.until_in_sync("t")
    nodes = [fleet.leader("t"), *fleet.followers("t")]
    return [*nodes, *(each for each in (1, 2, 3) if each not in nodes)]


async def _throttle(fleet: SmallFleet, side: str, replicas: str, node: str) -> None:
    rate = {f"{side}.replication.throttled.rate": str(RATE)}
    await fleet.admin.alter_configs(Resource.BROKER, node, set_values=rate)
    names = {f"{side}.replication.throttled.replicas": replicas}
    await fleet.admin.alter_configs(Resource.TOPIC, "t", set_values=names)


@pytest.mark.parametrize("side", ["leader", "follower"])
@pytest.mark.parametrize("for_all", [True, False])
def test_a_new_replica_catches_up_no_faster_than_it_may(side: str, for_all: bool) -> None:
    async def story(fleet: SmallFleet) -> None:
        nodes = await _fill(fleet)
        node = nodes[0] if side == "leader" else nodes[2]
        replicas = "*" if for_all else f"0:{node}"
        await _throttle(fleet, side, replicas, "" if for_all else str(node))
        begin = fleet.loop.time()
        await fleet.admin.alter_reassignments({("t", 0): nodes})
        slowest = 0.0
        for number in range(10):
            asked = fleet.loop.time()
            await fleet.produce("t", b"meanwhile %d" % number)
            slowest = max(slowest, fleet.loop.time() - asked)
            await fleet.sleep(0.2)
        assert nodes[2] not in fleet.state("t").isr
        assert slowest < 0.2, "producers do not wait for who catches up"
        await fleet.until(lambda: nodes[2] in fleet.state("t").isr, 120)
        seconds = fleet.loop.time() - begin
        assert 4 < seconds < 20, seconds  # 1.5 MB at 0.2 MB/s, less what goes at once
        await fleet.until_in_sync("t")

    tell(story)


def test_without_a_throttle_it_is_quick_and_lifting_it_helps_at_once() -> None:
    async def story(fleet: SmallFleet) -> None:
        nodes = await _fill(fleet)
        await _throttle(fleet, "follower", "*", "")
        await fleet.admin.alter_reassignments({("t", 0): nodes})
        await fleet.sleep(3)
        assert nodes[2] not in fleet.state("t").isr
        begin = fleet.loop.time()
        await fleet.admin.alter_configs(
            Resource.BROKER, "", delete_names=("follower.replication.throttled.rate",)
        )
        await fleet.until(lambda: nodes[2] in fleet.state("t").isr, 120)
        assert fleet.loop.time() - begin < 3

    tell(story)


def test_another_replica_than_those_named_is_not_throttled() -> None:
    async def story(fleet: SmallFleet) -> None:
        nodes = await _fill(fleet)
        await _throttle(fleet, "follower", f"0:{nodes[1]},7:{nodes[2]}", "")
        begin = fleet.loop.time()
        await fleet.admin.alter_reassignments({("t", 0): nodes})
        await fleet.until(lambda: nodes[2] in fleet.state("t").isr, 120)
        assert fleet.loop.time() - begin < 3

    tell(story)


def test_who_was_stopped_goes_on_when_its_topic_is_not_throttled_any_more() -> None:
    """The rate itself stays what it is."""

    async def story(fleet: SmallFleet) -> None:
        nodes = await _fill(fleet)
        await _throttle(fleet, "follower", "*", "")
        await fleet.admin.alter_reassignments({("t", 0): nodes})
        await fleet.sleep(1)
        rate = {"follower.replication.throttled.rate": "0"}
        await fleet.admin.alter_configs(Resource.BROKER, "", set_values=rate)
        await fleet.sleep(3)
        end = fleet.replica(nodes[2], "t").log.log_end_offset
        await fleet.sleep(3)
        assert fleet.replica(nodes[2], "t").log.log_end_offset == end < len(VALUES)
        names = ("follower.replication.throttled.replicas",)
        await fleet.admin.alter_configs(Resource.TOPIC, "t", delete_names=names)
        await fleet.until(lambda: nodes[2] in fleet.state("t").isr, 5)

    tell(story)


PARTITIONS, MISSED, LATE = 20, 100_000, 3
CATCHING_UP = PARTITIONS * MISSED


async def _miss(fleet: SmallFleet, rate: int) -> None:
    """Let one follower miss something of many partitions, and come back under a throttle."""
    for name, replicas in (("t", "*"), ("free", "")):
        await fleet.admin.create_topic(
            name,
            assignments=[(1, 2, LATE)] * PARTITIONS,
            configs={"follower.replication.throttled.replicas": replicas},
        )
        for index in range(PARTITIONS):
            await fleet.until_in_sync(name, index)
    host = fleet.host(LATE)
    host.is_held_down = True
    host.crash()
    for name in ("t", "free"):
        for index in range(PARTITIONS):
            await fleet.produce(name, bytes(MISSED), partition=index)
    key = "follower.replication.throttled.rate"
    await fleet.admin.alter_configs(Resource.BROKER, "", set_values={key: str(rate)})
    host.is_held_down = False
    host.boot()
    await fleet.until(lambda: fleet.is_up(LATE))


def _lagging(fleet: SmallFleet, topic: str) -> int:
    return sum(LATE not in each.isr for each in fleet.image.topics[topic].partitions)


def _fetched(fleet: SmallFleet) -> int:
    replicating = fleet.broker(LATE).replicating
    assert replicating is not None
    return replicating.counters.bytes_total


def test_many_partitions_catch_up_together_no_faster_than_one() -> None:
    """Each is sent something when it begins, so not all may begin at once."""

    async def story(fleet: SmallFleet) -> None:
        await _miss(fleet, RATE)
        await fleet.until(lambda: not _lagging(fleet, "free"), 2)
        assert _lagging(fleet, "t") > PARTITIONS // 2
        began_s = fleet.loop.time()
        await fleet.until(lambda: not _lagging(fleet, "t"), 60)
        took_s = fleet.loop.time() - began_s
        assert 0.6 < took_s * RATE / CATCHING_UP < 1.4, took_s
        for index in range(PARTITIONS):
            await fleet.until_in_sync("t", index)

    tell(story)


def test_a_rate_of_nothing_lets_nobody_begin_and_holds_up_nobody_in_sync() -> None:
    async def story(fleet: SmallFleet) -> None:
        await _miss(fleet, 0)
        await fleet.until(lambda: not _lagging(fleet, "free"), 2)
        await fleet.sleep(20)
        assert _lagging(fleet, "t") == PARTITIONS
        assert _fetched(fleet) < CATCHING_UP + 10_000  # all of `free`
        names = {"follower.replication.throttled.replicas": "*"}
        await fleet.admin.alter_configs(Resource.TOPIC, "free", set_values=names)
        fetcher, following = following_of(fleet, LATE, "free")
        await on_node(fleet, fetcher, lambda: fetcher._link.close(TransportError("lost")))
        await fleet.produce("free", b"then")
        await fleet.until(lambda: following.partition.log.log_end_offset == 2, 1)
        assert not _lagging(fleet, "free")
        rate = ("follower.replication.throttled.rate",)
        await fleet.admin.alter_configs(Resource.BROKER, "", delete_names=rate)
        await fleet.until(lambda: not _lagging(fleet, "t"), 3)

    tell(story)
