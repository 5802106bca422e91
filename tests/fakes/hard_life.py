"""Hard lives of the replicas of one partition: records may be lost, and replicas move.

Beside what `tests.fakes.partition_life` does: all in sync go at once and an operator lets another
one lead; disks are replaced, or come back with less than they had; all records are deleted, here or
everywhere; replicas move, and logs of those that have gone are deleted; `min.insync.replicas`
changes; nodes stop in order; a connection ends for one side first, and reports come late. Each life
has only some of these: what makes one thing likely makes another one impossible.

An unclean election may lose what was acknowledged. From then on what counts is what its leader has.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from dlog.types import NodeId
from dlogd.metadata.commands.codec import (
    AlterAssignments,
    AlterConfigs,
    ConfigChange,
    ElectionKind,
    Proof,
    Reassignment,
    ShutDownNode,
)
from dlogd.metadata.state.image import PartitionImage
from dlogd.replication.placement_diff import has_place
from tests.fakes.partition_life import Action, PartitionLife
from tests.fakes.partition_rules import NODES
from tests.fakes.plain_log import PAUSES, PlainLog
from tests.fakes.replica_lives import PlainNode

SLOW_TRIMS = (60, 400, 1500)
"""In turns of the loop, of which a step takes some five."""


class HardLife(PartitionLife):
    """Invariant: `successor` is who was elected uncleanly and is still cutting its log."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.successor: NodeId | None = None
        self.dropped_ever = 0
        self.quiet_steps = 0  # so many are left in which nobody produces
        self.leaving: set[PlainNode] = set()  # about to delete their replica
        every: tuple[list[Action], ...] = (
            [self.elect_uncleanly, self.lose_all_in_sync],
            [self.lose_disk],
            [self.reassign, self.reassign],
            [self.change_min_isr],
            [self.shut_down, self.transfer, self.transfer],
            [self.delete_all, self.retain_all, self.retain_all],
            [self.rest, self.rest],
            [self.crash_cutting, self.crash_cutting],
            [self.end_one_side, self.slow_down, self.slow_down],
        )
        self.hardships = [each for kind in every if self.rng.random() < 0.6 for each in kind]
        self.cuts_wires_halfway = self.rng.random() < 0.5
        if self.rng.random() < 0.7:
            self.logs[self.rng.choice(NODES)].trim_pauses = SLOW_TRIMS

    @property
    def is_lossy(self) -> bool:
        """Whether an election has lost records, perhaps."""
        return bool(self.image.unclean_elections)

    def actions(self) -> tuple[tuple[list[Action], float], ...]:
        often, (seldom, times), (rare, weight) = super().actions()
        seldom = [*seldom, self.connect, self.recover]
        if self.quiet_steps:
            emptying = [self.delete_all, self.transfer, *self.hardships]
            return often, (seldom, times), (rare, weight / 4), (emptying, 2)
        if self.hardships:
            return often, (seldom, times), (rare, weight), (self.hardships, 0.6 * self.unrest)
        return often, (seldom, times), (rare, weight)

    async def step(self) -> None:
        self.quiet_steps = max(0, self.quiet_steps - 1)
        await super().step()
        if self.rng.random() < 0.5:
            self.clear_places()

    def recover(self) -> None:
        """Let a node that is down run, or one that runs hear of everything and lead again."""
        down = [each for each in NODES if each not in self.nodes]
        weak = [each for each in self.nodes.values() if not each.lease.valid_until_us]
        if down:
            self.start(self.rng.choice(down), Proof.FLUSHED)
        elif weak:
            node = self.rng.choice(weak)
            node.see(self.image)
            self.give_lease(node)

    # -- what is lost

    def apply(self, command: Any) -> Any:
        before = self.image.unclean_elections
        outcome = super().apply(command)
        if self.image.unclean_elections > before:
            self.successor = self.cluster.partition().leader
            self.done.append(f"elected uncleanly: {self.successor}")
            self.forgive()
        return outcome

    def forgive(self) -> None:
        """Count only on what is on the disk of the successor, until it begins to lead."""
        if self.successor is None:
            return
        log = self.logs[self.successor]
        start, flushed = log.log_start_offset, log.flushed_offset
        held = log.content(start, flushed)
        self.acked = {n: data for n, data in self.acked.items() if held.get(n) == data}
        self.acked_end = min(self.acked_end, flushed)
        # What was dropped of a history that did not count counts again when that one is back.
        self.dropped_ever = max(self.dropped_ever, self.dropped)
        self.dropped = max(start, min(self.dropped_ever, log.log_end_offset), *log.trims)
        self.deleted = min(self.deleted, start)
        self.visible = min(self.visible, flushed)
        node = self.nodes.get(self.successor)
        if node is None or not node.partition.is_cutting:
            self.successor = None

    def check(self) -> None:
        self.forgive()
        super().check()

    def must_agree(self, node_id: NodeId, present: PartitionImage) -> bool:
        """Who has not yet heard of an unclean election may have what does not count any more."""
        return node_id in present.isr or not (self.is_lossy or node_id not in present.replicas)

    def elect_uncleanly(self) -> None:
        self.order_election(ElectionKind.UNCLEAN)

    def lose_all_in_sync(self) -> None:
        """Take all away at once who may lead, and let another one do so."""
        present = self.cluster.partition()
        counted = (*present.isr, *present.elr)
        others = [each for each in present.replicas if each not in counted]
        if not others:
            return
        for each in counted:
            if (node := self.nodes.get(each)) is not None:
                self.lose_power(node)
            self.note_fenced(each)
        for each in others:
            if each not in self.nodes:
                self.start(each, Proof.FLUSHED)
            self.nodes[each].see(self.image)
            self.give_lease(self.nodes[each])
        self.elect_uncleanly()

    def lose_disk(self) -> None:
        """Start a node that proves nothing: its disk is another one, or lacks what came last."""
        down = [each for each in NODES if each not in self.nodes]
        if not down:
            return
        node_id = self.rng.choice(down)
        old = self.logs[node_id]
        self.logs[node_id] = old.holding([], 0, 0)
        if self.rng.random() < 0.5:
            kept, start = old.batches[: self.rng.randint(0, len(old.batches))], old.log_start_offset
            self.logs[node_id] = old.holding(kept, start, kept[-1].end if kept else start)
        self.stored[node_id] = min(self.stored[node_id], self.logs[node_id].log_end_offset)
        self.start(node_id, Proof.NONE)

    def crash_cutting(self) -> None:
        """Take the power from who is about to cut its log."""
        cutting = [each for each in self.nodes.values() if each.partition.is_cutting]
        if cutting:
            self.lose_power(self.rng.choice(cutting))

    # -- what is written and deleted

    def rest(self) -> None:
        """Let producers send nothing for a while: logs become empty, and leaders change then."""
        self.quiet_steps = self.rng.choice((30, 60, 100))

    def produce(self) -> None:
        if not self.quiet_steps:
            super().produce()

    def delete_all(self) -> None:
        """Somebody deletes all that consumers see."""
        leaders = [each for each in self.nodes.values() if each.leads]
        if leaders:
            node = self.rng.choice(leaders)
            self.trim(node, node.partition.high_watermark, is_deletion=True)

    def retain_all(self) -> None:
        """All records of one replica are too old."""
        if (node := self.any_node()) is not None:
            limit = min(node.partition.high_watermark, node.log.promised_offset)
            self.trim(node, limit, is_deletion=False)

    # -- what is moved

    def reassign(self) -> None:
        count = self.rng.choice((1, 2, 3, 3))
        wanted = tuple(self.rng.sample(NODES, count)) if self.rng.random() < 0.8 else None
        self.order_replicas(wanted)

    def order_replicas(self, wanted: tuple[NodeId, ...] | None) -> None:
        change = Reassignment(topic_id=self.topic_id, partition=0, replicas=wanted)
        self.apply(AlterAssignments(command_id=self.new_id(), reassignments=(change,)))

    def clear_places(self) -> None:
        """Let who has no place any more delete its replica, after a while."""
        for node in self.nodes.values():
            if not self.has_place(node) and node not in self.leaving and node.log.log_end_offset:
                self.leaving.add(node)
                self.work[0].spawn("delete log", self._delete_log(node))

    def has_place(self, node: PlainNode) -> bool:
        return has_place(node.image, node.key, node.node_id)

    async def _delete_log(self, node: PlainNode) -> None:
        for _ in range(self.rng.choice((0, 3, 30))):
            await asyncio.sleep(0)
        self.leaving.discard(node)
        if self.nodes.get(node.node_id) is node and not self.has_place(node):
            self.done.append(f"deleted the log of {node.node_id}")
            log: PlainLog = node.log.holding([], 0, 0)
            self.logs[node.node_id] = log
            node.replace_log(log)

    # -- how it is led

    def change_min_isr(self) -> None:
        change = ConfigChange(key="min.insync.replicas", value=str(self.rng.randint(1, 3)))
        self.apply(
            AlterConfigs(command_id=self.new_id(), topic_id=self.topic_id, changes=(change,))
        )

    def transfer(self) -> None:
        """Let another replica in sync lead, the one that has deleted most."""
        present = self.cluster.partition()
        others = [each for each in present.isr if each != present.leader]
        if others and not (present.adding or present.removing):
            first = max(others, key=lambda each: self.logs[each].log_start_offset)
            if self.quiet_steps and self.logs[first].batches:
                return  # it is about to be empty
            self.order_replicas((first, *(n for n in present.replicas if n != first)))
            self.elect()

    def shut_down(self) -> None:
        """Stop a node in order: others lead before it hears that itself."""
        if (node := self.any_node()) is None or not node.lease.valid_until_us:
            return
        id_, epoch = node.node_id, node.node_epoch
        self.apply(ShutDownNode(command_id=self.new_id(), node_id=id_, node_epoch=epoch))
        self.work[0].spawn("shut down", self._stop(node))

    async def _stop(self, node: PlainNode) -> None:
        for _ in range(self.rng.choice((0, 12, 60))):
            await asyncio.sleep(0)
        if self.nodes.get(node.node_id) is node:
            self.lose_power(node)

    # -- how they are joined

    def end_one_side(self) -> None:
        if self.wires:
            self._end_one_side(self.rng.choice(list(self.wires.values())))

    def _end_one_side(self, wire: Any) -> None:
        end: Callable[[], None] = self.rng.choice((wire.end_leader, wire.end_follower))
        end()

    def slow_down(self) -> None:
        """Let reports take long, or no longer."""
        if self.wires:
            wire = self.rng.choice(list(self.wires.values()))
            wire.is_slow = not wire.is_slow

    def end_wires(self, node: PlainNode) -> None:
        if not self.cuts_wires_halfway:
            super().end_wires(node)
            return
        for wire in self.wires.values():
            if wire.follower is node:
                wire.end_follower()
            elif wire.leader is node:
                wire.end_leader()

    # -- in the end

    def mend(self, count: int) -> None:
        if count == 0:
            self.quiet_steps = 0
            for log in self.logs.values():
                log.trim_pauses = PAUSES
            for wire in self.wires.values():
                wire.abort("")
        self.clear_places()
        present = self.cluster.partition()
        if count % 20 == 0 and (set(present.replicas) != set(NODES) or present.removing):
            self.order_replicas(NODES)
        if count % 20 == 19 and present.leader not in NODES:
            self.elect_uncleanly()
