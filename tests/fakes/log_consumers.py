"""Consumers of `tests.fakes.log_nodes`, patient for the length of a test, and what they read."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from dlog.client.consumed import ConsumedRecord
from dlog.client.consumer import Consumer
from dlog.client.retry import RetryPolicy
from dlog.transport import ConnectionOptions
from dlog.types import PartitionId, TopicPartition
from tests.fakes.batches import batch
from tests.fakes.log_nodes import LogNodes

POLICY = RetryPolicy(base_s=0.001, cap_s=0.01, deadline_s=5.0)
OPTIONS = ConnectionOptions(request_timeout_s=5, connect_timeout_s=5)
FIRST, SECOND, THIRD = (TopicPartition("t", PartitionId(number)) for number in range(3))


def run(
    work: Callable[[LogNodes], Awaitable[None]], *, partitions: int = 1, nodes: int = 1
) -> None:
    """Run a test with nodes; nothing of it may be left behind."""

    async def main() -> None:
        async with asyncio.timeout(30), LogNodes(partitions, nodes) as servers:
            for log in servers.logs:
                for number in range(3):
                    log.append(batch(3 * number))
            await work(servers)
        names = [task.get_name() for task in asyncio.all_tasks()]
        assert not [name for name in names if name.startswith("dlog")], names

    asyncio.run(main())


def consumer(servers: LogNodes, **changes: Any) -> Consumer:
    """Return a consumer of topic `t`, patient for the length of a test only."""
    arguments: dict[str, Any] = {
        "topics": () if "partitions" in changes else "t",
        "policy": POLICY,
        "connection": OPTIONS,
        "max_wait_ms": 50,
    }
    return Consumer(servers.bootstrap, **{**arguments, **changes})


async def read(reader: Consumer, count: int, **limits: Any) -> list[ConsumedRecord]:
    """Poll until there are `count` records."""
    records: list[ConsumedRecord] = []
    while len(records) < count:
        records += await reader.poll(**limits)
    return records


def offsets(records: list[ConsumedRecord], partition: int = 0) -> list[int]:
    """Return the offsets of one partition's records."""
    return [record.offset for record in records if record.partition == partition]
