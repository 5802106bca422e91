"""The machine of the metadata beside its plain model, and a small world of data, for tests.

Each replica has a length; what the leader commits under the rules (all of the ISR has it, and the
ISR is large enough) must be on every later leader that came into office cleanly.
"""

from typing import Any
from uuid import UUID

from hypothesis.stateful import RuleBasedStateMachine

from dlog.types import NodeId
from dlogd.metadata.commands import codec as c
from dlogd.metadata.machine import apply
from dlogd.metadata.state.delta import between
from dlogd.metadata.state.image import EMPTY_IMAGE, Applied, ClusterImage, PartitionImage
from tests.fakes.metadata_model import Model, error_name


class Data:
    """How many records each replica of a partition has, and how many were acknowledged."""

    def __init__(self) -> None:
        self.lengths: dict[int, int] = {}
        self.committed = 0


class ModelledCluster(RuleBasedStateMachine):
    """What the rules of a test have in common: each command is applied to both, and judged."""

    def __init__(self) -> None:
        super().__init__()
        self.image: ClusterImage = EMPTY_IMAGE
        self.model = Model()
        self.ids = 100
        self.alive: dict[int, int] = {}  # the epoch of a life that runs
        self.lossy: set[int] = set()  # crashed, and what it held may be gone
        self.data: dict[tuple[UUID, int], Data] = {}

    def new_id(self) -> UUID:
        self.ids += 1
        return UUID(int=self.ids)

    def do(self, command: Any) -> int | None:
        """Apply a command to both, compare, and return the value if it was applied."""
        old = self.image
        self.image, outcome = apply.apply(old, c.encode(command))
        expected = self.model.apply(command)
        if isinstance(outcome, Applied):
            assert outcome.value == expected, (command, outcome, expected)
        else:
            assert error_name(outcome.code) == expected, (command, outcome, expected)
        assert Model.view_of(self.image) == self.model.view(), command
        self.check_step(old, self.image)
        return outcome.value if isinstance(outcome, Applied) else None

    def check_step(self, old: ClusterImage, new: ClusterImage) -> None:
        for topic in new.topics.values():
            before = old.topics_by_id.get(topic.topic_id)
            for number, after in enumerate(topic.partitions):
                data = self.data.setdefault((topic.topic_id, number), Data())
                was = before.partition(number) if before is not None else None
                if was is not None:
                    check_epochs(was, after)
                clean = new.unclean_elections == old.unclean_elections
                self.check_data(was, after, data, clean=clean)
        delta = between(old, new)
        assert bool(delta) or Model.view_of(old) == Model.view_of(new)

    def check_data(
        self, was: PartitionImage | None, now: PartitionImage, data: Data, *, clean: bool
    ) -> None:
        leader = now.leader
        if not now.has_leader or self.alive.get(leader) != self.image.nodes[leader].node_epoch:
            return
        if was is not None and was.leader == leader and was.leader_epoch == now.leader_epoch:
            return
        have = data.lengths.get(leader, 0)
        if clean:
            assert have >= data.committed, f"{now} lost {data.committed - have} records"
        data.committed = min(data.committed, have)
        for node_id, length in data.lengths.items():
            # Followers truncate to what the leader has.
            data.lengths[node_id] = min(length, have)

    def epoch(self, node_id: int) -> int:
        node = self.image.nodes.get(NodeId(node_id))
        return -5 if node is None else node.node_epoch

    def pick(self, number: int) -> tuple[Any, int, PartitionImage]:
        every = [
            (topic, index, partition)
            for topic in self.image.topics.values()
            for index, partition in enumerate(topic.partitions)
        ]
        return every[number % len(every)]


def check_epochs(old: PartitionImage, new: PartitionImage) -> None:
    assert (new == old) == (new.partition_epoch == old.partition_epoch)
    assert new.partition_epoch >= old.partition_epoch
    assert new.leader_epoch - old.leader_epoch in (0, 1)
    assert new.leader == old.leader or new.leader_epoch > old.leader_epoch


def check_partition(image: ClusterImage, partition: PartitionImage, min_isr: int) -> None:
    replicas = set(partition.replicas)
    assert len(replicas) == len(partition.replicas)
    assert replicas <= set(image.nodes)
    for some in (partition.isr, partition.adding, partition.removing, partition.offline):
        assert set(some) <= replicas
    assert set(partition.elr) <= replicas - set(partition.isr)
    assert not partition.elr or len(partition.isr) < min_isr
    assert not set(partition.adding) & set(partition.removing)
    assert not set(partition.offline) & {*partition.isr, *partition.elr}
    if partition.has_leader:
        assert partition.leader in partition.isr
        assert image.nodes[partition.leader].active
    else:
        fit = [n for n in (*partition.isr, *partition.elr) if image.nodes[n].active]
        assert not fit, "somebody could lead"
    for node_id in partition.isr:
        node = image.nodes[node_id]
        assert node.active or node.returning
