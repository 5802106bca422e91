"""Partition logs with some flushed batches of one record in them, and their config, for tests."""

from dataclasses import replace
from typing import Any

from dlogd.storage.log.log_config import LogConfig
from dlogd.storage.log.partition_log import PartitionLog
from tests.fakes.logs import LogHost, append_waiting, batch_of, settle

CONFIG = LogConfig(
    segment_bytes=1 << 20, preallocate_bytes=1 << 16, index_interval_bytes=256, segment_ms=10**9
)
BATCH_BYTES = len(batch_of(b"x" * 100))


def config(**changes: Any) -> LogConfig:
    return replace(CONFIG, **changes)


async def opened(host: LogHost, count: int = 0) -> PartitionLog:
    """Open the log and append and flush some batches of one record."""
    plog = await host.open()
    for number in range(count):
        await append_waiting(plog, b"%03d" % number + b"x" * 97)
    await plog.flush()
    await settle()
    return plog


async def quiet(plog: PartitionLog) -> None:
    """Wait until no background job is left."""
    for _ in range(10):
        await settle()
    async with plog._maintenance.lock:
        pass
