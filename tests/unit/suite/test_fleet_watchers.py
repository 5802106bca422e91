"""The watchers of the simulation of clusters: each finds its breach, and none what may be.

Nodes, logs and images are made up; the watchers are called as the simulation's hooks call them.
"""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from dlog.errors import OffsetNotAvailableError
from dlog.types import LeaderEpoch, NodeId, PartitionEpoch, PartitionId, TopicPartition
from dlogd.metadata.machine.image_changes import with_topics
from dlogd.metadata.state.image import (
    EMPTY_IMAGE,
    ClusterImage,
    NodeRegistration,
    PartitionImage,
    TopicImage,
)
from tests.histories.history import LogFacts, LogKey
from tests.simulation.fleet.checks import FleetRegistry

TOPIC_ID = UUID(int=7)
KEY = (TOPIC_ID, 0)
LOG_KEY = LogKey(TOPIC_ID, "t", 0)
NODES = (1, 2, 3)
PARTITION = PartitionImage(
    replicas=tuple(NodeId(each) for each in NODES),
    isr=tuple(NodeId(each) for each in NODES),
    leader=NodeId(1),
    leader_epoch=LeaderEpoch(0),
    partition_epoch=PartitionEpoch(0),
)

REGISTERED = {
    NodeId(each): NodeRegistration(
        node_id=NodeId(each),
        node_epoch=5,
        directory_ids=(),
        addresses=(),
        rack=None,
        version="",
        fenced=False,
    )
    for each in NODES
}


def image_of(partition: PartitionImage, unclean: int = 0) -> ClusterImage:
    """Return an image of one partition that needs two in sync."""
    configs = {"min.insync.replicas": "2"}
    topic = TopicImage(name="t", topic_id=TOPIC_ID, partitions=(partition,), configs=configs)
    return with_topics(EMPTY_IMAGE, [topic]).having(nodes=REGISTERED, unclean_elections=unclean)


def changed(partition: PartitionImage, **changes: Any) -> PartitionImage:
    """Return a partition after one step."""
    epoch = PartitionEpoch(partition.partition_epoch + 1)
    return replace(partition, partition_epoch=epoch, **changes)


class Log:
    """A log, as far as it is looked at."""

    def __init__(self, node_id: int) -> None:
        self.topic_id, self.topic_partition = TOPIC_ID, TopicPartition("t", PartitionId(0))
        self.directory = SimpleNamespace(path=f"/data0/{node_id}")
        self.closed = False
        self.log_start_offset = self.log_end_offset = 0
        self.flushed_offset = self.promised_offset = 0


class Replica:
    """A partition on one node, as far as it is looked at."""

    def __init__(self, log: Log) -> None:
        self.log, self.topic_id, self.topic_partition = log, log.topic_id, log.topic_partition
        self.closed: Exception | None = None
        self.is_ended = self.is_cutting = False
        self.leader_epoch = self.high_watermark = self.epoch_start_offset = 0

    def check_watermark(self) -> None:
        """As the broker's own."""
        if self.high_watermark < self.epoch_start_offset:
            raise OffsetNotAvailableError


