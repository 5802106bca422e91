"""Partition logs with some flushed batches of one record in them, and their config, for tests."""

from dataclasses import replace
from typing import Any

from dlogd.config.choices import FlushPolicy
from dlogd.storage.log.log_config import LogConfig
from dlogd.storage.log.partition_log import PartitionLog
from tests.fakes.logs import LogHost, append_waiting, batch_of, settle, values_of

CONFIG = LogConfig(
    segment_bytes=1 << 20, preallocate_bytes=1 << 16, index_interval_bytes=256, segment_ms=10**9
)
BATCH_BYTES = len(batch_of(b"x" * 100))


def config(**changes: Any) -> LogConfig:
    """Return the config with these changes."""
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


async def offsets(plog: PartitionLog) -> list[int]:
    """Return the offsets of all records."""
    return [offset for offset, _ in await values_of(plog)]


async def rested(host: LogHost, count: int) -> PartitionLog:
    """Open the log, append and flush as `opened` does, and wait until no background job is left."""
    plog = await opened(host, count)
    await quiet(plog)
    return plog


async def filled(host: LogHost, count: int, per_batch: int = 1) -> PartitionLog:
    """Open the log; append and flush `count` records in batches, timestamps 0, 10, 20, ..."""
    plog = await host.open()
    for start in range(0, count, per_batch):
        values = [b"%03d" % offset + b"x" * 97 for offset in range(start, start + per_batch)]
        await append_waiting(plog, *values, timestamp_ms=10 * start)
    await plog.flush()
    for _ in range(5):
        await settle()
    return plog


async def unflushed() -> tuple[LogHost, PartitionLog]:
    """Return a log of ten records, not all of which are flushed, and its host."""
    host = LogHost(config=config(segment_bytes=2000, flush_policy=FlushPolicy.NEVER))
    plog = await host.open()
    for _ in range(10):
        await append_waiting(plog, b"x" * 100)
    await settle()
    assert plog.flushed_offset < plog.promised_offset == 10
    return host, plog
