"""Three whole nodes with Raft, leases and a controller on the virtual loop."""

import errno
import gc
import logging
from collections.abc import Iterator
from uuid import UUID

import pytest

from dlog.errors import FencedLeaderEpochError, NotLeaderOrFollowerError, WireError
from dlog.types import NodeId
from dlogd.metadata.commands.codec import DrainNode
from dlogd.metadata.state.image import Applied, Drain
from tests.fakes.faults import DiskFault
from tests.fakes.three_nodes import NODES, Cluster, address
from tests.simulation.loop import NS, SimClock


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    # What is left of the nodes ends here, and not in the middle of another test.
    made.nodes.clear()
    logging.disable(logging.ERROR)
    gc.collect()
    logging.disable(logging.NOTSET)


def test_three_whole_nodes_start_and_survive_their_controller(cluster: Cluster) -> None:
    assert cluster.run(cluster.is_up), [each.started for each in cluster.nodes]
    first = cluster.nodes[0].broker.store.image
    leader = first.controller.node_id
    cluster.nodes[leader - 1].kill()
    rest = [each for each in cluster.nodes if each.node_id != leader]

    def taken_over() -> bool:
        return all(
            node.broker.store.image.controller.node_id != leader
            and node.broker.store.image.nodes[leader].fenced
            for node in rest
        )

    assert cluster.run(taken_over, 20)
    cluster.nodes[leader - 1].boot()
    assert cluster.run(cluster.is_up)
    assert not any(each.failures for each in cluster.nodes)


def test_leaders_move_before_a_node_stops(cluster: Cluster) -> None:
    assert cluster.run(cluster.is_up)
    topic = cluster.create("t", partitions=6, replicas=2)
    others = cluster.nodes[:]
    leaving = others.pop(0)
    assert {each.leader for each in cluster.partitions(topic)} == set(NODES)
    begun = cluster.world.now_ns
    leaving.stop()

    def has_moved() -> bool:
        image = others[0].image
        return image.nodes[NodeId(1)].shutting_down and all(
            each.leader not in (-1, 1) for each in image.topics_by_id[topic].partitions
        )

    assert cluster.run(has_moved, 2)
    assert leaving.broker is not None and leaving.broker.phase == "stopping"
    assert cluster.run(lambda: leaving.broker.phase == "stopped", 5)  # type: ignore[union-attr]
    assert cluster.world.now_ns - begun < 2 * NS


def test_all_nodes_stop_at_once(cluster: Cluster) -> None:
    assert cluster.run(cluster.is_up)
    topic = cluster.create("t", partitions=6, replicas=2)
    begun = cluster.world.now_ns
    stops = [each.stop() for each in cluster.nodes]
    assert cluster.run(lambda: all(each.done() for each in stops), 20)
    assert [each.exception() for each in stops] == [None] * 3
    assert cluster.world.now_ns - begun < 5 * NS
    for node in cluster.nodes:
        node.kill()
        node.boot()
    assert cluster.run(cluster.is_up)
    assert cluster.run(lambda: all(each.has_leader for each in cluster.partitions(topic)), 10)
    for node in cluster.nodes:
        assert node.image.unclean_elections == 0


def test_all_keep_their_places_when_the_power_of_all_fails(cluster: Cluster) -> None:
    assert cluster.run(cluster.is_up)
    topic = cluster.create("t", partitions=4, replicas=3)
    before = cluster.partitions(topic)
    for node in cluster.nodes:
        node.cut_power()
    for node in cluster.nodes:
        node.boot()
    assert cluster.run(cluster.is_up)

    def is_whole() -> bool:
        return all(
            each.has_leader and set(each.isr) == set(old.isr)
            for each, old in zip(cluster.partitions(topic), before, strict=True)
        )

    assert cluster.run(is_whole, 10), cluster.partitions(topic)
    assert cluster.nodes[0].image.unclean_elections == 0


def test_a_wiped_node_leads_nothing_until_it_has_the_records(cluster: Cluster) -> None:
    assert cluster.run(cluster.is_up)
    topic = cluster.create("t", partitions=3, replicas=3)
    for node in cluster.nodes:
        node.cut_power()
    for disk in cluster.nodes[2].machine.disks.values():
        disk.root.entries.pop("logs")
        disk.root.durable_entries.pop("logs")
    for node in cluster.nodes:
        node.boot()
    assert cluster.run(cluster.is_up)
    for each in cluster.partitions(topic):
        # It may be in the ISR again: there is nothing to copy.
        assert each.has_leader and each.leader != 3 and 3 not in each.elr

    def is_there_anew() -> bool:
        broker = cluster.nodes[2].broker
        assert broker is not None and broker.replicas is not None
        every = all((topic, index) in broker.replicas.by_id for index in range(3))
        return every and not any(each.offline for each in cluster.partitions(topic))

    assert cluster.run(is_there_anew, 20), cluster.partitions(topic)
    assert cluster.nodes[0].image.unclean_elections == 0


