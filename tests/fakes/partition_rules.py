"""What must hold of the replicas of one partition, at each moment of their lives.

What was acknowledged is on all that are in sync, flushed; nobody differs below the watermarks; a
leader's watermark never falls, nor what consumers see; what was deleted stays so. Nobody waits for
what is there.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

from dlog.errors import WireError
from dlog.types import NodeId
from dlogd.metadata.state.image import PartitionImage
from tests.fakes.metadata_cluster import FakeCluster
from tests.fakes.plain_log import PlainLog
from tests.fakes.replica_lives import PlainNode

NODES = tuple(map(NodeId, (1, 2, 3)))


class PartitionRules:
    """The replicas, and what was promised to users. Whoever derives from it lets things happen."""

    def __init__(self) -> None:
        self.cluster = FakeCluster(len(NODES))
        self.logs: dict[NodeId, PlainLog] = {}
        self.nodes: dict[NodeId, PlainNode] = {}  # those that run
        self.proposals: list[tuple[Any, asyncio.Future[Any]]] = []
        self.acked: dict[int, bytes] = {}
        self.acked_end = 0  # behind the highest of them
        self.dropped = 0  # all below may be gone
        self.deleted = 0  # all below must be gone
        self.visible = 0  # consumers have seen so far
        self.marks: dict[tuple[PlainNode, int], int] = {}
        self.done: list[str] = []

    def on_acked(self, base: int, end: int, data: bytes) -> None:
        self.acked.update(dict.fromkeys(range(base, end), data))
        self.acked_end = max(self.acked_end, end)

    def check(self) -> None:
        present = self.cluster.partition()
        for node_id in self.members(present):
            self.check_member(node_id)
        for node in self.nodes.values():
            log, mark = node.log, node.partition.high_watermark
            if not (node.partition.is_cutting or node.partition.is_ended):
                assert 0 <= log.log_start_offset <= mark <= log.log_end_offset, self.story()
            if node.leads:
                self.check_leader(node, mark, present)
                self.check_waiting(node)
        alike = [node for node in self.nodes.values() if self.must_agree(node.node_id, present)]
        for one in alike:
            for two in alike:
                end = min(one.partition.high_watermark, two.partition.high_watermark)
                start = max(one.log.log_start_offset, two.log.log_start_offset)
                same = one.log.content(start, end) == two.log.content(start, end)
                assert same, (one.node_id, two.node_id, self.story())

    def members(self, present: PartitionImage) -> Iterable[NodeId]:
        """Return who may be elected, so that it must have all that was acknowledged."""
        members = dict.fromkeys((present.leader, *present.isr, *present.elr))
        return [each for each in members if each in NODES]

    def must_agree(self, node_id: NodeId, present: PartitionImage) -> bool:
        """Whether a replica's records below its watermark are those of the others."""
        return True

    def check_member(self, node_id: NodeId) -> None:
        log = self.logs[node_id]
        assert log.log_start_offset <= self.dropped, self.story()
        assert log.log_start_offset >= self.deleted, (node_id, self.deleted, self.story())
        # Deleted or not: its offsets would be given out again.
        assert log.flushed_offset >= self.acked_end, (node_id, self.acked_end, self.story())
        held = log.content(log.log_start_offset, log.flushed_offset)
        for offset, data in self.acked.items():
            if offset >= log.log_start_offset:
                assert held.get(offset) == data, (node_id, offset, self.story())

    def check_leader(self, node: PlainNode, mark: int, present: Any) -> None:
        place = node, node.partition.leader_epoch
        assert mark >= self.marks.get(place, 0), self.story()
        self.marks[place] = mark
        if not node.lease.valid_until_us or present.leader_epoch != node.partition.leader_epoch:
            return
        for each in present.isr:
            assert self.logs[each].flushed_offset >= mark, (each, mark, self.story())
        try:
            node.partition.check_watermark()
        except WireError:
            return
        assert mark >= self.visible, self.story()
        self.visible = mark

    def check_waiting(self, node: PlainNode) -> None:
        """Whoever is due has been answered, not only when the next follower says something."""
        partition, log = node.partition, node.log
        leader, acks = partition.leader, partition._acks
        assert leader is not None
        mark = partition.high_watermark
        assert leader.watermark(log.promised_offset, mark) == mark, self.story()
        for queue, reached in ((acks.all, mark), (acks.own, log.promised_offset)):
            assert all(entry[0] > reached for entry in queue._entries), self.story()
        if not leader.is_short:
            low = leader.low_watermark(log.log_start_offset)
            due = [at for at, future in partition.trims._waiting if at <= low and not future.done()]
            assert not due, (node.node_id, due, low, self.story())

    def story(self) -> str:
        logs = [
            f"{n}: {log.log_start_offset}..{log.flushed_offset}..{log.log_end_offset}"
            f" {log.epochs.entries}"
            for n, log in self.logs.items()
        ]
        known = [
            f"{n}: hw={node.partition.high_watermark} leads={node.leads}"
            f" epoch={node.partition.leader_epoch}"
            for n, node in self.nodes.items()
        ]
        return "\n".join([str(self.cluster.partition()), *logs, *known, *self.done[-60:]])

    def is_whole(self) -> bool:
        present = self.cluster.partition()
        if set(present.isr) != set(NODES) or present.leader not in self.nodes or self.proposals:
            return False
        start = max(log.log_start_offset for log in self.logs.values())
        ends = {log.log_end_offset for log in self.logs.values()}
        marks = {node.partition.high_watermark for node in self.nodes.values()}
        contents = [log.content(start, log.log_end_offset) for log in self.logs.values()]
        return ends == marks and len(ends) == 1 and all(each == contents[0] for each in contents)
