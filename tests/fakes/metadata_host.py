"""A metadata store on a simulated disk, for tests: opened, killed, its files read and replaced."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar
from uuid import UUID

from dlog.types import NodeId
from dlogd.metadata.commands.codec import Command, CreateTopic, RegisterNode
from dlogd.metadata.journal_files import LOCK_NAME
from dlogd.metadata.local_store import MetadataStore
from dlogd.metadata.state.image import Applied, Outcome
from dlogd.runtime.clock import SystemClock
from tests.fakes.disk import Machine

T = TypeVar("T")
PATH = "/data/meta"
CLOCK = SystemClock()
JOURNAL_0 = "metadata-" + "0" * 20 + ".journal"


def register() -> RegisterNode:
    return RegisterNode(
        command_id=UUID(int=1),
        cluster_id="c",
        node_id=NodeId(1),
        directory_ids=(),
        addresses=(),
        rack=None,
        version="1",
    )


def create(number: int) -> CreateTopic:
    return CreateTopic(
        command_id=UUID(int=1000 + number),
        name=f"t{number}",
        topic_id=UUID(int=5000 + number),
        assignments=((NodeId(1),),),
    )


class Host:
    """A machine and what of it is open."""

    def __init__(self, seed: int = 1) -> None:
        self.machine = Machine(random.Random(seed))
        self.journal_bytes_max = 1 << 20
        self.failures: list[Exception] = []

    async def open(self) -> MetadataStore:
        """Start a new process and its store."""
        process = self.machine.boot(asyncio.get_running_loop())
        return await MetadataStore.open(
            process.open_directory(PATH),
            process.engine,
            clock=CLOCK,
            journal_bytes_max=self.journal_bytes_max,
            on_failed=self.failures.append,
        )

    async def reopen(self) -> MetadataStore:
        """Kill the process (nothing is flushed) and start another."""
        self.machine.crash()
        return await self.open()

    def names(self) -> list[str]:
        """Return the files of the store."""
        names = self.machine.boot().open_directory(PATH).names()
        return [name for name in names if name != LOCK_NAME]

    def data(self, name: str = JOURNAL_0) -> bytes:
        """Return a file's bytes."""
        file = self.machine.boot().open_directory(PATH).open(name)
        return file.pread(file.size(), 0)

    def replace(self, data: bytes, name: str = JOURNAL_0) -> None:
        """Put other bytes into a file, durably."""
        directory = self.machine.boot().open_directory(PATH)
        file = directory.open(name, create=True)
        file.truncate(0)
        file.pwrite(data, 0)
        file.sync()
        directory.sync()


async def propose(store: MetadataStore, command: Command, patience_ms: int = 60_000) -> Outcome:
    return await store.propose(command, CLOCK.now_ms() + patience_ms)


async def filled(host: Host, count: int = 3) -> MetadataStore:
    store = await host.open()
    commands: list[Command] = [register(), *(create(number) for number in range(count))]
    for command in commands:
        assert isinstance(await propose(store, command), Applied)
    return store


def run(scenario: Callable[[], Awaitable[T]]) -> T:
    async def main() -> T:
        return await asyncio.wait_for(scenario(), 60)

    return asyncio.run(main())