def test_a_leader_that_is_cut_off_acknowledges_nothing_after_its_lease(cluster: Cluster) -> None:
    assert cluster.run(cluster.is_up)
    cluster.create("t", partitions=3, replicas=3)
    lonely, other = cluster.nodes[0], cluster.nodes[1]
    (index,) = [i for i in range(3) if other.image.topics["t"].partitions[i].leader == 1]
    assert lonely.broker is not None and lonely.broker.replicas is not None
    replicas = lonely.broker.replicas
    assert cluster.run(lambda: ("t", index) in replicas.by_name, 5)
    partition = replicas.partition("t", index)
    partition.check_serving()
    for node_id in (2, 3):
        cluster.network.block(address(1), address(node_id))
        cluster.network.block(address(node_id), address(1))

    def is_deposed() -> bool:
        return other.image.topics["t"].partitions[index].leader != 1

    settled: list[WireError | None] = []

    class Waiter:
        def on_acked(self, _: int, error: WireError | None, __: int) -> None:
            settled.append(error)

    def is_closed() -> bool:
        if partition.closed is None:
            settled.clear()
            partition.acknowledge(Waiter())
            # Nobody else leads while this one still says yes.
            assert settled[0] is not None or not is_deposed()
        return isinstance(partition.closed, NotLeaderOrFollowerError)

    assert cluster.run(is_closed, 10)
    assert not is_deposed()
    partition.acknowledge(Waiter())
    assert isinstance(settled[-1], NotLeaderOrFollowerError)
    assert cluster.run(is_deposed, 10)
    cluster.network.unblock_all()
    assert cluster.run(lambda: lonely.image.version == other.image.version, 10)
    with pytest.raises(FencedLeaderEpochError):
        partition.check_serving(0)
    with pytest.raises(NotLeaderOrFollowerError):
        partition.check_serving()


def test_leaders_leave_a_disk_that_fails(cluster: Cluster) -> None:
    assert cluster.run(cluster.is_up)
    topic = cluster.create("t", partitions=12, replicas=3)
    node = cluster.nodes[0]
    assert node.broker is not None and node.broker.replicas is not None
    replicas, logs = node.broker.replicas, node.broker.logs
    assert logs is not None
    assert cluster.run(lambda: len(replicas.by_id) == 12, 5)
    home = logs.homes[1]
    lost = {key[1] for key in home.logs}
    assert 0 < len(lost) < 12
    node.machine.disks["/data1"].faults.append(
        DiskFault(operations=("write", "sync", "sync_directory", "create", "open", "usage"))
    )

    def have_moved() -> bool:
        return all(
            (1 in each.offline and each.leader != 1 and 1 not in each.isr) == (index in lost)
            for index, each in enumerate(cluster.partitions(topic))
        )

    assert cluster.run(have_moved, 20), (home.failure, lost, cluster.partitions(topic))
    assert node.image.nodes[NodeId(1)].failed_directory_ids == (home.directory_id,)
    assert any(each.leader == 1 for each in cluster.partitions(topic))
    assert not node.failures


@pytest.mark.parametrize("reason", [errno.EIO, errno.ENOSPC])
def test_a_directory_that_cannot_note_a_registration_is_named_by_it(
    cluster: Cluster, reason: int
) -> None:
    """Else the next start takes it for an old copy, and what it never held for lost."""
    assert cluster.run(cluster.is_up)
    node, other = cluster.nodes[:2]
    assert node.broker is not None and node.broker.logs is not None
    home = next(each for each in node.broker.logs.homes if each.path.startswith("/data1"))
    node.kill()
    fault = DiskFault(operations=("write",), path_part="life", errno=reason)
    node.machine.disks["/data1"].faults.append(fault)
    before = other.image.nodes[NodeId(1)].node_epoch
    node.boot()
    assert cluster.run(lambda: other.image.nodes[NodeId(1)].node_epoch != before, 20)
    assert other.image.nodes[NodeId(1)].failed_directory_ids == (home.directory_id,)
    assert cluster.run(cluster.is_up)
    # A topic that the node has not heard of when it dies is whole: nothing was ever written to it.
    node.cut_power()
    node.machine.disks["/data1"].faults.clear()
    topic = cluster.create("of-one", replicas=1, by=other)
    node.boot()
    assert cluster.run(lambda: other.image.topics_by_id[topic].partitions[0].leader == 1, 60)


def test_a_stop_without_a_quorum_waits_for_nobody(cluster: Cluster) -> None:
    assert cluster.run(cluster.is_up)
    left = cluster.nodes[0]
    for node in cluster.nodes[1:]:
        node.kill()
    assert left.broker is not None and left.loop is not None and left.broker.store is not None
    command = DrainNode(command_id=UUID(int=77), node_id=NodeId(2), drain=Drain.LEADERS)
    deadline_ms = SimClock(left.loop).now_ms() + 60_000
    pending = left.loop.create_task(left.broker.store.propose(command, deadline_ms))
    cluster.run(lambda: False, 6)
    begun = cluster.world.now_ns
    stop = left.stop()
    assert cluster.run(stop.done, 20) and stop.exception() is None
    assert cluster.world.now_ns - begun < 3 * NS
    assert pending.done() and not isinstance(pending.result(), Applied)
