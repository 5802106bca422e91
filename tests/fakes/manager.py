"""A log manager on simulated disks, for tests: started, stopped, crashed, started again."""

import asyncio
import random
from collections.abc import Callable
from uuid import UUID

from dlog.types import NodeId, PartitionId, TopicId, TopicPartition
from dlogd.config.units import DiskReserve
from dlogd.runtime.clock import Clock
from dlogd.storage.directory.log_directory import LogDirectory, StorageSettings
from dlogd.storage.log.log_config import LogConfig
from dlogd.storage.log.log_state import LogServices
from dlogd.storage.log.partition_log import PartitionLog
from dlogd.storage.log_manager import LogManager
from tests.fakes.disk import Machine, Process
from tests.fakes.logs import append, services_for
from tests.fakes.randomness import SeededRandomness

NODE = NodeId(1)
TOPIC_ID = UUID("00112233-4455-4677-8899-aabbccddeeff")
CONFIG = LogConfig(segment_bytes=1 << 16, preallocate_bytes=0, retention_ms=-1)
SETTINGS = StorageSettings(reserve=DiskReserve(bytes=0), retention_check_interval_ms=10)


def partition(number: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, PartitionId(number))


def key(number: int) -> tuple[UUID, PartitionId]:
    return (TOPIC_ID, PartitionId(number))


def wanted(
    *numbers: int, config: LogConfig = CONFIG
) -> dict[tuple[TopicPartition, TopicId], LogConfig]:
    """Return the partitions of the one topic as `LogManager.open` wants them."""
    return {(partition(number), TOPIC_ID): config for number in numbers}


class ManagerHost:
    """A machine with data directories; each start is a new process."""

    def __init__(
        self,
        directory_count: int = 2,
        *,
        seed: int = 1,
        capacity_bytes: int = 1 << 40,
        settings: StorageSettings = SETTINGS,
    ) -> None:
        self.mounts = tuple(f"/disk{number}" for number in range(directory_count))
        self.machine = Machine(random.Random(seed), self.mounts, capacity_bytes=capacity_bytes)
        self.settings = settings
        self.config = CONFIG
        self.entropy = SeededRandomness(5).entropy
        self.clock: Clock | None = None
        self.failed: list[tuple[str, OSError]] = []
        self.process: Process
        self.services: LogServices
        self.manager: LogManager

    def boot(self) -> LogManager:
        """Start a process with a manager that has not claimed anything yet."""
        self.process = self.machine.boot(asyncio.get_running_loop())
        self.services = services_for(self.process.engine, clock=self.clock)
        roots = [self.process.open_directory(f"{mount}/dlog") for mount in self.mounts]
        self.manager = LogManager(
            roots, services=self.services, entropy=self.entropy, settings=self.settings
        )
        self.manager.on_directory_failed = self._on_failed
        return self.manager

    def _on_failed(self, home: LogDirectory, error: OSError) -> None:
        self.failed.append((home.path, error))

    async def start(
        self, *numbers: int, cluster_id: str | None = None, known: tuple[UUID, ...] = ()
    ) -> LogManager:
        """Start a process whose metadata has these partitions of the one topic."""
        manager = self.boot()
        await manager.claim(NODE, cluster_id)
        await manager.open(wanted(*numbers, config=self.config), known)
        await manager.begin()
        return manager

    async def stop(self) -> None:
        """Stop in order."""
        await self.manager.close()
        await self.services.tasks.close()
        self.machine.crash()

    async def crash(self, *, power_cut: bool = False) -> None:
        """End the process at once."""
        if power_cut:
            self.machine.power_cut()
        else:
            self.machine.crash()
        await self.manager._tasks.close()
        await self.services.tasks.close()

    async def create(self, number: int) -> PartitionLog:
        """Make or find one partition of the topic."""
        return await self.manager.create(partition(number), TOPIC_ID, self.config)

    async def create_with(self, number: int, *values: bytes) -> PartitionLog:
        """Make one partition with flushed records."""
        plog = await self.create(number)
        for value in values:
            append(plog, value)
        await plog.flush()
        return plog

    def home_of(self, number: int) -> LogDirectory:
        """Return the directory that a partition is in."""
        key = (TOPIC_ID, PartitionId(number))
        return next(home for home in self.manager.homes if key in home.names)


async def until(condition: Callable[[], object], seconds: float = 5.0) -> None:
    """Wait until a condition holds."""
    for _ in range(int(seconds * 200)):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("It did not happen")
