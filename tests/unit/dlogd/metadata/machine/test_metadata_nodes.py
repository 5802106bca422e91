"""Nodes that start, stop, fail and come back: the machine rule by rule."""

from typing import Any
from uuid import UUID

import pytest

from dlog.errors import (
    BrokerIdNotRegisteredError,
    IneligibleReplicaError,
    InvalidRequestError,
    StaleBrokerEpochError,
)
from dlog.types import NO_NODE, NodeId
from dlogd.metadata.commands.codec import (
    DrainNode,
    ElectionKind,
    FenceNodes,
    Proof,
    RemoveNode,
    ReportReplicas,
    UnfenceNode,
)
from dlogd.metadata.state.delta import between
from dlogd.metadata.state.image import Drain
from tests.fakes.metadata_cluster import FakeCluster, elect, leader_isr_elr


def test_a_fenced_leader_gives_way_in_the_preferred_order() -> None:
    cluster = FakeCluster(3)
    cluster.create("t", (1, 2, 3), (3, 1, 2))
    cluster.fence(1)
    assert leader_isr_elr(cluster, 0) == (2, (2, 3), ())
    assert leader_isr_elr(cluster, 1) == (3, (3, 2), ())
    assert cluster.partition("t", 0).leader_epoch == 1
    assert cluster.partition("t", 1).leader_epoch == 0
    stale = FenceNodes(command_id=cluster.new_id(), nodes=((NodeId(2), 1),))
    cluster.refused(stale, StaleBrokerEpochError)
    unknown = FenceNodes(command_id=cluster.new_id(), nodes=((NodeId(9), 1),))
    cluster.refused(unknown, BrokerIdNotRegisteredError)


def test_l2_what_waits_for_a_leader_gets_it_when_a_candidate_comes_back() -> None:
    """L2: no candidate at failure time: nothing retries when a replica returns."""
    cluster = FakeCluster(3)
    cluster.create("t", (1, 2, 3), min_insync_replicas="2")
    cluster.fence(1)
    cluster.fence(2)
    assert leader_isr_elr(cluster) == (3, (3,), (2,))
    cluster.fence(3)
    assert leader_isr_elr(cluster) == (NO_NODE, (), (2, 3))
    cluster.unfence(1)
    assert leader_isr_elr(cluster) == (NO_NODE, (), (2, 3)), "1 lacks what was written since"
    cluster.unfence(2)
    assert leader_isr_elr(cluster) == (2, (2,), (3,))
    assert cluster.image.unclean_elections == 0


def test_nodes_that_fail_together_stay_eligible_together() -> None:
    cluster = FakeCluster(3)
    cluster.create("t", (1, 2, 3))
    cluster.fence(1, 2, 3)
    assert leader_isr_elr(cluster) == (NO_NODE, (), (1, 2, 3))


@pytest.mark.parametrize("proof", [Proof.CLEAN, Proof.FLUSHED])
def test_a_power_cut_of_the_whole_cluster_leaves_candidates(proof: Proof) -> None:
    cluster = FakeCluster(3)
    cluster.create("t", (1, 2, 3))
    for number in (1, 2):
        cluster.register(number, proof=proof)
    # 3 does not come back at all.
    cluster.fence(3)
    cluster.unfence(2)
    leader, isr, _ = leader_isr_elr(cluster)
    assert leader == 2
    assert set(isr) == {1, 2}
    assert cluster.image.unclean_elections == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"proof": Proof.NONE},
        {"proof": Proof.CLEAN, "previous_epoch": 1},
        {"proof": Proof.FLUSHED, "previous_epoch": -1},
        {"proof": Proof.CLEAN, "directory_ids": (UUID(int=77),)},
    ],
)
def test_without_a_proof_a_node_loses_its_places(fields: dict[str, Any]) -> None:
    cluster = FakeCluster(3)
    cluster.create("t", (2, 1, 3))
    cluster.register(2, **fields)
    assert leader_isr_elr(cluster) == (1, (1, 3), ())
    assert not cluster.image.nodes[NodeId(2)].returning


def test_a_known_directory_may_be_missing_when_it_is_accounted_for() -> None:
    cluster = FakeCluster(3)
    topic_id = cluster.create("t", (2, 1, 3), (2, 1, 3))
    cluster.register(
        2,
        proof=Proof.FLUSHED,
        directory_ids=(UUID(int=77),),
        failed_directory_ids=(UUID(int=2),),
        missing=((topic_id, (1,)),),
    )
    assert cluster.partition("t", 0).isr == (2, 1, 3)
    assert cluster.partition("t", 1).isr == (1, 3)


