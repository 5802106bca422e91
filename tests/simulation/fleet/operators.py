"""What operators do to a cluster, through its nodes."""

import asyncio
import random
from collections.abc import Coroutine
from typing import Any
from uuid import UUID

from dlog.types import NodeId
from dlogd.metadata.commands.codec import (
    AllocateProducerIds,
    AlterAssignments,
    DrainNode,
    ElectionKind,
    ElectLeaders,
    Reassignment,
)
from dlogd.metadata.machine import apply
from dlogd.metadata.state.image import Applied, ClusterImage, Drain, Refused, TopicImage, Unknown
from tests.simulation.fleet.host import FleetHost
from tests.simulation.raft_checks import Call

MS = 1_000_000


class Hands:
    """Runs coroutines on nodes, as their own handlers would. Dead nodes never end them."""

    def __init__(self, around: Any, name: str) -> None:
        self.around = around
        self.rng = random.Random(f"{around.plan.seed}/{name}")

    def new_id(self) -> UUID:
        """Return an id for a command."""
        return UUID(int=self.rng.getrandbits(128), version=4)

    def some_host(self) -> FleetHost | None:
        """Return a node that can be asked."""
        hosts = [host for host in self.around.hosts if host.is_serving]
        return self.rng.choice(hosts) if hosts else None

    def do(self, host: FleetHost, work: Coroutine[Any, Any, Any]) -> None:
        """Let a node do something."""
        assert host.loop is not None
        task = asyncio.Task(work, loop=host.loop, name="operator")
        host._graveyard.append(task)

    async def propose(self, host: FleetHost, command: Any) -> Any:
        """Propose at a node; return the outcome."""
        assert host.broker is not None and host.clock is not None
        store = host.broker.store
        assert store is not None
        wait_ms = int(self.rng.choice((50, 500, 3_000)) * self.around.plan.pace)
        outcome = await store.propose(
            apply.guarded(store.image, command), host.clock.now_ms() + wait_ms
        )
        self.around.trace("outcome", type(command).__name__, host.name, outcome)
        kind = {Applied: "applied", Refused: "refused", Unknown: "unknown"}[type(outcome)]
        self.around.count(f"proposals {kind}")
        return outcome


class Operator(Hands):
    """Changes what only operators change, until the run's time is over."""

    def __init__(self, around: Any) -> None:
        super().__init__(around, "operator")
        self._data = {topic.name for topic in around.plan.data.topics}

    def begin(self) -> None:
        """Set the first timer."""
        self.around.world.at(300 * MS, self._step)

    def _step(self) -> None:
        if not self.around.active:
            return
        host = self.some_host()
        if host is not None:
            self._act(host)
        pause_ms = self.around.plan.operator_interval_ms * 2 * self.rng.random()
        self.around.world.at(int(pause_ms * MS), self._step)

    def _act(self, host: FleetHost) -> None:
        assert host.broker is not None and host.broker.store is not None
        image = host.broker.store.image
        actions = (self._drain, self._elect, self._reassign, self._allocate)
        command = self.rng.choices(actions, (1, 2, 2, 4))[0](host, image)
        if command is not None:
            self.do(host, self.propose(host, command))
            other = self.some_host()
            if other is not None and self.rng.random() < 0.1:
                # The same once more, by another node: it must not count twice.
                self.do(other, self.propose(other, command))

    def _drain(self, host: FleetHost, image: ClusterImage) -> Any:
        if not image.nodes:
            return None
        node_id = self.rng.choice(sorted(image.nodes))
        drain = self.rng.choice((Drain.NONE, Drain.LEADERS, Drain.REPLICAS))
        return DrainNode(command_id=self.new_id(), node_id=node_id, drain=drain)

    def _topic(self, image: ClusterImage) -> TopicImage | None:
        topics = list(image.topics.values())
        return self.rng.choice(topics) if topics else None

    def _elect(self, host: FleetHost, image: ClusterImage) -> Any:
        topic = self._topic(image)
        if topic is None:
            return None
        number = self.rng.randrange(len(topic.partitions))
        kind = self.rng.choice((ElectionKind.PREFERRED, ElectionKind.PREFERRED, *ElectionKind))
        if topic.name in self._data and "unclean" not in self.around.plan.data.actions:
            kind = ElectionKind.PREFERRED
        return ElectLeaders(
            command_id=self.new_id(), election=kind, partitions=((topic.topic_id, (number,)),)
        )

    def _reassign(self, host: FleetHost, image: ClusterImage) -> Any:
        topic = self._topic(image)
        if topic is None:
            return None
        number = self.rng.randrange(len(topic.partitions))
        replicas: tuple[NodeId, ...] | None = None
        if self.rng.random() < 0.8:
            nodes = sorted(image.nodes)
            replicas = tuple(self.rng.sample(nodes, self.rng.randint(1, min(3, len(nodes)))))
        move = Reassignment(topic_id=topic.topic_id, partition=number, replicas=replicas)
        return AlterAssignments(command_id=self.new_id(), reassignments=(move,))

    def _allocate(self, host: FleetHost, image: ClusterImage) -> None:
        self.do(host, self._allocate_ids(host))

    async def _allocate_ids(self, host: FleetHost) -> None:
        """Take a producer id: their order shows the order of all commands."""
        assert host.broker is not None and host.broker.store is not None
        node = host.broker.store.image.nodes.get(NodeId(host.node_id))
        if node is None:
            return
        command = AllocateProducerIds(
            command_id=self.new_id(),
            node_id=NodeId(host.node_id),
            node_epoch=node.node_epoch,
            count=1,
        )
        calls = self.around.registry.calls
        call = Call(len(calls), command.command_id.bytes, host.node_id, host.world.now_ns, None)
        calls.append(call)
        call.outcome = await self.propose(host, command)
        call.ended_ns = host.world.now_ns

    def tidy(self) -> None:
        """Take back what keeps nodes from their work, until it is taken back."""
        host = self.some_host()
        if host is None or host.broker is None or host.broker.store is None:
            return
        for node_id, node in host.broker.store.image.nodes.items():
            if node.drain != Drain.NONE:
                command = DrainNode(command_id=self.new_id(), node_id=node_id, drain=Drain.NONE)
                self.do(host, self.propose(host, command))
