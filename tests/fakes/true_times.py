"""What a log knows of the times of its records, and when it has learned it."""

import asyncio

from dlogd.storage.log.log_config import LogConfig
from dlogd.storage.log.partition_log import PartitionLog
from dlogd.storage.segment.segment import SegmentState

NOW = 1_790_000_000_000
CONFIG = LogConfig(
    segment_bytes=3000, preallocate_bytes=0, index_interval_bytes=256, segment_ms=10**15
)


async def sealed_all(plog: PartitionLog) -> None:
    """Roll, and wait until all but the active segment are closed."""
    plog.roll()
    while any(each.state is not SegmentState.SEALED for each in plog.segments[:-1]):
        await asyncio.sleep(0.01)


async def learned(plog: PartitionLog) -> None:
    """Wait until the background has read all closed segments."""
    while not all(each.known_times.is_true for each in plog.segments[:-1]):
        await asyncio.sleep(0.01)


async def first(plog: PartitionLog, timestamp_ms: int) -> tuple[int, int] | None:
    """Return timestamp and offset of what is found."""
    found = await plog.offset_for_timestamp(timestamp_ms)
    return None if found is None else (found.timestamp_ms, found.offset)


async def newest(plog: PartitionLog) -> tuple[int, int] | None:
    """Return timestamp and offset of the newest record."""
    found = await plog.offset_of_max_timestamp()
    return None if found is None else (found.timestamp_ms, found.offset)
