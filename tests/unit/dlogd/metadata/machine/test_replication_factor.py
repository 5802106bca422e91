"""The replication factor of a topic: which replicas are added and given up, by whom it is asked."""

from typing import Any
from uuid import UUID

import pytest

from dlog.client.admin import Resource
from dlog.errors import InvalidConfigError, InvalidReplicationFactorError
from dlog.types import LeaderEpoch, NodeId, PartitionEpoch
from dlogd.metadata.machine.placement import Loads
from dlogd.metadata.machine.replication_factor import factor_of, plan_factor
from dlogd.metadata.state.image import (
    ClusterImage,
    Drain,
    NodeRegistration,
    PartitionImage,
    TopicImage,
)
from tests.fakes.small_fleet import SmallFleet, tell

TOPIC = UUID(int=7)


def node(node_id: int, rack: str | None = None, **changes: Any) -> NodeRegistration:
    fields: dict[str, Any] = {
        "node_epoch": 1,
        "directory_ids": (UUID(int=node_id),),
        "addresses": (),
        "version": "1",
        "fenced": False,
    }
    return NodeRegistration(node_id=NodeId(node_id), rack=rack, **(fields | changes))


def partition(replicas: str, isr: str | None = None, **changes: Any) -> PartitionImage:
    ids = tuple(NodeId(int(each)) for each in replicas)
    in_sync = ids if isr is None else tuple(NodeId(int(each)) for each in isr)
    fields: dict[str, Any] = {
        "leader": in_sync[0] if in_sync else NodeId(-1),
        "leader_epoch": LeaderEpoch(0),
        "partition_epoch": PartitionEpoch(0),
    }
    return PartitionImage(replicas=ids, isr=in_sync, **(fields | changes))


def image(topic: TopicImage, *nodes: NodeRegistration) -> ClusterImage:
    return ClusterImage(
        nodes={each.node_id: each for each in nodes}, topics={topic.name: topic},
        topics_by_id={TOPIC: topic},
    )  # fmt: skip


def plan(factor: int, *partitions: PartitionImage, nodes: list[NodeRegistration]) -> list[str]:
    """Return the replicas of each partition after the change, those that stay in brackets."""
    topic = TopicImage(name="t", topic_id=TOPIC, partitions=partitions)
    found = image(topic, *nodes)
    moves = {
        each.partition: each.replicas for each in plan_factor(found, topic, factor, Loads.of(found))
    }
    return [
        "".join(map(str, moves[n] or ())) if n in moves else "as it is"
        for n in range(len(partitions))
    ]


FOUR = [node(each) for each in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("factor", "before", "after"),
    [
        (3, partition("123"), "as it is"),
        (2, partition("123"), "12"),
        (1, partition("123"), "1"),
        (2, partition("123", isr="13"), "13"),
        (1, partition("123", isr="23", leader=NodeId(3)), "3"),
        (2, partition("123", isr="3", leader=NodeId(3)), "13"),
        (2, partition("124", adding=(NodeId(4),)), "12"),
        (2, partition("123", removing=(NodeId(2),)), "as it is"),
        (1, partition("123", isr="", leader=NodeId(-1)), "1"),
        (2, partition("123", isr="1", elr=(NodeId(3),)), "13"),
        (1, partition("123", isr="", leader=NodeId(-1), elr=(NodeId(2),)), "2"),
    ],
)
def test_who_goes(factor: int, before: PartitionImage, after: str) -> None:
    assert plan(factor, before, nodes=FOUR) == [after]


def test_who_comes() -> None:
    assert plan(2, partition("1"), partition("1"), partition("1"), nodes=FOUR) == ["12", "13", "14"]
    racks = [node(1, "a"), node(2, "a"), node(3, "b"), node(4, "b")]
    assert plan(2, partition("1"), nodes=racks) == ["13"]
    drained = [node(1), node(2, drain=Drain.LEADERS), node(3, fenced=True), node(4)]
    assert plan(2, partition("1"), nodes=drained) == ["14"]
    with pytest.raises(InvalidReplicationFactorError, match="has, 1 of the nodes can take"):
        plan(3, partition("1"), nodes=drained)


def test_what_the_factor_is() -> None:
    mixed = TopicImage(
        name="t",
        topic_id=TOPIC,
        partitions=(partition("123"), partition("124", removing=(NodeId(1),))),
    )
    assert factor_of(mixed) == 2


def test_a_topic_gets_replicas_and_gives_them_up_while_it_is_written() -> None:
    async def story(fleet: SmallFleet) -> None:
        await fleet.create("t", replicas=1, partitions=2)

        async def set_factor(text: str, **options: bool) -> None:
            await fleet.admin.alter_configs(
                Resource.TOPIC, "t", set_values={"replication.factor": text}, **options
            )

        async def factor() -> str | None:
            entries = await fleet.admin.describe_configs(Resource.TOPIC, "t")
            return next(each.value for each in entries if each.name == "replication.factor")

        values = [b"%d" % number for number in range(20)]
        await fleet.produce("t", *values[:10])
        assert await factor() == "1"
        await set_factor("3", validate_only=True)
        assert await factor() == "1" and len(fleet.state("t").replicas) == 1
        await set_factor("3")
        await fleet.produce("t", *values[10:])
        for index in (0, 1):
            await fleet.until_in_sync("t", index)
            assert len(fleet.state("t", index).replicas) == 3
        assert await factor() == "3"
        leaders = [fleet.leader("t", index) for index in (0, 1)]
        await set_factor("2")
        await fleet.until(lambda: all(len(fleet.state("t", n).replicas) == 2 for n in (0, 1)))
        assert [fleet.leader("t", index) for index in (0, 1)] == leaders
        assert await fleet.values("t") == values
        for bad in ("0", "33", "x", "", "-1"):
            with pytest.raises(InvalidConfigError):
                await set_factor(bad)
        with pytest.raises(InvalidReplicationFactorError):
            await set_factor("4")

    tell(story)
