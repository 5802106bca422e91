"""The stop of a node in virtual time: bounded by shutdown.timeout, whatever its disks do."""

import asyncio
import errno
import logging
import random
from typing import Any, cast
from unittest import mock
from uuid import UUID

import pytest

from dlog.batch.records import Record, encode
from dlog.errors import KafkaStorageError
from dlog.types import NodeId
from dlogd.config.load import load_config
from dlogd.metadata.commands.codec import CreateTopic
from dlogd.node.broker import Broker
from dlogd.replication.partition.partition import Partition
from dlogd.replication.partition.producer_snapshots import SNAPSHOT
from tests.fakes.disk import Machine, Process
from tests.fakes.faults import DiskFault
from tests.fakes.logs import run_virtual
from tests.fakes.randomness import SeededRandomness
from tests.simulation.loop import EPOCH_MS, SimClock, SimLoop
from tests.simulation.network import Network

TIMEOUT_S = 20.0
MOUNTS = ("/data0", "/data1")
NODE = NodeId(1)


class Host:
    """A node on two simulated disks, with a topic of some partitions."""

    def __init__(self) -> None:
        self.machine = Machine(random.Random(3), MOUNTS)
        self.process: Process
        self.broker: Broker

    async def start(self) -> Broker:
        """Start a process of the node."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        Network(loop.world, random.Random(4)).attach(loop, "10.0.0.1")
        self.process = self.machine.boot(loop)
        config = load_config(
            'node.id: 1\nlisteners: ["10.0.0.1:9092"]\nadvertised.address: 10.0.0.1:9092\n'
            f"data.directories: [{', '.join(f'{mount}/dlog' for mount in MOUNTS)}]\n"
            f"disk.reserve.bytes: 0\nshutdown.timeout: {TIMEOUT_S:.0f}s\npreallocate.bytes: 0\n",
            {},
        )
        self.broker = Broker(
            config,
            loop=loop,
            clock=SimClock(loop),
            randomness=SeededRandomness(5),
            open_directory=self.process.open_directory,
            engine=self.process.engine,
        )
        await self.broker.start()
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
    records = [Record(value=b"x" * 100, timestamp_ms=EPOCH_MS)]
    sequence = partition.log.log_end_offset
    batch = encode(records, producer_id=7, producer_epoch=0, base_sequence=sequence)
    assert partition.append_as_leader(batch, 0, len(batch), -1) is not None


def snapshots(files: set[str]) -> set[str]:
    return {name.split("/")[1] for name in files if name.endswith(f"/{SNAPSHOT}")}


def disk_of(host: Host, number: int) -> str:
    assert host.broker.logs is not None
    log = host.partition(number).log
    (home,) = [each for each in host.broker.logs.homes if log in each.logs.values()]
    return home.path.split("/")[1]


def test_a_stop_in_order_takes_no_time() -> None:
    async def scenario() -> None:
        host = Host()
        await host.start()
        await host.create(4)
        took, problem = await host.stop()
        assert (took < 1, problem, host.broker.hanging) == (True, "", [])
        files = host.files()
        assert snapshots(files) == {"t-0", "t-1", "t-2", "t-3"}
        assert {"data0/clean-shutdown", "data1/clean-shutdown"} <= files

    run_virtual(scenario)


def test_one_full_partition_does_not_keep_the_others_from_their_snapshots(
    caplog: pytest.LogCaptureFixture,
) -> None:
    count = 150  # more than are written at once

    async def scenario() -> None:
        host = Host()
        await host.start()
        await host.create(count)
        fault = DiskFault(("write", "create", "rename"), errno.ENOSPC, path_part="/t-7.")
        host.machine.disks[f"/{disk_of(host, 7)}"].faults.append(fault)
        append(host.partition(7))
        append(host.partition(8))
        took, problem = await host.stop()
        assert took < TIMEOUT_S / 2
        assert problem == "not all is on the disk of t-7"
        assert host.broker.hanging == []
        files = host.files()
        assert snapshots(files) == {f"t-{number}" for number in range(count) if number != 7}
        assert {"data0/clean-shutdown", "data1/clean-shutdown"} <= files
        # What was acknowledged is there, and all the others need no recovery.
        host.machine.heal()
        await host.start()
        assert host.partition(7).log.log_end_offset in (1, 2)  # a write may fail after its bytes
        assert host.partition(8).log.log_end_offset == 2
        await host.stop()

    with caplog.at_level(logging.WARNING):
        run_virtual(scenario)
    assert sum("Could not write producer snapshot" in line for line in caplog.messages) == 1


@pytest.mark.parametrize("stuck", ["data0", "data1"])
@pytest.mark.parametrize("before", [True, False], ids=["hangs before", "hangs while stopping"])
def test_a_disk_that_hangs_does_not_hold_up_the_stop(before: bool, stuck: str) -> None:
    """Neither its own node, nor what is on the other disk."""

    async def scenario() -> None:
        host = Host()
        await host.start()
        await host.create(6)
        where = {number: disk_of(host, number) for number in range(6)}
        if before:
            host.machine.disks[f"/{stuck}"].stick()
        for number in range(6):
            append(host.partition(number))
        if before:
            await asyncio.sleep(0.1)
        else:
            asyncio.get_running_loop().call_soon(host.machine.disks[f"/{stuck}"].stick)
        took, problem = await host.stop()
        assert took <= TIMEOUT_S + 0.01
        on_stuck = [f"t-{number}" for number, disk in where.items() if disk == stuck]
        assert 0 < len(on_stuck) < 6
        assert set(on_stuck) <= set(host.broker.hanging)
        for name in on_stuck:
            assert name in problem.split("; ")[0]
        assert problem.startswith("after shutdown.timeout=20000ms still not ended: ")
        assert problem.endswith(f"; not all is on the disk of {', '.join(on_stuck)}")
        (other,) = {"data0", "data1"} - {stuck}
        files = host.files()
        assert f"{other}/clean-shutdown" in files
        assert f"{stuck}/clean-shutdown" not in files
        host.machine.heal()
        await host.start()
        for number, disk in where.items():
            assert host.partition(number).log.log_end_offset >= (1 if disk == stuck else 2)
        assert (await host.stop())[1] == ""

    run_virtual(scenario)


def test_a_disk_that_goes_on_in_time_ends_in_order() -> None:
    async def scenario() -> None:
        host = Host()
        await host.start()
        await host.create(4)
        disk = host.machine.disks["/data0"]
        disk.stick()
        asyncio.get_running_loop().call_later(TIMEOUT_S * 0.8, disk.unstick)
        took, problem = await host.stop()
        assert TIMEOUT_S * 0.8 <= took < TIMEOUT_S * 0.9
        assert (problem, host.broker.hanging) == ("", [])
        assert {"data0/clean-shutdown", "data1/clean-shutdown"} <= host.files()

    run_virtual(scenario)


class Lonely:
    """What a node of a cluster has whose quorum went away while it took its leave."""

    async def take_leave(self, timeout_s: float) -> None:
        await asyncio.sleep(timeout_s)

    def has_lease(self) -> bool:
        return False

    async def stop(self) -> None:
        pass


def test_metadata_that_close_late_are_closed() -> None:
    async def scenario() -> Any:
        host = Host()
        await host.start()
        host.broker.clustering = cast("Any", Lonely())
        store = host.broker.store
        assert store is not None
        close = store.close

        async def close_slowly() -> None:
            await asyncio.sleep(TIMEOUT_S / 4)
            await close()

        with mock.patch.object(store, "close", close_slowly):
            took, problem = await host.stop()
        assert took < TIMEOUT_S * 0.6
        assert (problem, host.broker.hanging) == ("", [])

    run_virtual(scenario)


def test_metadata_that_hangs_is_named() -> None:
    async def scenario() -> Any:
        host = Host()
        await host.start()
        host.machine.disks["/data0"].stick()
        took, problem = await host.stop()
        assert took <= TIMEOUT_S + 0.01
        assert "metadata" in host.broker.hanging and "metadata" in problem
        host.machine.heal()
        await asyncio.sleep(1)  # what hung ends

    run_virtual(scenario)
