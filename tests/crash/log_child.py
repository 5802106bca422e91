"""A process that appends to a partition log until it is killed; run by `test_log_kill`.

Arguments: directory, engine, direct_io, flush policy. Reports each promised offset as 8 bytes on
standard output, the first when the log is open. The value of a record follows from its offset.
"""

import asyncio
import hashlib
import os
import random
import sys

from dlog.batch.header import BATCH_STRUCT
from dlog.batch.records import Record, encode
from dlog.types import ZERO_TOPIC_ID, LeaderEpoch, PartitionId, TopicPartition
from dlogd.config.choices import DirectIo, FlushPolicy
from dlogd.runtime.clock import SystemClock
from dlogd.runtime.tasks import Tasks
from dlogd.storage.io.append_memory import AppendMemory
from dlogd.storage.io.buffer_pool import BufferPool
from dlogd.storage.io.engine_choice import open_engine
from dlogd.storage.io.io_engine import Engine
from dlogd.storage.io.posix import PosixDirectory
from dlogd.storage.log.log_config import LogConfig
from dlogd.storage.log.log_state import LogServices
from dlogd.storage.log.partition_log import PartitionLog
from dlogd.storage.segment.open_file_cache import OpenFileCache
from dlogd.telemetry.metrics import StorageMetrics

SEGMENT_BYTES = 1 << 20


def config_of(direct_io: str, flush_policy: str) -> LogConfig:
    """Return small segments, so that rolls are frequent."""
    return LogConfig(
        segment_bytes=SEGMENT_BYTES,
        preallocate_bytes=1 << 19,
        flush_policy=FlushPolicy(flush_policy),
        flush_interval_ms=20,
        direct_io=DirectIo(direct_io),
    )


def value_of(offset: int) -> bytes:
    """Return the value of the record at `offset`, of 16 bytes to 40 KiB."""
    seed = hashlib.sha256(b"%d" % offset).digest()
    size = (1, 1, 3, 10, 100, 1250)[seed[0] % 6]
    return (b"%015d " % offset + seed) * size


async def open_log(path: str, config: LogConfig, engine: Engine) -> PartitionLog:
    """Open the log at `path`, recovering it."""
    loop = asyncio.get_running_loop()
    services = LogServices(
        loop=loop,
        clock=SystemClock(),
        engine=engine,
        memory=AppendMemory(BufferPool(8 << 20, call_soon=loop.call_soon)),
        tasks=Tasks(),
        metrics=StorageMetrics(),
        open_segments=OpenFileCache(),
    )
    name = TopicPartition("t", PartitionId(0))
    return await PartitionLog.open(
        name, ZERO_TOPIC_ID, PosixDirectory(path), config, services, clean=False
    )


def report(plog: PartitionLog) -> None:
    """Tell the parent what is promised; after a failure, end."""
    if plog.failed is not None:
        sys.exit(f"failed: {plog.failed}")
    os.write(1, int(plog.promised_offset).to_bytes(8, "big"))


async def main(path: str, engine_kind: str, direct_io: str, flush_policy: str) -> None:
    """Append for ever."""
    engine = open_engine(engine_kind, asyncio.get_running_loop())
    plog = await open_log(path, config_of(direct_io, flush_policy), engine)
    report(plog)
    plog.on_promised = report
    rng = random.Random(plog.log_end_offset)
    while True:
        for _ in range(rng.choice((1, 1, 2, 20))):
            count = rng.choice((1, 1, 3))
            start = plog.log_end_offset
            values = [value_of(start + number) for number in range(count)]
            batch = encode([Record(value=value, timestamp_ms=start) for value in values])
            fields = BATCH_STRUCT.unpack_from(batch)
            if plog.append(memoryview(batch), fields, leader_epoch=LeaderEpoch(1)) is None:
                await asyncio.sleep(0.001)
        await asyncio.sleep(rng.choice((0, 0, 0, 0.0005)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
