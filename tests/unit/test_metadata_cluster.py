"""Nodes that come and go, ISRs, eligible replicas, reassignments: the machine rule by rule."""

from typing import Any
from uuid import UUID

import pytest

from dlog.errors import (
    BrokerIdNotRegisteredError,
    ElectionNotNeededError,
    EligibleLeadersNotAvailableError,
    FencedLeaderEpochError,
    IneligibleReplicaError,
    InvalidReplicaAssignmentError,
    InvalidRequestError,
    InvalidTopicError,
    InvalidUpdateVersionError,
    NoReassignmentInProgressError,
    NotControllerError,
    PreferredLeaderNotAvailableError,
    RequestTimedOutError,
    StaleBrokerEpochError,
    TopicAlreadyExistsError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from dlog.types import NO_NODE, LeaderEpoch, NodeId, PartitionEpoch, TopicId
from dlogd.metadata import machine, snapshot
from dlogd.metadata.commands import (
    AlterAssignments,
    AlterConfigs,
    ClaimController,
    ConfigChange,
    CreateTopics,
    DeleteTopic,
    DeleteTopics,
    DrainNode,
    ElectionKind,
    ElectLeaders,
    FenceNodes,
    Guarded,
    NewTopic,
    Proof,
    Reassignment,
    RegisterNode,
    RemoveNode,
    ReportReplicas,
    SetFeatureLevel,
    UnfenceNode,
    encode,
)
from dlogd.metadata.delta import between
from dlogd.metadata.image import EMPTY_IMAGE, Applied, Drain, Refused
from dlogd.metadata.partition_steps import why_no_election
from tests.fakes.metadata_cluster import FakeCluster


def leader_isr_elr(cluster: FakeCluster, number: int = 0) -> tuple[int, Any, Any]:
    partition = cluster.partition("t", number)
    return partition.leader, partition.isr, partition.elr


def elect(cluster: FakeCluster, kind: ElectionKind, *numbers: int) -> int:
    topic_id = cluster.image.topics["t"].topic_id
    return cluster.apply(
        ElectLeaders(command_id=cluster.new_id(), election=kind, partitions=((topic_id, numbers),))
    )


def reassign(cluster: FakeCluster, replicas: tuple[int, ...] | None) -> AlterAssignments:
    wanted = None if replicas is None else tuple(map(NodeId, replicas))
    topic_id = cluster.image.topics["t"].topic_id
    change = Reassignment(topic_id=topic_id, partition=0, replicas=wanted)
    return AlterAssignments(command_id=cluster.new_id(), reassignments=(change,))


def set_config(cluster: FakeCluster, key: str, value: str | None, *, whole: bool = False) -> None:
    topic_id = None if whole else cluster.image.topics["t"].topic_id
    changes = (ConfigChange(key=key, value=value),)
    cluster.apply(AlterConfigs(command_id=cluster.new_id(), topic_id=topic_id, changes=changes))


# -- levels


def test_the_first_node_sets_the_level_and_others_must_know_it() -> None:
    cluster = FakeCluster()
    for number in (1, 2):
        cluster.register(number, level_max=2)
    assert cluster.image.feature_level == 2
    old = cluster.registration(3, proof=None)
    cluster.refused(old, UnsupportedVersionError)
    cluster.refused(cluster.registration(3, level_max=1), UnsupportedVersionError)
    cluster.refused(cluster.registration(3, level_min=3, level_max=4), UnsupportedVersionError)
    cluster.refused(cluster.registration(3, level_min=3, level_max=2), InvalidRequestError)
    raise_it = SetFeatureLevel(command_id=cluster.new_id(), level=3)
    cluster.refused(raise_it, UnsupportedVersionError)
    for number in (1, 2):
        cluster.register(number, level_max=3)
    again = SetFeatureLevel(command_id=cluster.new_id(), level=3)
    assert cluster.apply(again) == 3
    back = SetFeatureLevel(command_id=cluster.new_id(), level=2)
    cluster.refused(back, InvalidRequestError)


def test_commands_of_a_higher_level_leave_no_trace_on_level_1() -> None:
    cluster = FakeCluster()
    cluster.apply(cluster.registration(1, proof=None))
    assert cluster.image.feature_level == 1
    assert not cluster.image.nodes[NodeId(1)].fenced
    drain = DrainNode(command_id=cluster.new_id(), node_id=NodeId(1), drain=Drain.LEADERS)
    for command in (drain, machine.guarded(cluster.image, drain)):
        after, outcome = machine.apply(cluster.image, encode(command))
        assert isinstance(outcome, Refused)
        assert outcome.code == UnsupportedVersionError.code
        # Software that does not know the command remembers nothing of it either.
        assert after.outcomes == cluster.image.outcomes


def test_a_single_node_of_level_1_goes_to_level_2_with_what_it_has() -> None:
    cluster = FakeCluster()
    cluster.apply(cluster.registration(1, proof=None))
    cluster.create("t", (1,), (1,))
    data = snapshot.encode(cluster.image)
    assert data[8:10] == b"\x00\x01"
    cluster.image = snapshot.decode(data)
    cluster.register(1, previous_epoch=-1, proof=Proof.NONE, level_max=2)
    assert cluster.image.feature_level == 2
    assert leader_isr_elr(cluster) == (NO_NODE, (1,), ())
    cluster.unfence(1)
    assert leader_isr_elr(cluster) == (1, (1,), ())
    assert cluster.image.unclean_elections == 0
    assert snapshot.encode(cluster.image)[8:10] == b"\x00\x02"


# -- starts, fencing, rule 2.9


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


# -- ISR changes, elections


def test_isr_changes_are_compared_and_set() -> None:
    cluster = FakeCluster(3)
    cluster.create("t", (1, 2, 3))
    change = cluster.isr_change
    assert cluster.apply(change("t", 0, [1, 2])) == 1
    low, high = PartitionEpoch(0), PartitionEpoch(9)
    cluster.refused(change("t", 0, [1], partition_epoch=low), InvalidUpdateVersionError)
    cluster.refused(change("t", 0, [1], partition_epoch=high), InvalidRequestError)
    cluster.refused(change("t", 0, [1], leader_epoch=LeaderEpoch(-1)), FencedLeaderEpochError)
    cluster.refused(change("t", 0, [1], leader_epoch=LeaderEpoch(7)), InvalidRequestError)
    cluster.refused(change("t", 0, [1], partition=5), UnknownTopicOrPartitionError)
    cluster.refused(change("t", 0, [2]), InvalidRequestError)
    cluster.refused(change("t", 0, [1, 1]), InvalidRequestError)
    cluster.refused(
        change("t", 0, [2], node_id=NodeId(2), node_epoch=cluster.epoch(2)), InvalidRequestError
    )
    cluster.refused(change("t", 0, [1], node_epoch=77), StaleBrokerEpochError)


def test_only_the_living_join_an_isr() -> None:
    cluster = FakeCluster(3)
    cluster.create("t", (1, 2, 3))
    before = cluster.epoch(3)
    cluster.register(3)
    fenced = cluster.isr_change("t", 0, [1, 2, 3])
    cluster.refused(fenced, IneligibleReplicaError)
    cluster.unfence(3)
    members = tuple((NodeId(n), cluster.epoch(n)) for n in (1, 2))
    earlier = cluster.isr_change("t", 0, [], isr=(*members, (NodeId(3), before)))
    cluster.refused(earlier, IneligibleReplicaError)
    cluster.apply(cluster.isr_change("t", 0, [1, 2, 3]))


def test_a_smaller_min_isr_ends_eligibility() -> None:
    for whole in (False, True):
        cluster = FakeCluster(2)
        cluster.create("t", (1, 2))
        set_config(cluster, "min.insync.replicas", "2", whole=whole)
        cluster.fence(2)
        assert leader_isr_elr(cluster) == (1, (1,), (2,))
        # From now on 1 may acknowledge alone.
        set_config(cluster, "min.insync.replicas", None, whole=whole)
        assert leader_isr_elr(cluster) == (1, (1,), ())


def test_preferred_leaders_and_drained_nodes() -> None:
    cluster = FakeCluster(3)
    cluster.create("t", (1, 2, 3))
    cluster.fence(1)
    cluster.unfence(1)
    topic = cluster.image.topics["t"]
    error = why_no_election(cluster.image, topic, 0, ElectionKind.PREFERRED)
    assert isinstance(error, PreferredLeaderNotAvailableError)
    cluster.catch_up()
    assert elect(cluster, ElectionKind.PREFERRED, 0, 0, 5) == 1
    assert cluster.partition().leader == 1
    drain = DrainNode(command_id=cluster.new_id(), node_id=NodeId(1), drain=Drain.LEADERS)
    cluster.apply(drain)
    assert elect(cluster, ElectionKind.PREFERRED, 0) == 1
    assert cluster.partition().leader == 2
    assert elect(cluster, ElectionKind.PREFERRED, 0) == 0
    cluster.fence(2, 3)
    assert cluster.partition().leader == 1, "rather a drained leader than none"


def test_why_there_is_no_election() -> None:
    cluster = FakeCluster(2)
    cluster.create("t", (1, 2))

    def why(kind: ElectionKind, number: int = 0) -> type[Exception]:
        return type(why_no_election(cluster.image, cluster.image.topics["t"], number, kind))

    assert why(ElectionKind.PREFERRED) is ElectionNotNeededError
    assert why(ElectionKind.UNCLEAN) is ElectionNotNeededError
    assert why(ElectionKind.UNCLEAN, 3) is UnknownTopicOrPartitionError
    cluster.fence(2)
    cluster.fence(1)
    assert why(ElectionKind.UNCLEAN) is EligibleLeadersNotAvailableError
    cluster.unfence(2)
    assert why(ElectionKind.UNCLEAN) is type(None)


def test_unclean_elections_need_an_order_or_a_permission() -> None:
    cluster = FakeCluster(2)
    cluster.create("t", (1, 2))
    cluster.fence(2)
    cluster.fence(1)
    cluster.unfence(2)
    assert leader_isr_elr(cluster) == (NO_NODE, (), (1,))
    assert elect(cluster, ElectionKind.UNCLEAN_IF_ALLOWED, 0) == 0
    set_config(cluster, "unclean.leader.election.enable", "true", whole=True)
    assert elect(cluster, ElectionKind.UNCLEAN_IF_ALLOWED, 0) == 1
    assert leader_isr_elr(cluster) == (2, (2,), ())
    assert cluster.image.unclean_elections == 1


@pytest.mark.parametrize(("present", "leader"), [((2, 3), 2), ((3,), 3)])
def test_a_replica_that_is_being_added_is_the_last_choice(
    present: tuple[int, ...], leader: int
) -> None:
    """It may hold nothing yet; elected, it is told of as any other."""
    cluster = FakeCluster(3)
    cluster.create("t", (1, 2))
    cluster.fence(2)
    cluster.apply(reassign(cluster, (3, 2, 1)))
    cluster.fence(3)
    cluster.fence(1)
    for node_id in present:
        cluster.unfence(node_id)
    assert cluster.partition().adding == (3,)
    assert leader_isr_elr(cluster) == (NO_NODE, (), (1,))
    old = cluster.image
    assert elect(cluster, ElectionKind.UNCLEAN, 0) == 1
    assert leader_isr_elr(cluster) == (leader, (leader,), ())
    assert between(old, cluster.image).topics_changed[0].unclean == (0,)


# -- reassignments


def test_a_reassignment_adds_first_and_removes_then() -> None:
    cluster = FakeCluster(4)
    cluster.create("t", (1, 2), min_insync_replicas="2")
    cluster.apply(reassign(cluster, (3, 4)))
    partition = cluster.partition()
    assert partition.replicas == (3, 4, 1, 2)
    assert (partition.adding, partition.removing) == ((3, 4), (1, 2))
    assert partition.leader == 1
    cluster.apply(cluster.isr_change("t", 0, [1, 2, 3]))
    assert cluster.partition().replicas == (3, 4, 1, 2)
    cluster.apply(cluster.isr_change("t", 0, [1, 2, 3, 4]))
    partition = cluster.partition()
    assert (partition.replicas, partition.isr) == ((3, 4), (3, 4))
    assert (partition.adding, partition.removing) == ((), ())
    assert (partition.leader, partition.leader_epoch) == (3, 1)


def test_a_reassignment_can_be_cancelled_and_replaced() -> None:
    cluster = FakeCluster(4)
    cluster.create("t", (1, 2))
    cluster.refused(reassign(cluster, None), NoReassignmentInProgressError)
    cluster.apply(reassign(cluster, (3, 2)))
    cluster.apply(reassign(cluster, (4, 2)))
    assert set(cluster.partition().replicas) == {4, 2, 1}
    cluster.apply(reassign(cluster, None))
    assert sorted(cluster.partition().replicas) == [1, 2]
    assert cluster.partition().leader == 1
    for wrong in ((), (1, 1), (9,)):
        cluster.refused(reassign(cluster, wrong), InvalidReplicaAssignmentError)
    twice = reassign(cluster, (3, 4))
    double = AlterAssignments(
        command_id=cluster.new_id(), reassignments=twice.reassignments + twice.reassignments
    )
    cluster.refused(double, InvalidRequestError)


def test_a_reassignment_never_leaves_out_all_that_are_in_sync() -> None:
    cluster = FakeCluster(3)
    cluster.create("t", (1, 2))
    cluster.apply(reassign(cluster, (3,)))
    cluster.fence(1, 2)
    assert leader_isr_elr(cluster) == (NO_NODE, (), (1, 2))
    cluster.unfence(1)
    cluster.apply(cluster.isr_change("t", 0, [1, 3]))
    assert cluster.partition().replicas == (3,)


# -- many topics, the controller, guards


def test_many_topics_at_once_or_none() -> None:
    cluster = FakeCluster(2)

    def topic(name: str, number: int) -> NewTopic:
        return NewTopic(name=name, topic_id=UUID(int=number), assignments=((NodeId(1), NodeId(2)),))

    def creation(*topics: NewTopic) -> CreateTopics:
        return CreateTopics(command_id=cluster.new_id(), topics=topics)

    cluster.refused(creation(), InvalidRequestError)
    cluster.refused(creation(topic("a", 5), topic("a", 6)), TopicAlreadyExistsError)
    cluster.refused(creation(topic("a", 5), topic("b", 5)), InvalidRequestError)
    cluster.refused(creation(topic("a.b", 5), topic("a_b", 6)), InvalidTopicError)
    assert cluster.apply(creation(*(topic(f"a.{n}", n) for n in range(5, 305)))) == 300
    assert len(cluster.image.topics) == 300
    cluster.refused(creation(topic("a_7", 500)), InvalidTopicError)
    cluster.apply(DeleteTopic(command_id=cluster.new_id(), topic_id=UUID(int=7)))
    cluster.apply(creation(topic("a_7", 500)))


def test_many_topics_go_at_once_or_none_does() -> None:
    cluster = FakeCluster(2)
    for name in ("a.b", "c", "d"):
        cluster.create(name, (1, 2), (2, 1))
    a, c, d = (cluster.image.topics[name].topic_id for name in ("a.b", "c", "d"))

    def deletion(*topic_ids: TopicId) -> DeleteTopics:
        return DeleteTopics(command_id=cluster.new_id(), topic_ids=topic_ids)

    cluster.refused(deletion(), InvalidRequestError)
    cluster.refused(deletion(a, a), InvalidRequestError)
    cluster.refused(deletion(a, TopicId(int=99)), UnknownTopicIdError)
    assert cluster.apply(deletion(a, c)) == 4
    assert list(cluster.image.topics) == ["d"]
    assert list(cluster.image.topics_by_id) == [d]
    cluster.create("a_b", (1,))  # the name that it would collide with is free


def test_software_of_level_2_never_sees_many_topics_go_at_once() -> None:
    cluster = FakeCluster()
    cluster.register(1, level_max=2)
    cluster.unfence(1)
    cluster.create("a", (1,))
    topic_ids = (cluster.image.topics["a"].topic_id,)
    command = DeleteTopics(command_id=cluster.new_id(), topic_ids=topic_ids)
    after, outcome = machine.apply(cluster.image, encode(command))
    assert isinstance(outcome, Refused)
    assert outcome.code == UnsupportedVersionError.code
    assert after.outcomes == cluster.image.outcomes


def test_a_controller_that_is_one_no_longer_changes_nothing() -> None:
    cluster = FakeCluster(2)

    def claim(node_id: int, epoch: int) -> ClaimController:
        return ClaimController(
            command_id=cluster.new_id(),
            node_id=NodeId(node_id),
            node_epoch=cluster.epoch(node_id),
            controller_epoch=epoch,
        )

    assert cluster.apply(claim(1, 0)) == 1
    assert cluster.apply(claim(2, 1)) == 2
    cluster.refused(claim(1, 1), NotControllerError)

    def drain(epoch: int) -> Guarded:
        plain = DrainNode(command_id=cluster.new_id(), node_id=NodeId(1), drain=Drain.LEADERS)
        return machine.guarded(cluster.image, plain, controller_epoch=epoch)

    cluster.refused(drain(1), NotControllerError)
    cluster.apply(drain(2))
    delta = between(EMPTY_IMAGE, cluster.image)
    assert delta.controller_changed
    assert delta.level_changed


def test_a_guarded_command_is_never_applied_twice() -> None:
    cluster = FakeCluster(1)
    plain = DrainNode(command_id=cluster.new_id(), node_id=NodeId(1), drain=Drain.LEADERS)
    late = Guarded(version_max=cluster.image.version, controller_epoch=-1, command=plain)
    cluster.refused(late, RequestTimedOutError)
    once = machine.guarded(cluster.image, plain)
    cluster.apply(once)
    version = cluster.image.version
    again, outcome = machine.apply(cluster.image, encode(once))
    assert outcome == Applied(version=version, value=0)
    assert not between(cluster.image, again)


def test_every_registration_is_bounded() -> None:
    cluster = FakeCluster(1)
    many = tuple(UUID(int=number) for number in range(300))
    too_many: RegisterNode = cluster.registration(2, failed_directory_ids=many)
    cluster.refused(too_many, InvalidRequestError)
