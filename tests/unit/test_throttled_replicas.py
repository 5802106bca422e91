"""Throttles of replication over whole nodes: who catches up waits, who is in sync never does."""

import pytest

from dlog.client.admin import Resource
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
