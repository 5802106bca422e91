"""Three whole nodes with Raft, leases and a controller on the virtual loop."""

import asyncio
import random
from collections.abc import Callable
from uuid import UUID

from dlog.types import NodeId
from dlogd.config.load import load_config
from dlogd.metadata.commands.codec import CreateTopic
from dlogd.metadata.raft.store import RaftStore
from dlogd.metadata.state.image import Applied, ClusterImage, PartitionImage
from dlogd.node.broker import Broker
from tests.fakes.disk import Machine, Process
from tests.fakes.randomness import SeededRandomness
from tests.simulation.loop import NS, SimClock, SimLoop, World
from tests.simulation.network import Network

NODES = (1, 2, 3)


def address(node_id: int) -> str:
    """Return the host of a node."""
    return f"10.0.0.{node_id}"


def config_text(node_id: int) -> str:
    """Return the configuration of a node."""
    controllers = ", ".join(f'"{each}@{address(each)}:9643"' for each in NODES)
    return f"""
node.id: {node_id}
cluster.id: simulated
cluster.secret.file: /data0/secret
controllers: [{controllers}]
listeners: ["{address(node_id)}:9092"]
internal.listener: "{address(node_id)}:9645"
data.directories: [/data0/logs, /data1/logs]
metadata.directory: /data0/meta
disk.reserve.bytes: 0
preallocate.bytes: 64KiB
segment.bytes: 64KiB
append.memory.bytes: 4MiB
topic.replication.default: 3
"""


class SimNode:
    """One host and the broker on it."""

    def __init__(self, world: World, network: Network, node_id: int) -> None:
        self.world, self.network, self.node_id = world, network, node_id
        self.machine = Machine(random.Random(node_id), ("/data0", "/data1"))
        self.loop: SimLoop | None = None
        self.broker: Broker | None = None
        self.started: asyncio.Task[None] | None = None
        self.failures: list[str] = []
        self.kept: list[object] = []

    @property
    def image(self) -> ClusterImage:
        """The image of the node."""
        assert self.broker is not None and self.broker.store is not None
        return self.broker.store.image

    def boot(self) -> None:
        """Begin a process of the node."""
        loop = self.loop = SimLoop(self.world, f"n{self.node_id}", offset_ns=self.node_id * NS)
        self.network.attach(loop, address(self.node_id))
        process: Process = self.machine.boot(loop)
        self.kept += [loop, process, self.broker, self.started]
        self.broker = self.started = None
        loop.call_soon(self._start, loop, process)

    def _start(self, loop: SimLoop, process: Process) -> None:
        secret = process.open_directory("/data0").open("secret", create=True)
        secret.pwrite(b"5Ou0zTq1mVbYJp8wC3xKQg==", 0)
        self.broker = Broker(
            load_config(config_text(self.node_id), {}),
            loop=loop,
            clock=SimClock(loop),
            randomness=SeededRandomness(self.node_id),
            open_directory=process.open_directory,
            engine=process.engine,
            on_failure=self.failures.append,
            open_quorum=RaftStore.open,
        )
        self.started = loop.create_task(self.broker.start())

    def stop(self) -> asyncio.Task[None]:
        """Begin an orderly stop."""
        assert self.loop is not None and self.broker is not None
        return self.loop.create_task(self.broker.stop())

    def cut_power(self) -> None:
        """Cut the power of the host."""
        assert self.loop is not None
        self.loop.kill()
        self.network.cut_power(self.loop)
        self.machine.power_cut()

    def kill(self) -> None:
        """Kill the process."""
        assert self.loop is not None
        self.loop.kill()
        self.network.kill_process(self.loop)
        self.machine.crash()


class Cluster:
    """Three nodes on one network, booted."""

    def __init__(self) -> None:
        self.world = World()
        self.network = Network(self.world, random.Random(5))
        self.nodes = [SimNode(self.world, self.network, each) for each in NODES]
        for node in self.nodes:
            node.boot()

    def run(self, until: Callable[[], bool], seconds: float = 30) -> bool:
        """Let time pass until a condition holds; return whether it does."""
        return self.world.run(until, limit_ns=self.world.now_ns + int(seconds * NS))

    def is_up(self) -> bool:
        """Return whether all nodes have started and hold leases."""
        return all(
            each.started is not None and each.started.done() and self.leased(each)
            for each in self.nodes
        )

    def create(
        self,
        name: str,
        *,
        partitions: int = 1,
        replicas: int = 3,
        by: SimNode | None = None,
        **configs: str,
    ) -> UUID:
        """Create a topic; return its id once all nodes that run know it."""
        node = self.nodes[0] if by is None else by
        running = [each for each in self.nodes if each.loop is not None and not each.loop.dead]
        topic_id = UUID(int=1000 + len(node.image.topics))
        assert node.broker is not None and node.broker.store is not None and node.loop is not None
        command = CreateTopic(
            command_id=UUID(int=topic_id.int + 5000),
            name=name,
            topic_id=topic_id,
            assignments=tuple(
                tuple(NodeId(NODES[(number + k) % 3]) for k in range(replicas))
                for number in range(partitions)
            ),
            configs={key.replace("_", "."): value for key, value in configs.items()},
        )
        done = node.loop.create_task(
            node.broker.store.propose(command, SimClock(node.loop).now_ms() + 10_000)
        )
        assert self.run(lambda: done.done() and all(name in n.image.topics for n in running))
        assert isinstance(done.result(), Applied), done.result()
        return topic_id

    def partitions(self, topic_id: UUID) -> tuple[PartitionImage, ...]:
        """Return the partitions of a topic as node 1 knows them."""
        return self.nodes[0].image.topics_by_id[topic_id].partitions

    def leased(self, node: SimNode) -> bool:
        """Return whether a node holds a lease."""
        broker = node.broker
        assert broker is not None and broker.clustering is not None
        return bool(broker.status()["lease"]["valid"])