class Fleet:
    """Three nodes that hold one partition, and all that watches them."""

    def __init__(self) -> None:
        self.registry = FleetRegistry()
        self.watch = self.registry.data
        self.watch.host_here = lambda: self.hosts[self.here]  # type: ignore[method-assign]
        self.here = 1
        self.hosts: dict[int, Any] = {}
        self.replicas: dict[int, Replica] = {}
        self.apply(PARTITION)
        for node_id in NODES:
            replica = self.replicas[node_id] = Replica(Log(node_id))
            broker = SimpleNamespace(
                store=SimpleNamespace(image=self.registry.newest),
                replicas=SimpleNamespace(by_id={KEY: replica}),
                clustering=None,
            )
            self.hosts[node_id] = SimpleNamespace(
                node_id=node_id,
                name=f"n{node_id}",
                incarnation=1,
                broker=broker,
                world=SimpleNamespace(now_ns=0),
            )
        self.registry.hosts = {host.name: host for host in self.hosts.values()}
        for self.here in NODES:
            self.watch._on_opened(self.replicas[self.here].log)  # type: ignore[arg-type]
        for node_id in NODES:
            self.append(node_id, 1, 2, 3)
        for node_id in NODES:
            self.move_watermark(node_id, 2)

    def apply(self, partition: PartitionImage, *, unclean: int = 0) -> None:
        """A new image is applied for the first time."""
        old, new = self.registry.newest, image_of(partition, unclean)
        self.registry._look_at_step(old, new)
        if self.hosts:
            self.watch.on_image(old, new)
            for host in self.hosts.values():
                host.broker.store.image = new
        self.registry.newest = new
        self.watch.excuses.look()

    def append(self, node_id: int, *crcs: int, epoch: int = 0) -> None:
        """Append batches of one record each."""
        self.here, log = node_id, self.replicas[node_id].log
        for crc in crcs:
            self.watch._before_append(log)  # type: ignore[arg-type]
            base_offset = log.log_end_offset
            log.log_end_offset = log.flushed_offset = log.promised_offset = base_offset + 1
            fields = (0, 0, 0, 0, crc, 0, 0)
            self.watch._on_append(log, base_offset, fields, epoch)  # type: ignore[arg-type]

    def cut(self, node_id: int, offset: int) -> None:
        """Cut a log, and look at it as after each step."""
        self.here, log = node_id, self.replicas[node_id].log
        log.log_end_offset = log.flushed_offset = log.promised_offset = offset
        self.replicas[node_id].high_watermark = min(self.replicas[node_id].high_watermark, offset)
        self.look(node_id)

    def look(self, node_id: int) -> None:
        """A step of a node ends that has changed its log."""
        self.here = node_id
        self.watch.chain.note(self.replicas[node_id].log)  # type: ignore[arg-type]
        self.watch.chain.look()

    def move_watermark(self, node_id: int, offset: int, *, epoch: int = 0, leader: int = 1) -> None:
        """A watermark moves."""
        self.here, replica = node_id, self.replicas[node_id]
        before, replica.high_watermark = replica.high_watermark, offset
        replica.leader_epoch = epoch
        replica.closed = None if node_id == leader else OSError()
        self.watch._on_watermark(replica, before, offset)

    def lead(self, node_id: int, epoch: int) -> None:
        """A node begins to lead, as one that waits for its followers."""
        self.here, replica = node_id, self.replicas[node_id]
        replica.closed, replica.leader_epoch = None, epoch
        replica.epoch_start_offset = replica.log.log_end_offset
        self.watch._on_leading(replica)

    def elect(self, node_id: int, epoch: int, *, isr: tuple[int, ...], unclean: int = 0) -> None:
        """A node is elected, and begins to lead."""
        before = self.registry.newest.topics["t"].partitions[0]
        facts = {"leader": node_id, "leader_epoch": epoch, "isr": isr}
        self.apply(changed(before, **facts), unclean=unclean)
        self.lead(node_id, epoch)

    def elect_uncleanly(self, node_id: int, *, kept: int) -> None:
        """All go down; then one leads that has less: counted, so that the loss is excused."""
        self.apply(changed(PARTITION, leader=-1, leader_epoch=1, isr=(1,)))
        self.cut(node_id, kept)
        self.elect(node_id, 2, isr=(node_id,), unclean=1)

    @property
    def violations(self) -> list[str]:
        """What was found."""
        return self.registry.violations


def two_lead(fleet: Fleet) -> None:
    for fleet.here in (1, 2):
        fleet.watch._on_led(fleet.replicas[fleet.here])


def an_epoch_falls(fleet: Fleet) -> None:
    fleet.apply(changed(PARTITION, leader_epoch=5))
    fleet.apply(changed(changed(PARTITION), leader_epoch=4))


def a_watermark_falls(fleet: Fleet) -> None:
    fleet.move_watermark(1, 1)


