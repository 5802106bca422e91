"""Images of clusters of several nodes, made by the real machine, and their leaders at work."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from dlog.errors import WireError
from dlog.types import NodeId
from dlogd.metadata.commands.codec import (
    AlterPartition,
    CreateTopic,
    ElectionKind,
    ElectLeaders,
    FenceNodes,
    Proof,
    RegisterNode,
    ShutDownNode,
    UnfenceNode,
    encode,
)
from dlogd.metadata.machine import apply
from dlogd.metadata.state.image import EMPTY_IMAGE, Applied, ClusterImage, PartitionImage, Refused


class FakeCluster:
    """Applies commands; everything that is wrong with one is an assertion."""

    def __init__(self, nodes: int = 0, racks: Sequence[str | None] = (None,)) -> None:
        self.image: ClusterImage = EMPTY_IMAGE
        self._ids = 0
        for number in range(1, nodes + 1):
            self.register(number, rack=racks[number % len(racks)])
            self.unfence(number)

    def new_id(self) -> UUID:
        self._ids += 1
        return UUID(int=1_000_000 + self._ids)

    def apply(self, command: Any) -> int:
        """Apply a command that must succeed; return its value."""
        self.image, outcome = apply.apply(self.image, encode(command))
        assert isinstance(outcome, Applied), (command, outcome)
        return outcome.value

    def refused(self, command: Any, error: type[WireError]) -> str:
        """Apply a command that must be refused; return the message."""
        after, outcome = apply.apply(self.image, encode(command))
        assert isinstance(outcome, Refused), command
        assert outcome.code == error.code, outcome
        same = replace(after, version=self.image.version, outcomes=self.image.outcomes)
        assert same == self.image
        return outcome.message

    def epoch(self, node_id: int) -> int:
        return self.image.nodes[NodeId(node_id)].node_epoch

    def registration(self, node_id: int, **fields: Any) -> RegisterNode:
        values: dict[str, Any] = {
            "cluster_id": "c",
            "directory_ids": (UUID(int=node_id),),
            "addresses": (),
            "rack": None,
            "version": "1",
            "proof": Proof.NONE,
        }
        known = self.image.nodes.get(NodeId(node_id))
        if known is not None:
            values["previous_epoch"] = known.node_epoch
        values.update(fields)
        return RegisterNode(command_id=self.new_id(), node_id=NodeId(node_id), **values)

    def register(self, node_id: int, **fields: Any) -> int:
        return self.apply(self.registration(node_id, **fields))

    def unfence(self, node_id: int) -> None:
        self.apply(
            UnfenceNode(
                command_id=self.new_id(), node_id=NodeId(node_id), node_epoch=self.epoch(node_id)
            )
        )

    def fence(self, *node_ids: int) -> None:
        nodes = tuple((NodeId(n), self.epoch(n)) for n in node_ids)
        self.apply(FenceNodes(command_id=self.new_id(), nodes=nodes))

    def shut_down(self, node_id: int) -> None:
        self.apply(
            ShutDownNode(
                command_id=self.new_id(), node_id=NodeId(node_id), node_epoch=self.epoch(node_id)
            )
        )

    def create(self, name: str, *assignments: Sequence[int], **configs: str) -> UUID:
        topic_id = self.new_id()
        self.apply(
            CreateTopic(
                command_id=self.new_id(),
                name=name,
                topic_id=topic_id,
                assignments=tuple(tuple(map(NodeId, each)) for each in assignments),
                configs={key.replace("_", "."): value for key, value in configs.items()},
            )
        )
        return topic_id

    def partition(self, name: str = "t", number: int = 0) -> PartitionImage:
        found = self.image.partition(name, number)
        assert found is not None
        return found

    def isr_change(self, name: str, number: int, members: Sequence[int], **fields: Any) -> Any:
        """Return what the leader asks for when it wants an ISR."""
        partition = self.partition(name, number)
        values: dict[str, Any] = {
            "topic_id": self.image.topics[name].topic_id,
            "partition": number,
            "node_id": partition.leader,
            "node_epoch": self.epoch(partition.leader),
            "leader_epoch": partition.leader_epoch,
            "partition_epoch": partition.partition_epoch,
            "isr": tuple((NodeId(n), self.epoch(n)) for n in members),
        }
        values.update(fields)
        return AlterPartition(command_id=self.new_id(), **values)

    def catch_up(self) -> None:
        """Let every leader take all active replicas into its ISR."""
        for topic in list(self.image.topics.values()):
            for number, partition in enumerate(topic.partitions):
                fit = [
                    n
                    for n in partition.replicas
                    if self.image.nodes[n].active and n not in partition.offline
                ]
                if partition.has_leader and not set(fit) <= set(partition.isr):
                    wanted = dict.fromkeys([*partition.isr, *fit])
                    self.apply(self.isr_change(topic.name, number, list(wanted)))


def leader_isr_elr(cluster: FakeCluster, number: int = 0) -> tuple[int, Any, Any]:
    partition = cluster.partition("t", number)
    return partition.leader, partition.isr, partition.elr


def elect(cluster: FakeCluster, kind: ElectionKind, *numbers: int) -> int:
    topic_id = cluster.image.topics["t"].topic_id
    return cluster.apply(
        ElectLeaders(command_id=cluster.new_id(), election=kind, partitions=((topic_id, numbers),))
    )
