"""A node on two simulated disks, its stop, and what it leaves on them."""

import asyncio
import random
from uuid import UUID

from dlog.batch.records import Record, encode
from dlog.errors import KafkaStorageError
from dlog.types import NodeId
from dlogd.config.load import load_config
from dlogd.metadata.commands.codec import CreateTopic
from dlogd.node.broker import Broker
from dlogd.replication.partition.partition import Partition
from tests.fakes.disk import Machine, Process
from tests.fakes.randomness import SeededRandomness
from tests.simulation.loop import EPOCH_MS, SimClock, SimLoop
from tests.simulation.network import Network

TIMEOUT_S = 20.0
MOUNTS = ("/data0", "/data1")
NODE = NodeId(1)


async def start_node(machine: Machine, settings: str) -> tuple[Process, Broker]:
    """Start a lone node on a simulated machine; `settings` name its data directories, and more."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    Network(loop.world, random.Random(4)).attach(loop, "10.0.0.1")
    process = machine.boot(loop)
    config = load_config(
        'node.id: 1\nlisteners: ["10.0.0.1:9092"]\nadvertised.address: 10.0.0.1:9092\n'
        f"disk.reserve.bytes: 0\npreallocate.bytes: 0\n{settings}",
        {},
    )
    broker = Broker(
        config,
        loop=loop,
        clock=SimClock(loop),
        randomness=SeededRandomness(5),
        open_directory=process.open_directory,
        engine=process.engine,
    )
    await broker.start()
    return process, broker


class Host:
    """A node on two simulated disks, with a topic of some partitions."""

    def __init__(self) -> None:
        self.machine = Machine(random.Random(3), MOUNTS)
        self.process: Process
        self.broker: Broker

    async def start(self) -> Broker:
        """Start a process of the node."""
        settings = (
            f"data.directories: [{', '.join(f'{mount}/dlog' for mount in MOUNTS)}]\n"
            f"shutdown.timeout: {TIMEOUT_S:.0f}s\n"
        )
        self.process, self.broker = await start_node(self.machine, settings)
        return self.broker

    async def create(self, partitions: int) -> None:
        """Make the topic `t` and append a batch of an idempotent producer to each partition."""
        store, replicas = self.broker.store, self.broker.replicas
        assert store is not None and replicas is not None
        command = CreateTopic(
            command_id=UUID(int=1),
            name="t",
            topic_id=UUID(int=2),
            assignments=((NODE,),) * partitions,
            configs={},
        )
        await store.propose(command, 1 << 60)
        await replicas.await_partitions(("t",))
        for number in range(partitions):
            append(self.partition(number))
            await self.partition(number).log.flush()

    def partition(self, number: int) -> Partition:
        """Return a partition of the topic."""
        assert self.broker.replicas is not None
        return self.broker.replicas.partition("t", number)

    async def stop(self) -> tuple[float, str]:
        """Stop; return how long that took and what was not well."""
        loop = asyncio.get_running_loop()
        begin = loop.time()
        problem = ""
        try:
            await self.broker.stop()
        except KafkaStorageError as error:
            problem = str(error)
        return loop.time() - begin, problem

    def files(self) -> set[str]:
        """Return what lies on the disks when the process is gone, as `data0/...`."""
        self.machine.crash()
        process = self.machine.boot()
        found = set()
        for mount in MOUNTS:
            root = process.open_directory(f"{mount}/dlog")
            found |= {f"{mount[1:]}/{name}" for name in root.names()}
            topics = root.directory("topics")
            for log in topics.names():
                names = topics.directory(log).names()
                found |= {f"{mount[1:]}/{log.partition('.')[0]}/{name}" for name in names}
        return found


def append(partition: Partition) -> None:
    """Append a batch of the idempotent producer."""
    records = [Record(value=b"x" * 100, timestamp_ms=EPOCH_MS)]
    sequence = partition.log.log_end_offset
    batch = encode(records, producer_id=7, producer_epoch=0, base_sequence=sequence)
    assert partition.append_as_leader(batch, 0, len(batch), -1) is not None