def test_what_was_flushed_proves_nothing_without_flush_policy_always() -> None:
    cluster = FakeCluster(2)
    cluster.create("t", (2, 1), flush_policy="interval")
    cluster.register(2, proof=Proof.FLUSHED)
    assert leader_isr_elr(cluster) == (1, (1,), ())
    cluster.unfence(2)
    cluster.catch_up()
    cluster.register(2, proof=Proof.CLEAN)
    assert cluster.partition().isr == (2, 1)


def test_the_last_leader_comes_back_although_it_may_lack_something() -> None:
    cluster = FakeCluster(2)
    cluster.create("t", (1, 2))
    cluster.fence(2)
    cluster.register(1)
    assert leader_isr_elr(cluster) == (NO_NODE, (), ())
    assert cluster.partition().last_leader == 1
    cluster.unfence(2)
    assert cluster.partition().leader == NO_NODE
    old = cluster.image
    cluster.unfence(1)
    assert leader_isr_elr(cluster) == (1, (1,), ())
    assert cluster.image.unclean_elections == 1
    delta = between(old, cluster.image)
    assert delta.unclean_elections == 1
    assert delta.topics_changed[0].unclean == (0,)


def test_the_last_leader_does_not_come_back_with_nothing() -> None:
    cluster = FakeCluster(2)
    topic_id = cluster.create("t", (1, 2))
    cluster.fence(2)
    cluster.register(1, missing=((topic_id, (0,)),))
    cluster.unfence(1)
    assert leader_isr_elr(cluster) == (NO_NODE, (), ())
    assert elect(cluster, ElectionKind.UNCLEAN, 0) == 1
    assert cluster.image.unclean_elections == 1


def test_h11_a_restarted_node_is_another_one() -> None:
    """H11: epochs stored but never compared: a zombie keeps acting."""
    cluster = FakeCluster(2)
    old = cluster.epoch(1)
    cluster.register(1)
    late = UnfenceNode(command_id=cluster.new_id(), node_id=NodeId(1), node_epoch=old)
    cluster.refused(late, StaleBrokerEpochError)


def test_a_node_that_stops_in_order_leads_nothing_before() -> None:
    cluster = FakeCluster(3)
    cluster.create("t", (1, 2, 3), (2, 1, 3))
    cluster.shut_down(1)
    assert leader_isr_elr(cluster, 0) == (2, (2, 3), ())
    assert leader_isr_elr(cluster, 1) == (2, (2, 3), ())
    rejoin = cluster.isr_change("t", 0, [2, 3, 1])
    cluster.refused(rejoin, IneligibleReplicaError)
    cluster.fence(1)
    unfence = UnfenceNode(
        command_id=cluster.new_id(), node_id=NodeId(1), node_epoch=cluster.epoch(1)
    )
    cluster.refused(unfence, InvalidRequestError)
    cluster.register(1, proof=Proof.CLEAN)
    assert not cluster.image.nodes[NodeId(1)].shutting_down


def test_removal_needs_a_node_that_is_down_and_empty() -> None:
    cluster = FakeCluster(3)
    cluster.create("t", (1, 2))

    def removal(node_id: int) -> RemoveNode:
        epoch = cluster.epoch(node_id)
        return RemoveNode(command_id=cluster.new_id(), node_id=NodeId(node_id), node_epoch=epoch)

    assert "running" in cluster.refused(removal(3), InvalidRequestError)
    cluster.fence(1, 3)
    assert "t-0" in cluster.refused(removal(1), InvalidRequestError)
    cluster.apply(removal(3))
    assert NodeId(3) not in cluster.image.nodes
    drain = DrainNode(command_id=cluster.new_id(), node_id=NodeId(3), drain=Drain.LEADERS)
    cluster.refused(drain, BrokerIdNotRegisteredError)


def test_a_failed_disk_takes_its_replicas_out_of_service() -> None:
    cluster = FakeCluster(2)
    topic_id = cluster.create("t", (1, 2), (1, 2))

    def report(offline: tuple[int, ...], online: tuple[int, ...]) -> ReportReplicas:
        return ReportReplicas(
            command_id=cluster.new_id(),
            node_id=NodeId(1),
            node_epoch=cluster.epoch(1),
            failed_directory_ids=(UUID(int=1),) if offline else (),
            offline=((topic_id, offline),) if offline else (),
            online=((topic_id, online),) if online else (),
        )

    cluster.apply(report((0,), ()))
    assert leader_isr_elr(cluster, 0) == (2, (2,), ())
    assert cluster.partition("t", 0).offline == (1,)
    assert leader_isr_elr(cluster, 1) == (1, (1, 2), ())
    assert cluster.image.nodes[NodeId(1)].failed_directory_ids == (UUID(int=1),)
    cluster.refused(cluster.isr_change("t", 0, [2, 1]), IneligibleReplicaError)
    cluster.apply(report((), (0,)))
    assert cluster.partition("t", 0).offline == ()
    cluster.apply(cluster.isr_change("t", 0, [2, 1]))
