"""Tasks of the Spark source against fake nodes: their settings, their columns, what they read."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from uuid import UUID

import pyarrow as pa
import pytest

from dlog.spark.reading import task
from dlog.spark.reading.ranges import OffsetRange
from dlog.spark.reading.rows import COLUMN_TYPES
from dlog.spark.settings import ClientSettings
from dlog.types import ZERO_TOPIC_ID
from tests.fakes.batches import batch
from tests.fakes.log_nodes import LogNodes

NAMES = tuple(COLUMN_TYPES)


def schema_of(*names: str) -> pa.Schema:
    """Return the schema with these columns."""
    return pa.schema([(name, COLUMN_TYPES[name]) for name in names or NAMES])


OFFSETS = schema_of("offset")


def settings(servers: LogNodes, **changes: object) -> ClientSettings:
    """Return settings that are patient for the length of a test only."""
    given: dict[str, object] = {"deadline_s": 5.0, "request_timeout_s": 5.0, **changes}
    return ClientSettings(bootstrap=",".join(map(str, servers.bootstrap)), **given)  # type: ignore[arg-type]


async def read(
    servers: LogNodes,
    start: int,
    end: int,
    *,
    fail: bool = True,
    partition: int = 0,
    topic_id: UUID = ZERO_TOPIC_ID,
    found: list[int] | None = None,
    **changes: object,
) -> list[int]:
    """Return the offsets that a task reads, in a thread as Spark's worker would; add to `found`."""
    wanted = OffsetRange(
        topic="t",
        partition=partition,
        start_offset=start,
        end_offset=end,
        topic_id=topic_id,
    )
    given = settings(servers, **changes)

    offsets = [] if found is None else found

    def run() -> list[int]:
        for each in task.read_range(given, wanted, OFFSETS, fail_on_data_loss=fail):
            offsets.extend(each.column("offset").to_pylist())
        return offsets

    return await asyncio.to_thread(run)


def play(work: Callable[[LogNodes], Awaitable[None]], *, nodes: int = 1, count: int = 3) -> None:
    """Run a test with nodes and some batches of three records in each partition."""

    async def main() -> None:
        async with asyncio.timeout(30), LogNodes(2, nodes) as servers:
            for log in servers.logs:
                for number in range(count):
                    log.append(batch(3 * number))
            await work(servers)
            await asyncio.to_thread(task.close_idle)

    asyncio.run(main())


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """See that no thread stays when the readers that are kept are closed."""
    yield
    task.close_idle()
    assert not [each for each in threading.enumerate() if each.name.startswith("dlog")]
