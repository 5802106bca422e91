"""Random lives of one partition: those who have what was acknowledged are never all given up.

Beside the machine runs the plainest of models: which nodes have all that may have been
acknowledged. While there is a leader and an ISR that is large enough, that is the ISR; who loses
its data is no more among them, nor whose disk fails, but for the last one; an unclean election,
which is counted, makes the leader the only one. Whatever else is done, a leader is one of them, and
one of them stays a replica.
"""

import random
from typing import Any

import pytest

from dlog.types import NO_NODE, NodeId
from dlogd.metadata.commands.codec import (
    AlterAssignments,
    ElectionKind,
    ElectLeaders,
    FenceNodes,
    Proof,
    Reassignment,
    ReportReplicas,
    UnfenceNode,
    encode,
)
from dlogd.metadata.machine import apply
from dlogd.metadata.state.image import Applied, PartitionImage
from tests.fakes.controlled_cluster import QUICK, Controlled
from tests.fakes.metadata_cluster import FakeCluster

NODES = (1, 2, 3, 4)
WALKS, STEPS = 300, 80


class Life:
    """One partition, what is done to it, and who has its records."""

    def __init__(self, seed: int, cluster: FakeCluster | None = None) -> None:
        self.rng = random.Random(seed)
        self.cluster = cluster or FakeCluster(len(NODES))
        replicas = self.rng.sample(NODES, self.rng.randint(1, 3))
        self.min_isr = self.rng.randint(1, 3)
        self.cluster.create("t", replicas, min_insync_replicas=str(self.min_isr))
        self.topic_id = self.cluster.image.topics["t"].topic_id
        self.holders = set(replicas)
        self.done: list[str] = []

    @property
    def partition(self) -> PartitionImage:
        return self.cluster.partition()

    def step(self) -> None:
        """Do something; it may be refused."""
        actions = (self.die, self.come_back, self.come_back, self.change_isr, self.change_isr)
        actions = (*actions, self.reassign, self.elect, self.report)
        self.rng.choice(actions)()

    def apply(self, command: Any, *, lost: int = 0, caught_up: tuple[int, ...] = ()) -> None:
        before, unclean = self.partition, self.cluster.image.unclean_elections
        image, outcome = apply.apply(self.cluster.image, encode(command))
        if not isinstance(outcome, Applied):
            return
        self.cluster.image = image
        self.done.append(f"{command} -> {self.partition}")
        self.holders.discard(lost)
        if before.leader in self.holders:
            self.holders.update(caught_up)  # the leader says so
        story = "\n".join(self.done)
        if image.unclean_elections > unclean:
            self.holders = {self.partition.leader}
        elif self.holders & set(before.replicas):
            assert self.holders & set(self.partition.replicas), story
            assert self.partition.leader in {NO_NODE, *self.holders}, story
        self.holders &= set(self.partition.replicas)  # who is none any more deletes its log
        self.holders = self.holders - set(self.partition.offline) or self.holders
        self.acknowledge()

    def acknowledge(self) -> None:
        """Take in what the leader may acknowledge now."""
        now = self.partition
        settled = len(now.replicas) - len(now.adding)
        if now.has_leader and len(now.isr) >= max(1, min(self.min_isr, settled)):
            self.holders = set(now.isr)
        elif now.leader in self.holders:
            self.holders |= set(now.isr)

    def die(self) -> None:
        node = NodeId(self.rng.choice(NODES))
        epoch = self.cluster.epoch(node)
        self.apply(FenceNodes(command_id=self.cluster.new_id(), nodes=((node, epoch),)))

    def come_back(self) -> None:
        """Start a node that is down, with or without all that it had."""
        down = [each for each in NODES if not self.cluster.image.nodes[NodeId(each)].active]
        if not down:
            return
        node = self.rng.choice(down)
        proof = self.rng.choice((Proof.CLEAN, Proof.CLEAN, Proof.FLUSHED, Proof.NONE))
        mine = ((self.topic_id, (0,)),) if node in self.partition.replicas else ()
        fate = self.rng.choice(("whole", "whole", "offline", "unproven", "missing"))
        fields: dict[str, Any] = {} if fate == "whole" else {fate: mine}
        lost = proof is Proof.NONE or (bool(mine) and fate in ("unproven", "missing"))
        self.apply(self.cluster.registration(node, proof=proof, **fields), lost=node if lost else 0)
        if self.rng.random() < 0.8:
            id_, epoch = NodeId(node), self.cluster.epoch(node)
            self.apply(UnfenceNode(command_id=self.cluster.new_id(), node_id=id_, node_epoch=epoch))

    def change_isr(self) -> None:
        now, nodes = self.partition, self.cluster.image.nodes
        if not now.has_leader:
            return
        fit = [n for n in now.replicas if nodes[n].active and n not in now.offline]
        chosen = [n for n in fit if n == now.leader or self.rng.random() < 0.6]
        self.apply(self.cluster.isr_change("t", 0, chosen), caught_up=tuple(chosen))

    def reassign(self) -> None:
        target = tuple(map(NodeId, self.rng.sample(NODES, self.rng.randint(1, 3))))
        wanted = None if self.rng.random() < 0.3 else target
        change = Reassignment(topic_id=self.topic_id, partition=0, replicas=wanted)
        self.apply(AlterAssignments(command_id=self.cluster.new_id(), reassignments=(change,)))

    def elect(self) -> None:
        kinds = (ElectionKind.PREFERRED, ElectionKind.PREFERRED, ElectionKind.UNCLEAN)
        where = ((self.topic_id, (0,)),)
        kind = self.rng.choice(kinds)
        self.apply(ElectLeaders(command_id=self.cluster.new_id(), election=kind, partitions=where))

    def report(self) -> None:
        node = NodeId(self.rng.choice(NODES))
        mine = ((self.topic_id, (0,)),)
        goes = self.rng.random() < 0.5
        self.apply(
            ReportReplicas(
                command_id=self.cluster.new_id(),
                node_id=node,
                node_epoch=self.cluster.epoch(node),
                failed_directory_ids=(),
                offline=mine if goes else (),
                online=() if goes else mine,
            )
        )


class Governed(Life):
    """The same with a controller: its plans are carried out, too."""

    def __init__(self, seed: int) -> None:
        self.governed = Controlled(len(NODES), QUICK)
        super().__init__(seed, self.governed)
        # What the planner proposes is looked at like everything else.
        self.governed.apply = self.apply  # type: ignore[method-assign, assignment]

    def step(self) -> None:
        if self.rng.random() < 0.5:
            self.governed.up = {n for n in self.governed.up if self.rng.random() < 0.95}
            self.governed.tick(self.rng.choice((500, 500, 5_000, 61_000)))
        else:
            super().step()

    def come_back(self) -> None:
        super().come_back()
        self.governed.up |= {n for n, each in self.cluster.image.nodes.items() if each.active}


@pytest.mark.parametrize("kind", [Life, Governed])
@pytest.mark.parametrize("start", range(0, WALKS, 50))
def test_who_has_what_was_acknowledged_is_never_given_up(start: int, kind: type[Life]) -> None:
    for seed in range(start, start + 50):
        life = kind(seed)
        for _ in range(STEPS):
            life.step()
