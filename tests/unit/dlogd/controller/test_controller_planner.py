"""The planner: what it proposes, when, and that its plans end with a cluster in order."""

import random
from dataclasses import replace

import pytest

from dlog.types import NO_NODE, NodeId
from dlogd.controller.planner import NodeLiveness, Planner
from dlogd.metadata.commands.codec import DrainNode, Proof
from dlogd.metadata.machine.placement import Loads, LoadTracker, place
from dlogd.metadata.state.image import Drain
from tests.fakes.controlled_cluster import LEASE_MS, SETTINGS, Controlled, reassign
from tests.fakes.metadata_cluster import FakeCluster, leader_isr_elr


def test_silent_nodes_are_fenced_together_and_come_back() -> None:
    cluster = Controlled(3)
    cluster.create("t", (1, 2, 3))
    cluster.tick()
    cluster.up -= {2, 3}
    assert cluster.tick() == "Nothing to do"
    assert cluster.tick() == "fence nodes 2,3"
    assert cluster.tick() == "Nothing to do"
    cluster.up |= {2, 3}
    assert cluster.tick() == "unfence node 2; unfence node 3"


def test_a_node_is_unfenced_only_when_it_is_heard_ready_and_up_to_date() -> None:
    cluster = FakeCluster(1)
    epoch = cluster.register(1)
    good = NodeLiveness(
        node_epoch=epoch, lease_end_ms=10, heard=True, ready=True, image_version=epoch
    )
    for fields, expected in (
        ({}, "unfence node 1"),
        ({"heard": False}, "Nothing to do"),
        ({"ready": False}, "Nothing to do"),
        ({"image_version": epoch - 1}, "Nothing to do"),
        ({"lease_end_ms": 5}, "Nothing to do"),
        ({"node_epoch": epoch - 1}, "Nothing to do"),
    ):
        planner = Planner(1, cluster.new_id)
        known = replace(good, **fields)  # type: ignore[arg-type]
        assert planner.plan(cluster.image, {NodeId(1): known}, 5).sentence == expected


def test_a_new_controller_waits_for_one_lease_before_it_fences() -> None:
    cluster = Controlled(2)
    cluster.up -= {2}
    assert cluster.tick(0) == "Nothing to do"
    assert cluster.tick(LEASE_MS - 1) == "Nothing to do"
    assert cluster.tick(1) == "fence nodes 2"


def test_a_node_that_registered_and_fell_silent_loses_its_places() -> None:
    cluster = Controlled(2)
    cluster.create("t", (2, 1))
    cluster.tick()
    cluster.up -= {2}
    cluster.register(2, proof=Proof.CLEAN)
    assert 2 in cluster.partition().isr
    sentences = [cluster.tick() for _ in range(5)]
    assert sentences.count("fence nodes 2") == 1
    assert cluster.partition().isr == (1,)


def test_a_node_that_wants_to_stop_loses_its_leaders_first() -> None:
    cluster = Controlled(2)
    cluster.create("t", (1, 2))
    cluster.stopping.add(NodeId(1))
    assert cluster.tick() == "shut down node 1"
    assert cluster.partition().leader == 2
    assert cluster.tick() == "Nothing to do"


def test_leaders_go_back_gently() -> None:
    cluster = Controlled(2, replace(SETTINGS, elections_max=3))
    cluster.create("t", *[(1, 2)] * 7)
    cluster.fence(1)
    cluster.run(2)
    assert {p.leader for p in cluster.image.topics["t"].partitions} == {2}
    moved = []
    for _ in range(20):
        cluster.run(0.5)
        moved.append(sum(p.leader == 1 for p in cluster.image.topics["t"].partitions))
    assert moved[-1] == 7
    assert set(moved) == {0, 3, 6, 7}
    cluster.apply(DrainNode(command_id=cluster.new_id(), node_id=NodeId(1), drain=Drain.LEADERS))
    cluster.run(5)
    assert {p.leader for p in cluster.image.topics["t"].partitions} == {2}


