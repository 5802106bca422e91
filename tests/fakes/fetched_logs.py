"""Logs behind Fetch: filled, forgotten by the memory, read by a reader of the test."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from dlogd.replication.partition.partition import Partition
from tests.fakes.front import run_on
from tests.fakes.logs import append


def check(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a scenario for at most 30 s."""
    run_on(asyncio.new_event_loop, scenario())


async def fill(partition: Partition, count: int, value_bytes: int = 1000) -> None:
    """Append `count` batches of one record and flush them."""
    for number in range(count):
        assert append(partition.log, bytes([number % 256]) * value_bytes) is not None
    await partition.log.flush()


def forget_what_is_in_memory(partition: Partition) -> None:
    """Drop the cached bytes and remembered places, as other traffic would."""
    pool = partition.log.services.memory.pool
    partition.log.services.memory._release_clean(1000)
    while pool._evict_oldest():
        pass
    partition.log.reader.forget(0)


class ReaderStandIn:
    """The reader of a log with some of its methods replaced."""

    def __init__(self, partition: Partition, **methods: Any) -> None:
        self.real = partition.log.reader
        self.__dict__.update(methods)
        partition.log.reader = self  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)
