"""Leader epochs of a topic that is made again under its name are above all that were given before.

Clients remember the highest leader epoch of a name, and pass over leaders with a lower one.
"""

import asyncio
from pathlib import Path
from uuid import UUID

import pytest

from dlog.types import LeaderEpoch, NodeId, PartitionEpoch
from dlogd.metadata.commands.codec import (
    CreatePartitions,
    DeleteTopic,
    DeleteTopics,
    FenceNodes,
    SetFeatureLevel,
    encode,
)
from dlogd.metadata.machine import apply
from dlogd.metadata.machine.image_changes import with_topics
from dlogd.metadata.state import snapshot
from dlogd.metadata.state.image import EMPTY_IMAGE, ClusterImage, PartitionImage, TopicImage
from dlogd.metadata.state.limits import EPOCH_FLOOR_MAX, LEVEL_EPOCH_FLOOR, LEVEL_NEWEST
from dlogd.server.handlers.fetch_answers import LogDivergedError, check_history
from dlogd.server.handlers.offset_for_leader_epoch import end_of_epoch
from tests.fakes.front import Front, run_on
from tests.fakes.logs import batch_of
from tests.fakes.metadata_cluster import FakeCluster
from tests.simulation.fleet.checks import FleetRegistry

REPLICAS = (1, 2)


def epochs(cluster: FakeCluster, name: str) -> list[int]:
    return [each.leader_epoch for each in cluster.image.topics[name].partitions]


def change_leader(cluster: FakeCluster, times: int) -> None:
    """Fence and unfence one node after the other: each time its partitions get another leader."""
    for number in range(times):
        node_id = REPLICAS[number % 2]
        gone = ((NodeId(node_id), cluster.epoch(node_id)),)
        cluster.apply(FenceNodes(command_id=cluster.new_id(), nodes=gone))
        cluster.register(node_id)
        cluster.unfence(node_id)
        for topic in list(cluster.image.topics):
            cluster.apply(cluster.isr_change(topic, 0, list(REPLICAS)))


def delete(cluster: FakeCluster, *names: str) -> None:
    ids = [cluster.image.topics[name].topic_id for name in names]
    if len(ids) == 1:
        cluster.apply(DeleteTopic(command_id=cluster.new_id(), topic_id=ids[0]))
    else:
        cluster.apply(DeleteTopics(command_id=cluster.new_id(), topic_ids=tuple(ids)))


def lower_level(cluster: FakeCluster) -> None:
    """Go back to the level before, as a cluster that an older version began."""
    cluster.image = cluster.image.having(feature_level=LEVEL_EPOCH_FLOOR - 1)


def raise_level(cluster: FakeCluster) -> None:
    cluster.apply(SetFeatureLevel(command_id=cluster.new_id(), level=LEVEL_NEWEST))


def test_a_topic_made_again_begins_above_its_earlier_epochs() -> None:
    cluster = FakeCluster(2)
    cluster.create("t", REPLICAS)
    assert epochs(cluster, "t") == [0]
    change_leader(cluster, 4)
    (given,) = epochs(cluster, "t")
    assert given > 0
    delete(cluster, "t")
    cluster.create("t", REPLICAS)
    assert epochs(cluster, "t") == [given + 1]


def test_partitions_that_are_added_begin_there_too() -> None:
    """The topic before it may have had more partitions."""
    cluster = FakeCluster(2)
    cluster.create("t", REPLICAS)
    cluster.create("u", REPLICAS)
    change_leader(cluster, 2)
    (given,) = epochs(cluster, "t")
    delete(cluster, "t", "u")
    cluster.create("t", REPLICAS)
    topic_id = cluster.image.topics["t"].topic_id
    more = CreatePartitions(
        command_id=cluster.new_id(),
        topic_id=topic_id,
        partition_count=1,
        assignments=((NodeId(1), NodeId(2)),),
    )
    cluster.apply(more)
    assert epochs(cluster, "t") == [given + 1, given + 1]


def test_nothing_changes_at_the_level_before() -> None:
    """Older software makes the same image of the same commands."""
    cluster = FakeCluster(2)
    lower_level(cluster)
    cluster.create("t", REPLICAS)
    change_leader(cluster, 2)
    delete(cluster, "t")
    cluster.create("t", REPLICAS)
    assert epochs(cluster, "t") == [0] and cluster.image.epoch_floor == 0
    assert snapshot.encode(cluster.image)[8:10] == b"\0\2"


