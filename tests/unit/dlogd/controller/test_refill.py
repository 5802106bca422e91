"""What the controller leaves alone, for the machine would refuse it with all the rest of a plan."""

from dlog.types import NodeId
from dlogd.controller.replica_replacement import plan_refill
from dlogd.metadata.commands.codec import AlterAssignments
from dlogd.metadata.machine.placement import Loads
from tests.fakes.controlled_cluster import reassign
from tests.fakes.metadata_cluster import FakeCluster, leader_isr_elr


def test_what_would_be_refused_keeps_no_other_replica_where_it_is() -> None:
    """The only one in sync is being added, and its node is emptied: it has to wait for another."""
    cluster = FakeCluster(5)
    cluster.create("t", (1, 2), min_insync_replicas="2")
    cluster.create("u", (3, 5))
    reassign(cluster, "t", 3, 4)
    cluster.fence(2)
    cluster.apply(cluster.isr_change("t", 0, [1, 3]))
    cluster.fence(1)
    assert leader_isr_elr(cluster) == (3, (3,), (1,))
    moves = plan_refill(
        cluster.image, frozenset(), frozenset({NodeId(3)}), 20, Loads.of(cluster.image)
    )
    cluster.apply(AlterAssignments(command_id=cluster.new_id(), reassignments=tuple(moves)))
    assert cluster.partition("t").adding == (3, 4)
    assert cluster.partition("u").adding == (4,)


def test_a_plan_takes_nobody_in_sync_away_before_enough_others_are() -> None:
    """Else the machine refuses the whole plan, again and again."""
    cluster = FakeCluster(4)
    cluster.create("t", (3,), min_insync_replicas="2")
    cluster.create("u", (1, 4))
    reassign(cluster, "t", 1, 2)
    cluster.apply(cluster.isr_change("t", 0, [3, 1]))
    cluster.fence(2)
    gone = frozenset({NodeId(2)}), frozenset({NodeId(1)})
    moves = plan_refill(cluster.image, *gone, 20, Loads.of(cluster.image))
    assert [each.topic_id for each in moves] == [cluster.image.topics["u"].topic_id]
    cluster.apply(AlterAssignments(command_id=cluster.new_id(), reassignments=tuple(moves)))
