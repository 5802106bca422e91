"""What a node tells the cluster of its replicas: in reports of bounded size, until all is known."""

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from dlog.types import NodeId
from dlogd.metadata.commands.codec import ReportReplicas
from dlogd.metadata.state.image import Applied, ClusterImage, Outcome, Unknown
from dlogd.node import offline_reports
from dlogd.node.offline_reports import Findings, Key, OfflineReports, report
from dlogd.runtime.tasks import Tasks
from tests.fakes.logs import run_virtual
from tests.fakes.metadata_cluster import FakeCluster
from tests.fakes.server import FakeClock

ME = NodeId(1)


class Node:
    """A node with ten replicas, and the store that it reports to."""

    def __init__(self) -> None:
        self.cluster = FakeCluster(2)
        self.cluster.create("t", *[(1, 2)] * 10)
        self.topic_id = self.cluster.image.topics["t"].topic_id
        self.out: frozenset[Key] = frozenset()
        self.failed: tuple[UUID, ...] = ()
        self.commands: list[ReportReplicas] = []
        self.unknown = 0

    @property
    def image(self) -> ClusterImage:
        return self.cluster.image

    async def propose(self, command: Any, deadline_ms: int) -> Outcome:
        self.commands.append(command)
        if self.unknown:
            self.unknown -= 1
            return Unknown(message="nobody leads")
        value = self.cluster.apply(command)
        return Applied(version=self.image.version, value=value)

    def fail(self, *numbers: int) -> None:
        self.out = frozenset((self.topic_id, number) for number in numbers)

    def known(self) -> set[int]:
        partitions = self.image.topics["t"].partitions
        return {n for n, partition in enumerate(partitions) if ME in partition.offline}

    def report(self) -> ReportReplicas | None:
        found = Findings(offline=self.out, online=lambda _: True, failed_directory_ids=self.failed)
        return report(self.image, ME, self.cluster.epoch(1), found, self.cluster.new_id())

    def sizes(self) -> list[tuple[int, int]]:
        """Return how many each report named, out of service and in it again."""

        def count(partitions: Any) -> int:
            return sum(len(numbers) for _, numbers in partitions)

        return [(count(each.offline), count(each.online)) for each in self.commands]


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offline_reports, "REPLICAS_MAX", 4)


def test_a_report_names_no_more_than_it_may() -> None:
    node = Node()
    assert node.report() is None
    node.fail(0, 1, 2)
    node.cluster.apply(node.report())
    node.fail(2, 3, 4, 5, 6, 7)
    node.failed = (UUID(int=1),)
    first = node.report()
    assert first is not None
    assert first.offline == ((node.topic_id, (3, 4, 5, 6)),) and first.online == ()
    assert first.failed_directory_ids == node.failed
    node.cluster.apply(first)
    second = node.report()
    assert second is not None
    assert second.offline == ((node.topic_id, (7,)),)
    assert second.online == ((node.topic_id, (0, 1)),)
    assert second.failed_directory_ids == ()
    node.cluster.apply(second)
    assert node.report() is None
    assert node.known() == {2, 3, 4, 5, 6, 7}


def test_all_is_reported_at_once_and_again_after_an_unknown_outcome() -> None:
    async def scenario() -> None:
        node = Node()
        node.fail(*range(10))
        node.unknown = 1
        stopped = Tasks()
        reports = OfflineReports(
            node,  # type: ignore[arg-type]
            ME,
            SimpleNamespace(failed_directory_ids=()),  # type: ignore[arg-type]
            SimpleNamespace(offline_keys=lambda: node.out, by_id=set()),  # type: ignore[arg-type]
            clock=FakeClock(),
            new_id=node.cluster.new_id,
            node_epoch=lambda: node.cluster.epoch(1),
        )
        reports.start(stopped)
        await asyncio.sleep(offline_reports.LOOK_S / 2)
        assert node.sizes() == [(4, 0)], "an unknown outcome is waited after"
        await asyncio.sleep(offline_reports.LOOK_S)
        assert node.sizes() == [(4, 0), (4, 0), (4, 0), (2, 0)]
        assert node.known() == set(range(10))
        await asyncio.sleep(offline_reports.LOOK_S * 5)
        assert len(node.commands) == 4
        await stopped.close()

    run_virtual(scenario)