def a_new_leader_tells_an_old_one(fleet: Fleet) -> None:
    fleet.replicas[2].high_watermark = 1
    fleet.elect(2, 1, isr=(2, 3))
    fleet.replicas[2].epoch_start_offset = 0
    fleet.watch._on_leading(fleet.replicas[2])


def a_leader_has_less(fleet: Fleet) -> None:
    fleet.apply(changed(PARTITION, isr=(1, 3)))
    fleet.cut(2, 1)
    fleet.elect(2, 1, isr=(2,))


def a_leader_has_less_after_an_excuse(fleet: Fleet) -> None:
    fleet.elect_uncleanly(2, kept=1)
    fleet.append(2, 9, 10, epoch=2)
    fleet.apply(changed(changed(changed(PARTITION)), leader=2, leader_epoch=2, isr=(2, 3)))
    fleet.cut(3, 1)
    fleet.append(3, 9, 10, epoch=2)
    fleet.move_watermark(2, 3, epoch=2, leader=2)
    assert not fleet.violations
    fleet.apply(changed(fleet.registry.newest.topics["t"].partitions[0], isr=(2,)))
    fleet.cut(3, 1)
    fleet.elect(3, 3, isr=(3,))


def a_leader_has_less_after_one_power_cut(fleet: Fleet) -> None:
    fleet.watch.excuses.on_power_cut(2)
    fleet.hosts[2].incarnation = 2
    a_leader_has_less(fleet)


def logs_differ(fleet: Fleet) -> None:
    fleet.cut(3, 2)
    fleet.append(3, 8)
    fleet.move_watermark(1, 3)
    fleet.move_watermark(3, 3)


def logs_differ_after_an_excuse(fleet: Fleet) -> None:
    fleet.elect_uncleanly(2, kept=1)
    fleet.append(2, 9, epoch=2)
    fleet.apply(changed(changed(changed(PARTITION)), leader=2, leader_epoch=2, isr=(2, 3)))
    fleet.move_watermark(2, 2, epoch=2, leader=2)
    fleet.move_watermark(3, 2, epoch=2, leader=2)  # it holds what the history before had there


def an_isr_has_a_stranger(fleet: Fleet) -> None:
    fleet.apply(changed(PARTITION, isr=(1, 2, 4)))


def too_few_are_in_sync(fleet: Fleet) -> None:
    fleet.apply(changed(PARTITION, isr=(1,)))
    fleet.move_watermark(1, 3)


def more_is_flushed_than_there_is(fleet: Fleet) -> None:
    fleet.replicas[1].log.flushed_offset = 4
    fleet.look(1)


def a_watermark_is_beyond_the_end(fleet: Fleet) -> None:
    fleet.replicas[1].high_watermark = 4
    fleet.look(1)


def a_log_has_a_gap(fleet: Fleet) -> None:
    fleet.replicas[2].log.log_end_offset = 5
    fleet.append(2, 4)


def who_is_in_sync_has_less(fleet: Fleet) -> None:
    fleet.cut(3, 1)


def more_is_read_than_is_committed(fleet: Fleet) -> None:
    fleet.watch.on_read("c", LOG_KEY, 2)


BREACHES: dict[str, list[Callable[[Fleet], None]]] = {
    "SingleLeaderPerEpoch": [two_lead],
    "MonotonicLeaderEpoch": [an_epoch_falls],
    "MonotonicHighWatermark": [a_watermark_falls, a_new_leader_tells_an_old_one],
    "CommittedNeverLost": [
        a_leader_has_less,
        a_leader_has_less_after_an_excuse,
        a_leader_has_less_after_one_power_cut,
    ],
    "LogsAgreeBelowHighWatermark": [logs_differ, logs_differ_after_an_excuse],
    "IsrSubsetOfReplicas": [an_isr_has_a_stranger],
    "MinIsrHonoured": [too_few_are_in_sync],
    "OffsetsChain": [
        more_is_flushed_than_there_is,
        a_watermark_is_beyond_the_end,
        a_log_has_a_gap,
    ],
    "IsrHoldsCommitted": [who_is_in_sync_has_less],
    "ReadBelowHighWatermark": [more_is_read_than_is_committed],
}
CASES = [(name, breach) for name, breaches in BREACHES.items() for breach in breaches]


