"""Differences between images, and places for replicas."""

from collections import Counter
from dataclasses import replace
from uuid import UUID

import pytest

from dlog.errors import (
    BrokerNotAvailableError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
)
from dlog.types import LeaderEpoch, NodeId, PartitionEpoch
from dlogd.metadata.machine.placement import place
from dlogd.metadata.state.delta import between
from dlogd.metadata.state.image import (
    EMPTY_IMAGE,
    ClusterImage,
    NodeRegistration,
    PartitionImage,
    TopicImage,
)


def node(node_id: int, rack: str | None = None, *, fenced: bool = False) -> NodeRegistration:
    return NodeRegistration(
        node_id=NodeId(node_id),
        node_epoch=1,
        directory_ids=(),
        addresses=(),
        rack=rack,
        version="1",
        fenced=fenced,
    )


def topic(name: str, number: int, partition_count: int = 1) -> TopicImage:
    partition = PartitionImage(
        replicas=(NodeId(1),),
        isr=(NodeId(1),),
        leader=NodeId(1),
        leader_epoch=LeaderEpoch(0),
        partition_epoch=PartitionEpoch(0),
    )
    return TopicImage(
        name=name, topic_id=UUID(int=number), partitions=(partition,) * partition_count
    )


def image_of(*topics: TopicImage, nodes: tuple[NodeRegistration, ...] = ()) -> ClusterImage:
    return ClusterImage(
        topics={each.name: each for each in topics},
        topics_by_id={each.topic_id: each for each in topics},
        nodes={each.node_id: each for each in nodes},
    )


def test_nothing_differs() -> None:
    image = image_of(topic("a", 5), nodes=(node(1),))
    assert not between(image, image)
    assert not between(image, image_of(topic("a", 5), nodes=(node(1),)))
    assert not between(EMPTY_IMAGE, EMPTY_IMAGE)


def test_a_recreated_topic_is_two_topics() -> None:
    first, second = topic("a", 5), topic("a", 6)
    delta = between(image_of(first), image_of(second))
    assert delta.topics_deleted == (first,)
    assert delta.topics_created == (second,)
    assert delta.topics_changed == ()


def test_changed_partitions_and_configs() -> None:
    old = topic("a", 5, 3)
    moved = replace(old.partitions[1], leader_epoch=LeaderEpoch(1))
    new = replace(
        old,
        partitions=(old.partitions[0], moved, old.partitions[2], old.partitions[0]),
        configs={"k": "v"},
    )
    (changed,) = between(image_of(old), image_of(new)).topics_changed
    assert changed.partitions_changed == (1,)
    assert changed.partitions_created == (3,)
    assert changed.configs_changed == ("k",)


def test_nodes_and_cluster_configs() -> None:
    old = replace(image_of(nodes=(node(1), node(2))), configs={"a": "1", "b": "2"})
    new = replace(image_of(nodes=(node(2, "r"), node(3))), configs={"b": "3", "c": "4"})
    delta = between(old, new)
    assert delta.nodes_removed == (node(1),)
    assert delta.nodes_added == (node(3),)
    assert delta.nodes_changed == (node(2, "r"),)
    assert delta.configs_changed == ("a", "b", "c")
    assert delta


def test_places_are_even_and_differ() -> None:
    image = image_of(nodes=tuple(node(number, f"r{number % 3}") for number in range(6)))
    places = place(image, 60, 3)
    leaders = Counter(each[0] for each in places)
    replicas = Counter(each for replicas in places for each in replicas)
    assert set(leaders.values()) == {10}
    assert set(replicas.values()) == {30}
    for each in places:
        assert len(set(each)) == 3
        assert {number % 3 for number in each} == {0, 1, 2}
    followers = {each[1:] for each in places if each[0] == 0}
    assert len(followers) > 1, "one leader's partitions must not share all followers"


def test_places_go_on_where_existing_partitions_leave_off() -> None:
    nodes = tuple(node(number) for number in range(3))
    assert [each[0] for each in place(image_of(nodes=nodes), 2, 1)] == [0, 1]
    assert [each[0] for each in place(image_of(topic("a", 5, 2), nodes=nodes), 2, 1)] == [2, 0]


def test_few_racks_and_fenced_nodes() -> None:
    nodes = (node(1, "a"), node(2, "a"), node(3, "b"), node(4, "b", fenced=True))
    for each in place(image_of(nodes=nodes), 6, 3):
        assert set(each) == {1, 2, 3}
    for each in place(image_of(nodes=nodes), 6, 2):
        assert 3 in each
    assert place(image_of(nodes=(node(9),)), 2, 1) == ((9,), (9,))


def test_impossible_places() -> None:
    one = image_of(nodes=(node(1),))
    with pytest.raises(InvalidReplicationFactorError):
        place(one, 1, 2)
    with pytest.raises(InvalidReplicationFactorError):
        place(one, 1, 0)
    with pytest.raises(InvalidPartitionsError):
        place(one, 0, 1)
    with pytest.raises(BrokerNotAvailableError):
        place(EMPTY_IMAGE, 1, 1)
