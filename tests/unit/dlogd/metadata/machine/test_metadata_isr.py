"""ISRs, elections, reassignments: the machine rule by rule."""

import pytest

from dlog.errors import (
    ElectionNotNeededError,
    EligibleLeadersNotAvailableError,
    FencedLeaderEpochError,
    IneligibleReplicaError,
    InvalidReplicaAssignmentError,
    InvalidRequestError,
    InvalidUpdateVersionError,
    NoReassignmentInProgressError,
    PreferredLeaderNotAvailableError,
    StaleBrokerEpochError,
    UnknownTopicOrPartitionError,
)
from dlog.types import NO_NODE, LeaderEpoch, NodeId, PartitionEpoch
from dlogd.metadata.commands.codec import (
    AlterAssignments,
    AlterConfigs,
    ConfigChange,
    DrainNode,
    ElectionKind,
    Proof,
    Reassignment,
    ReportReplicas,
)
from dlogd.metadata.machine.partition import why_no_election
from dlogd.metadata.state.delta import between
from dlogd.metadata.state.image import Drain
from tests.fakes.metadata_cluster import FakeCluster, elect, leader_isr_elr


def reassign(cluster: FakeCluster, replicas: tuple[int, ...] | None) -> AlterAssignments:
    wanted = None if replicas is None else tuple(map(NodeId, replicas))
    topic_id = cluster.image.topics["t"].topic_id
    change = Reassignment(topic_id=topic_id, partition=0, replicas=wanted)
    return AlterAssignments(command_id=cluster.new_id(), reassignments=(change,))


def set_config(cluster: FakeCluster, key: str, value: str | None, *, whole: bool = False) -> None:
    topic_id = None if whole else cluster.image.topics["t"].topic_id
    changes = (ConfigChange(key=key, value=value),)
    cluster.apply(AlterConfigs(command_id=cluster.new_id(), topic_id=topic_id, changes=changes))


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


def test_what_keeps_the_preferred_replica_from_leading_is_said() -> None:
    cluster = FakeCluster(2)
    cluster.create("t", (1, 2))

    def why() -> str:
        topic = cluster.image.topics["t"]
        error = why_no_election(cluster.image, topic, 0, ElectionKind.PREFERRED)
        assert isinstance(error, PreferredLeaderNotAvailableError)
        return str(error)

    cluster.fence(1)
    assert "Node 1, which should lead, is not active" in why()
    cluster.unfence(1)
    assert "Node 1, which should lead, is not in sync" in why()
    cluster.catch_up()
    drain = DrainNode(command_id=cluster.new_id(), node_id=NodeId(1), drain=Drain.LEADERS)
    cluster.apply(drain)
    assert "Node 1, which should lead, is drained" in why()


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


def test_a_cancelled_reassignment_never_leaves_out_all_that_serve() -> None:
    """Who was eligible and is down would be waited for, and the good copy deleted meanwhile."""
    cluster = FakeCluster(4)
    cluster.create("t", (1, 2), min_insync_replicas="2")
    cluster.apply(reassign(cluster, (3, 4)))
    cluster.fence(2)
    cluster.apply(cluster.isr_change("t", 0, [1, 3]))
    cluster.fence(1)
    assert leader_isr_elr(cluster) == (3, (3,), (1,))
    cluster.refused(reassign(cluster, None), InvalidReplicaAssignmentError)
    cluster.refused(reassign(cluster, (1, 4)), InvalidReplicaAssignmentError)
    cluster.apply(reassign(cluster, (3, 1)))
    assert leader_isr_elr(cluster) == (3, (3,), (1,))
    cluster.fence(3)
    cluster.apply(reassign(cluster, None))
    assert leader_isr_elr(cluster) == (NO_NODE, (), (1,)), "nobody serves: who was eligible will"


@pytest.mark.parametrize("wanted", [None, (2, 4)])
def test_a_reassignment_never_leaves_too_few_copies(wanted: tuple[int, ...] | None) -> None:
    """What acks=all was answered for would be on one disk only, though two were promised."""
    cluster = FakeCluster(4)
    cluster.create("t", (1, 2), min_insync_replicas="2")
    cluster.fence(2, 4)
    cluster.apply(reassign(cluster, (3, 4)))
    cluster.apply(cluster.isr_change("t", 0, [1, 3]))
    told = cluster.refused(reassign(cluster, wanted), InvalidReplicaAssignmentError)
    assert "Only 1 of the 2 replicas that min.insync.replicas" in told and "[3]" in told
    cluster.apply(reassign(cluster, (1, 2, 3)))  # keeps it
    cluster.unfence(2)
    cluster.apply(cluster.isr_change("t", 0, [1, 3, 2]))
    cluster.apply(reassign(cluster, (1, 2)))
    assert (cluster.partition().replicas, cluster.partition().isr) == ((1, 2), (1, 2))


def test_what_is_in_sync_goes_from_a_topic_that_promises_one_copy() -> None:
    cluster = FakeCluster(3)
    cluster.create("t", (1, 2), min_insync_replicas="1")
    cluster.fence(2)
    cluster.apply(reassign(cluster, (1, 2, 3)))
    cluster.apply(cluster.isr_change("t", 0, [1, 3]))
    assert cluster.partition().adding == ()
    cluster.apply(reassign(cluster, (1, 2)))
    cluster.apply(reassign(cluster, (2, 3)))
    cluster.apply(reassign(cluster, None))
    assert set(cluster.partition().replicas) == {1, 2}


def test_a_new_replica_that_led_last_is_kept_until_another_one_is_elected() -> None:
    """It was elected uncleanly, and its disk has failed: what it took is nowhere else."""
    cluster = FakeCluster(3)
    cluster.create("t", (3,))
    cluster.fence(3)
    cluster.apply(reassign(cluster, (2,)))
    elect(cluster, ElectionKind.UNCLEAN, 0)
    assert leader_isr_elr(cluster) == (2, (2,), ())
    failed = ReportReplicas(
        command_id=cluster.new_id(),
        node_id=NodeId(2),
        node_epoch=cluster.epoch(2),
        failed_directory_ids=(),
        offline=((cluster.image.topics["t"].topic_id, (0,)),),
        online=(),
    )
    cluster.apply(failed)
    assert leader_isr_elr(cluster) == (NO_NODE, (), ())
    assert cluster.partition().last_leader == 2
    for wanted in ((1,), None):
        told = cluster.refused(reassign(cluster, wanted), InvalidReplicaAssignmentError)
        assert "Node 2 led t-0 last" in told and "unclean election" in told
    cluster.apply(reassign(cluster, (1, 2)))
    assert (cluster.partition().last_leader, cluster.partition().adding) == (2, (1, 2))
    # Who gives it up says so.
    elect(cluster, ElectionKind.UNCLEAN, 0)
    assert leader_isr_elr(cluster) == (1, (1,), ())
    cluster.apply(reassign(cluster, (1,)))
    assert cluster.partition().replicas == (1,)


def test_a_reassignment_to_a_node_that_restarts_ends_when_it_is_back() -> None:
    cluster = FakeCluster(3)
    cluster.create("t", (1, 2, 3))
    cluster.fence(3)
    epoch = cluster.epoch(2)
    cluster.register(2, proof=Proof.CLEAN, previous_epoch=epoch)
    assert leader_isr_elr(cluster) == (1, (1, 2), ())
    cluster.apply(reassign(cluster, (3, 2)))
    assert cluster.partition().removing == (1,), "nobody could lead"
    cluster.unfence(2)
    assert (cluster.partition().replicas, cluster.partition().leader) == ((3, 2), 2)