@pytest.fixture(name="fleet")
def _fleet() -> Fleet:
    fleet = Fleet()
    fleet.registry.history.facts[LOG_KEY] = LogFacts(flush_policy="never")
    assert not fleet.violations
    return fleet


@pytest.mark.parametrize(("name", "breach"), CASES, ids=[breach.__name__ for _, breach in CASES])
def test_each_breach_is_found(fleet: Fleet, name: str, breach: Callable[[Fleet], None]) -> None:
    breach(fleet)
    assert any(text.startswith(f"{name}:") for text in fleet.violations), fleet.violations


def test_an_unclean_election_that_is_counted_may_lose(fleet: Fleet) -> None:
    fleet.elect_uncleanly(2, kept=1)
    assert not fleet.violations
    assert fleet.watch.committed_end(KEY) == 1
    # For a while somebody may tell of what he read before.
    fleet.registry.stale_max_ns = 1
    fleet.watch.on_read("c", LOG_KEY, 1)
    assert not fleet.violations


def test_an_unclean_election_that_nobody_counts_may_not(fleet: Fleet) -> None:
    fleet.apply(changed(PARTITION, leader=-1, leader_epoch=1, isr=(1,)))
    fleet.cut(2, 1)
    fleet.elect(2, 2, isr=(2,))
    assert any(text.startswith("CommittedNeverLost") for text in fleet.violations)


def test_power_cuts_of_as_many_as_are_needed_may_lose(fleet: Fleet) -> None:
    for node_id in (2, 3):
        assert not fleet.watch.true_log(KEY).is_loose
        fleet.watch.excuses.on_power_cut(node_id)
    assert fleet.watch.true_log(KEY).is_loose
    fleet.apply(changed(PARTITION, leader=-1, leader_epoch=1, isr=(1,)))
    fleet.cut(2, 1)
    fleet.elect(2, 2, isr=(2,))
    assert not fleet.violations


def test_who_lost_power_counts_no_more_once_it_is_in_sync_in_a_later_life(fleet: Fleet) -> None:
    excuses = fleet.watch.excuses
    excuses.on_power_cut(2)
    host = fleet.hosts[2]
    host.incarnation = 2
    assert excuses.is_damaged(KEY, 2)
    lease = SimpleNamespace(node_epoch=REGISTERED[NodeId(2)].node_epoch)
    host.broker.clustering = SimpleNamespace(lease=lease)
    assert not excuses.is_damaged(KEY, 2)
    excuses.on_power_cut(3)
    assert not fleet.watch.true_log(KEY).is_loose


def test_under_always_a_power_cut_excuses_nothing(fleet: Fleet) -> None:
    fleet.registry.history.facts[LOG_KEY].flush_policy = "always"
    for node_id in NODES:
        fleet.watch.excuses.on_power_cut(node_id)
    assert not fleet.watch.true_log(KEY).is_loose


def test_what_was_not_lost_is_judged_on_once_all_are_in_sync(fleet: Fleet) -> None:
    excuses = fleet.watch.excuses
    for node_id in (2, 3):
        excuses.on_power_cut(node_id)
    excuses.forget_node(2)
    excuses.forget_node(3)
    excuses.look()
    assert not fleet.watch.true_log(KEY).is_loose
    assert fleet.watch.committed_end(KEY) == 2
    a_leader_has_less(fleet)
    assert any(text.startswith("CommittedNeverLost") for text in fleet.violations)


def test_a_log_may_begin_anew_where_its_leader_begins(fleet: Fleet) -> None:
    fleet.apply(changed(PARTITION, isr=(1, 2)))
    log = fleet.replicas[3].log
    log.log_start_offset = 7
    fleet.replicas[3].high_watermark = 7
    fleet.cut(3, 7)
    fleet.replicas[3].high_watermark = 7
    fleet.append(3, 4)
    fleet.look(3)
    assert not fleet.violations