def test_unclean_leaders_come_late_and_only_where_they_may() -> None:
    cluster = Controlled(3)
    cluster.create("t", (2, 3), unclean_leader_election_enable="true")
    cluster.create("u", (2, 3))
    cluster.up -= {3}
    cluster.run(3)
    cluster.up = {NodeId(1)}
    cluster.run(3)
    cluster.up = {NodeId(1), NodeId(3)}
    cluster.run(1)
    assert cluster.partition("t").leader == NO_NODE
    cluster.run(6)
    assert cluster.partition("t").leader == 3
    assert cluster.partition("u").leader == NO_NODE
    assert cluster.image.unclean_elections == 1


def test_replicas_of_a_dead_node_go_to_a_new_one() -> None:
    """The tutorial's refill: a node is added, and what lacks replicas gets them there."""
    cluster = Controlled(3)
    cluster.create("t", (1, 2, 3), (2, 3, 1))
    cluster.up -= {3}
    cluster.run(80)
    assert cluster.partition("t", 0).replicas == (1, 2, 3), "there is nobody to take over"
    cluster.register(4)
    cluster.up.add(NodeId(4))
    cluster.run(10)
    assert cluster.partition("t", 0).replicas == (1, 2, 4)
    assert cluster.partition("t", 1).replicas == (2, 4, 1)
    assert set(cluster.partition("t", 0).isr) == {1, 2, 4}


def test_a_new_node_need_not_wait_for_long_to_take_a_dead_ones_place() -> None:
    cluster = Controlled(3)
    cluster.create("t", (1, 2, 3), (2, 3, 1))
    cluster.up -= {3}
    cluster.run(2)
    cluster.register(4)
    cluster.up.add(NodeId(4))
    cluster.run(2)
    assert cluster.partition("t", 0).replicas == (1, 2, 3), "it may just be restarting"
    cluster.run(20)  # much less than refill_after_ms
    assert cluster.partition("t", 0).replicas == (1, 2, 4)
    assert cluster.partition("t", 1).replicas == (2, 4, 1)


def test_a_new_node_takes_all_places_of_a_dead_one_not_only_the_first() -> None:
    cluster = Controlled(4, replace(SETTINGS, reassignments_max=2))
    cluster.create("t", *[(1, 2, 3)] * 9)
    cluster.create("u", (2, 4))
    cluster.up -= {3}
    cluster.run(2)
    cluster.register(5)
    cluster.up.add(NodeId(5))
    cluster.run(7)
    cluster.up -= {4, 5}
    cluster.run(5)
    replicas = [p.replicas for p in cluster.image.topics["t"].partitions]
    assert 0 < sum(3 in each for each in replicas) < 9
    cluster.up.add(NodeId(5))
    cluster.run(20)  # much less than refill_after_ms
    assert {p.replicas for p in cluster.image.topics["t"].partitions} == {(1, 2, 5)}
    assert cluster.partition("u").replicas == (2, 4), "it was not there yet when that one died"


@pytest.mark.parametrize("drain", [Drain.NONE, Drain.REPLICAS])
def test_a_reassignment_that_a_dead_node_keeps_from_ending_goes_elsewhere(drain: Drain) -> None:
    """What stays is too little for min.insync.replicas, and nothing that is copied is dead."""
    cluster = Controlled(4, replace(SETTINGS, reassignments_max=1))
    cluster.create("t", (1, 2, 3), min_insync_replicas="2")
    cluster.create("u", (3, 2), min_insync_replicas="2")
    cluster.create("v", (1, 2))
    cluster.up -= {2}
    cluster.run(3)
    reassign(cluster, "t", 1, 2)
    reassign(cluster, "u", 2, 4)
    cluster.apply(DrainNode(command_id=cluster.new_id(), node_id=NodeId(2), drain=drain))
    cluster.run(30 if drain else 90)
    for name in "tuv":
        partition = cluster.partition(name)
        assert 2 not in partition.replicas, name
        assert not partition.removing
        assert len(partition.isr) == 2


def test_a_reassignment_that_ends_without_a_dead_node_is_left_alone() -> None:
    cluster = Controlled(5)
    cluster.create("t", (1, 2, 3), min_insync_replicas="2")
    cluster.up -= {2}
    cluster.run(58)
    reassign(cluster, "t", 1, 2, 4)
    for _ in range(10):
        cluster.tick()
        assert cluster.partition().adding == (4,)
    cluster.run(5)
    assert cluster.partition().replicas in ((1, 3, 4), (1, 5, 4))


