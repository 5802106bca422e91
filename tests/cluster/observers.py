"""Who watches what the nodes tell of epochs and leaders while a cluster is harmed."""

import asyncio

from dlog.client.admin import Admin
from dlog.client.retry import RetryPolicy
from dlog.client.views import ClusterView, PartitionView
from dlog.errors import DlogError
from dlog.transport import ConnectionOptions
from tests.cluster.nodes import Node

SEEN_EVERY_S = 0.3

Name = tuple[object, int]  # topic id, partition


class Book:
    """What all nodes have told; shared by the observers of a run."""

    def __init__(self) -> None:
        self._leaders: dict[tuple[Name, int], tuple[int, int]] = {}

    def take(self, node_id: int, name: Name, told: PartitionView) -> None:
        """Note what a node tells; raise AssertionError when that can never be so.

        One leader in an epoch, whoever is asked, and only replicas in sync.
        """
        where = f"node {node_id} tells of {name}: {told}"
        assert set(told.isr) <= set(told.replicas), where
        if told.leader < 0:
            return
        key = (name, told.leader_epoch)
        leader, by = self._leaders.setdefault(key, (told.leader, node_id))
        assert leader == told.leader, f"{where}, but node {by} told of the leader {leader}"


class Observer:
    """Watches epochs through one node's answers; they never go back, also over restarts.

    A node serves clients only when its image has all that was acknowledged before.
    """

    def __init__(self, node: Node, book: Book) -> None:
        self._node = node
        self._book = book
        self._leader_epochs: dict[Name, int] = {}
        self._version = (0, -1)  # of a life
        self.answers = 0

    async def run(self) -> None:
        """Look again and again; raise AssertionError when something went back."""
        policy = RetryPolicy(deadline_s=0, lookup_timeout_s=1)
        options = ConnectionOptions(client_id="observer", connect_timeout_s=1)
        while True:
            # Only this node is asked: each look begins anew at its own address.
            try:
                async with Admin(
                    [self._node.client_address], policy=policy, connection=options
                ) as admin:
                    self.take(await admin.describe_topics())
            except DlogError:
                pass
            await self._look_at_version()
            await asyncio.sleep(SEEN_EVERY_S)

    def take(self, view: ClusterView) -> None:
        """Note what the node tells; raise AssertionError when something went back."""
        self.answers += 1
        for topic in view.topics.values():
            for each in topic.partitions:
                key = (topic.topic_id, each.partition)
                before = self._leader_epochs.get(key, -1)
                assert each.leader_epoch >= before, (
                    f"node {self._node.node_id}: leader epoch of {topic.name}-{each.partition}"
                    f" went from {before} back to {each.leader_epoch}"
                )
                self._leader_epochs[key] = each.leader_epoch
                self._book.take(self._node.node_id, key, each)

    async def _look_at_version(self) -> None:
        life = self._node.lives
        status = await self._node.status()
        if status is None or life != self._node.lives:
            return
        seen = (life, status["metadata_version"])
        assert seen >= self._version, f"node {self._node.node_id}: {self._version} then {seen}"
        self._version = seen
