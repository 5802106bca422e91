"""A node whose part ends that it cannot do without fails, and is started anew."""

import gc
import logging
from collections.abc import Iterator
from unittest import mock

import pytest

from dlogd.controller.leadership_transfer import LeadershipTransfer
from dlogd.controller.lease_keeper import LeaseKeeper
from dlogd.controller.lease_watch import LeaseWatch
from dlogd.controller.leases import LeaseTable
from dlogd.controller.planner import Planner
from dlogd.controller.prober import Prober
from dlogd.node.offline_reports import OfflineReports
from dlogd.replication.follower.leader_fetcher import LeaderFetcher
from dlogd.replication.leader.isr import IsrKeeper
from dlogd.replication.replica_manager import ReplicaManager
from tests.fakes.three_nodes import Cluster


@pytest.fixture
def clusters() -> Iterator[list[Cluster]]:
    made: list[Cluster] = []
    yield made
    # What is left of the nodes ends here, and not in the middle of another test.
    for cluster in made:
        cluster.nodes.clear()
    logging.disable(logging.ERROR)
    made.clear()
    gc.collect()
    logging.disable(logging.NOTSET)


@pytest.fixture
def cluster(clusters: list[Cluster]) -> Cluster:
    clusters.append(Cluster())
    return clusters[0]


@pytest.mark.parametrize(
    ("owner", "method", "task"),
    [
        (Planner, "plan", "controller"),
        (LeaseWatch, "_tell", "lease-watch"),
        (LeaseTable, "on_contact", "lease-authority"),
        (LeaseKeeper, "_take", "lease"),
        (ReplicaManager, "_reconcile", "reconcile partitions"),
        (OfflineReports, "_compare", "report replicas"),
        (IsrKeeper, "_join_all", "join ISRs"),
        (IsrKeeper, "_drop_laggards", "watch for laggards"),
        (LeaderFetcher, "_connect_and_follow", "follow node"),
    ],
)
def test_a_node_that_lost_a_vital_part_fails(
    cluster: Cluster, owner: type, method: str, task: str
) -> None:
    assert cluster.run(cluster.is_up)
    with mock.patch.object(owner, method, side_effect=ZeroDivisionError("a defect")):
        key = (cluster.create("t", partitions=3, replicas=3), 0)
        for node in cluster.nodes:
            assert node.broker is not None and node.broker.replicating is not None
            node.broker.replicating.keeper.may_join(key)
        assert cluster.run(lambda: any(each.failures for each in cluster.nodes))
    said = [reason for each in cluster.nodes for reason in each.failures]
    assert f"its task '{task}" in said[0] and "ZeroDivisionError('a defect')" in said[0]


def test_a_voter_fails_that_cannot_hand_its_office_on(clusters: list[Cluster]) -> None:
    with mock.patch.object(LeadershipTransfer, "_hand_on", side_effect=ZeroDivisionError):
        clusters.append(Cluster())
        nodes = clusters[0].nodes
        assert clusters[0].run(lambda: any(each.failures for each in nodes))
    assert "its task 'succession'" in next(reason for each in nodes for reason in each.failures)


def test_what_was_begun_for_another_node_is_not_vital(cluster: Cluster) -> None:
    assert cluster.run(cluster.is_up)
    failing = mock.AsyncMock(side_effect=ZeroDivisionError)
    with mock.patch.object(Prober, "probe", failing):
        cluster.nodes[2].cut_power()
        cluster.run(lambda: failing.called, 10)
        cluster.run(lambda: False, 1)
    assert failing.called and not any(each.failures for each in cluster.nodes)