def test_what_cannot_be_copied_takes_no_room_from_what_can() -> None:
    cluster = Controlled(5, replace(SETTINGS, reassignments_max=2))
    cluster.create("t", (2, 3), (2, 3))
    cluster.create("u", (1, 2))
    cluster.up -= {2}
    while not cluster.partition("t", 1).adding:
        cluster.tick()
    cluster.up -= {3}
    while cluster.partition("t", 1).has_leader:
        cluster.tick()
    cluster.run(10)
    assert [p.leader for p in cluster.image.topics["t"].partitions] == [NO_NODE] * 2
    assert 2 not in cluster.partition("u").replicas


def test_replicas_go_to_a_rack_that_has_none_be_its_others_up_or_drained() -> None:
    """Racks by node: 1 b, 2 c, 3 a, 4 b, 5 c, 6 a."""
    cluster = Controlled(6, replace(SETTINGS, refill_after_ms=6_000))
    cluster.create("t", (1, 2, 3))
    cluster.create("u", (6, 5))
    drain = DrainNode(command_id=cluster.new_id(), node_id=NodeId(1), drain=Drain.LEADERS)
    cluster.apply(drain)
    cluster.up -= {3}
    cluster.run(6)
    cluster.up -= {2}
    cluster.run(4)
    assert cluster.partition().replicas == (1, 2, 6)


def test_a_reassignment_ends_that_only_waited_for_a_leader() -> None:
    """Who is elected from the eligible ones is in sync alone, and nobody is there to join him."""
    cluster = Controlled(3)
    cluster.create("t", (2, 3), min_insync_replicas="2")
    cluster.up -= {2, 3}
    cluster.run(3)
    assert leader_isr_elr(cluster) == (NO_NODE, (), (2, 3))
    reassign(cluster, "t", 2)
    assert cluster.partition().removing == (3,)
    cluster.up.add(NodeId(2))
    cluster.run(3)
    assert leader_isr_elr(cluster) == (2, (2,), ())
    assert cluster.partition().replicas == (2,)
    assert cluster.tick(2_000) == "Nothing to do"


def test_an_emptied_node_can_be_removed() -> None:
    cluster = Controlled(4, replace(SETTINGS, reassignments_max=2))
    for number in range(8):
        replicas = place(cluster.image, 1, 2)
        cluster.create(f"t{number}", *replicas)
    drain = DrainNode(command_id=cluster.new_id(), node_id=NodeId(4), drain=Drain.REPLICAS)
    cluster.apply(drain)
    for _ in range(40):
        cluster.tick()
        busy = sum(bool(t.partitions[0].adding) for t in cluster.image.topics.values())
        assert busy <= 2
        cluster.catch_up()
    assert Loads.of(cluster.image).replicas[NodeId(4)] == 0


@pytest.mark.parametrize("seed", range(12))
def test_after_any_trouble_the_plans_end_with_a_cluster_in_order(seed: int) -> None:
    rng = random.Random(seed)
    cluster = Controlled(4)
    tracker = LoadTracker()
    for number in range(6):
        factor = rng.randint(2, 3)
        places = place(cluster.image, 3, factor, tracker.loads(cluster.image))
        cluster.create(f"t{number}", *places, min_insync_replicas="2")
    for _ in range(60):
        node_id = NodeId(rng.randint(2, 4))
        event = rng.random()
        if event < 0.15:
            cluster.up ^= {node_id}
        elif event < 0.25:
            proof = rng.choice(list(Proof))
            cluster.register(node_id, proof=proof)
            cluster.up.add(node_id)
        elif event < 0.3:
            drain = rng.choice(list(Drain))
            cluster.apply(DrainNode(command_id=cluster.new_id(), node_id=node_id, drain=drain))
        cluster.run(0.5 if event < 0.9 else 5)
    for number in (2, 3, 4):
        cluster.apply(
            DrainNode(command_id=cluster.new_id(), node_id=NodeId(number), drain=Drain.NONE)
        )
    cluster.up = {NodeId(number) for number in range(1, 5)}
    cluster.run(120)
    for topic in cluster.image.topics.values():
        for partition in topic.partitions:
            assert partition.leader == partition.replicas[0]
            assert set(partition.isr) == set(partition.replicas)
            assert not partition.adding
            assert not partition.elr
    assert cluster.tick(2_000) == "Nothing to do"
    assert LoadTracker().loads(cluster.image) == tracker.loads(cluster.image)
