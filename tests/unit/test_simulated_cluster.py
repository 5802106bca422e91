"""Three whole nodes with Raft, leases and a controller on the virtual loop."""

import asyncio
import random
from collections.abc import Callable, Iterator

import pytest

from dlogd.broker import Broker
from dlogd.config.load import load_config
from dlogd.metadata.raft.store import RaftStore
from tests.fakes.disk import Machine, Process
from tests.simulation.loop import NS, SimClock, SimLoop, World
from tests.simulation.network import Network

NODES = (1, 2, 3)


def address(node_id: int) -> str:
    return f"10.0.0.{node_id}"


def config_text(node_id: int) -> str:
    controllers = ", ".join(f'"{each}@{address(each)}:9643"' for each in NODES)
    return f"""
node.id: {node_id}
cluster.id: simulated
cluster.secret.file: /data0/secret
controllers: [{controllers}]
listeners: ["{address(node_id)}:9092"]
internal.listener: "{address(node_id)}:9645"
data.directories: [/data0/logs]
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
        self.machine = Machine(random.Random(node_id), ("/data0",))
        self.loop: SimLoop | None = None
        self.broker: Broker | None = None
        self.started: asyncio.Task[None] | None = None
        self.failures: list[str] = []
        self.kept: list[object] = []

    def boot(self) -> None:
        loop = self.loop = SimLoop(self.world, f"n{self.node_id}", offset_ns=self.node_id * NS)
        self.network.attach(loop, address(self.node_id))
        process: Process = self.machine.boot(loop)
        self.kept += [loop, process, self.broker, self.started]
        loop.call_soon(self._start, loop, process)

    def _start(self, loop: SimLoop, process: Process) -> None:
        secret = process.open_directory("/data0").open("secret", create=True)
        secret.pwrite(b"the secret of the simulation", 0)
        self.broker = Broker(
            load_config(config_text(self.node_id), {}),
            loop=loop,
            clock=SimClock(loop),
            rng=random.Random(self.node_id),
            open_directory=process.open_directory,
            engine=process.engine,
            on_failure=self.failures.append,
            open_quorum=RaftStore.open,
        )
        self.started = loop.create_task(self.broker.start())

    def kill(self) -> None:
        assert self.loop is not None
        self.loop.kill()
        self.network.kill_process(self.loop)
        self.machine.crash()


class Cluster:
    def __init__(self) -> None:
        self.world = World()
        self.network = Network(self.world, random.Random(5))
        self.nodes = [SimNode(self.world, self.network, each) for each in NODES]
        for node in self.nodes:
            node.boot()

    def run(self, until: Callable[[], bool], seconds: float = 30) -> bool:
        return self.world.run(until, limit_ns=self.world.now_ns + int(seconds * NS))

    def is_up(self) -> bool:
        return all(
            each.started is not None and each.started.done() and self.leased(each)
            for each in self.nodes
        )

    def leased(self, node: SimNode) -> bool:
        broker = node.broker
        assert broker is not None and broker.clustering is not None
        return broker.clustering.lease_status()["valid"]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    yield Cluster()


def test_three_whole_nodes_start_and_survive_their_controller(cluster: Cluster) -> None:
    assert cluster.run(cluster.is_up), [each.started for each in cluster.nodes]
    first = cluster.nodes[0].broker.store.image
    leader = first.controller.node_id
    cluster.nodes[leader - 1].kill()
    rest = [each for each in cluster.nodes if each.node_id != leader]

    def taken_over() -> bool:
        return all(
            node.broker.store.image.controller.node_id != leader
            and node.broker.store.image.nodes[leader].fenced
            for node in rest
        )

    assert cluster.run(taken_over, 20)
    cluster.nodes[leader - 1].boot()
    assert cluster.run(cluster.is_up)
    assert not any(each.failures for each in cluster.nodes)