def test_raising_the_level_covers_topics_that_are_gone_already() -> None:
    cluster = FakeCluster(2)
    lower_level(cluster)
    cluster.create("t", REPLICAS)
    change_leader(cluster, 6)
    (given,) = epochs(cluster, "t")
    delete(cluster, "t")
    raise_level(cluster)
    cluster.create("t", REPLICAS)
    assert epochs(cluster, "t")[0] > given
    lower_again = cluster.image.epoch_floor
    change_leader(cluster, 2)
    delete(cluster, "t")
    assert cluster.image.epoch_floor > lower_again


def test_epochs_never_run_out() -> None:
    cluster = FakeCluster(2)
    cluster.image = cluster.image.having(epoch_floor=EPOCH_FLOOR_MAX)
    cluster.create("t", REPLICAS)
    change_leader(cluster, 2)
    delete(cluster, "t")
    assert cluster.image.epoch_floor == EPOCH_FLOOR_MAX
    late = EMPTY_IMAGE.having(cluster_id="c", version=1 << 40, feature_level=3)
    assert late.at_level(LEVEL_NEWEST).epoch_floor == EPOCH_FLOOR_MAX


def test_the_floor_is_in_the_snapshot() -> None:
    """Golden bytes of what format 3 has in addition (docs/formats/metadata-snapshot.md)."""
    cluster = FakeCluster(2)
    cluster.create("t", REPLICAS)
    cluster.image = cluster.image.having(epoch_floor=0x01020304, feature_level=LEVEL_EPOCH_FLOOR)
    data = snapshot.encode(cluster.image)
    assert data[8:10] == b"\0\3" and data.count(bytes.fromhex("0000000000000000 01020304")) == 1
    read = snapshot.decode(data)
    assert read == cluster.image and read.epoch_floor == 0x01020304
    after, _ = apply.apply(read, encode(DeleteTopic(command_id=UUID(int=1), topic_id=UUID(int=9))))
    assert after.epoch_floor == 0x01020304


def image_of(topic_id: int, epochs_: tuple[int, ...], level: int) -> ClusterImage:
    partitions = tuple(
        PartitionImage(
            replicas=(NodeId(1),),
            isr=(),
            leader=NodeId(-1),
            leader_epoch=LeaderEpoch(epoch),
            partition_epoch=PartitionEpoch(0),
        )
        for epoch in epochs_
    )
    topic = TopicImage(name="t", topic_id=UUID(int=topic_id), partitions=partitions, configs={})
    return with_topics(EMPTY_IMAGE, [topic]).having(feature_level=level)


@pytest.mark.parametrize(
    ("first", "then", "found"),
    [((5,), (6,), 0), ((5,), (5,), 1), ((5,), (0,), 1), ((5, 7), (8, 6), 1), ((5, 7), (6,), 0)],
)
def test_the_watcher_of_the_simulation_finds_a_name_that_falls_back(
    first: tuple[int, ...], then: tuple[int, ...], found: int
) -> None:
    for level, wanted in ((LEVEL_EPOCH_FLOOR, found), (LEVEL_EPOCH_FLOOR - 1, 0)):
        registry, gone = FleetRegistry(), EMPTY_IMAGE.having(feature_level=level)
        violations: list[str] = []
        registry.violate = violations.append  # type: ignore[method-assign, assignment]
        registry._depose = lambda *_: None  # type: ignore[method-assign]
        before, after = image_of(1, first, level), image_of(2, then, level)
        for old, new in ((gone, before), (before, gone), (gone, after)):
            registry._look_at_step(old, new)
        assert len(violations) == wanted, violations


@pytest.mark.parametrize("count", [0, 20])
def test_who_asks_for_an_epoch_of_the_earlier_topic_hears_that_nothing_is_left(
    tmp_path: Path, count: int
) -> None:
    """The consumer learns that its records are gone (KIP-320)."""

    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            partition = front.partition("t")
            assert partition.leader_epoch == 3  # the earlier topic had 0 to 2
            data = batch_of(*[b"x"] * max(count, 1))
            if count:
                partition.append_as_leader(bytearray(data), 0, len(data), 1)
                await partition.log.flush()
            for earlier in range(3):
                assert end_of_epoch(partition, LeaderEpoch(earlier)) == (earlier, 0)
                with pytest.raises(LogDivergedError) as caught:
                    check_history(partition, 10, earlier)
                assert caught.value.at == (earlier, 0)

    run_on(asyncio.new_event_loop, scenario())
