"""Timestamps of one segment by its records: a search while it is written, the one look at its end.

A log of dlogd in this process, on the disk, filled as a follower fills it. CPU counts all threads.
"""

import argparse
import asyncio
import json
import random
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

from dlog.batch.header import (
    BATCH_STRUCT,
    LENGTH_OVERHEAD_BYTES,
    patch,
    patch_max_timestamp,
    verify_crc,
)
from dlog.batch.records import Record, encode
from dlog.compression import Codec
from dlog.types import ZERO_TOPIC_ID, PartitionId, TopicPartition
from dlogd.config.choices import FlushPolicy
from dlogd.runtime.clock import SystemClock
from dlogd.runtime.tasks import Tasks
from dlogd.storage.io.append_memory import AppendMemory
from dlogd.storage.io.buffer_pool import BufferPool
from dlogd.storage.io.engine_choice import open_engine
from dlogd.storage.io.posix import PosixDirectory
from dlogd.storage.log.log_config import LogConfig
from dlogd.storage.log.log_state import LogServices
from dlogd.storage.log.partition_log import PartitionLog
from dlogd.storage.log.timestamp_learner import PIECE_BYTES
from dlogd.storage.segment.open_file_cache import OpenFileCache
from dlogd.storage.segment.segment import Segment
from dlogd.telemetry.metrics import StorageMetrics

BASE_MS = 1_790_000_000_000
VALUE_BYTES = 100
BATCH_MS = 20
"""From one batch to the next."""
DISTINCT_BATCHES = 16
SEARCHES = 200
_BASE_TIMESTAMP = struct.Struct(">q")
_BASE_TIMESTAMP_POSITION = 27


def _distinct(codec: Codec, records: int) -> list[bytearray]:
    """Return batches of hexadecimal digits by chance, which zstd makes half as long."""
    rng = random.Random(7)
    return [
        encode(
            [
                Record(value=rng.randbytes(VALUE_BYTES // 2).hex().encode(), timestamp_ms=BASE_MS)
                for _ in range(records)
            ],
            codec=codec,
        )
        for _ in range(DISTINCT_BATCHES)
    ]


async def _fill(plog: PartitionLog, codec: Codec, records: int, size: int) -> int:
    """Append batches with rising timestamps up to `size` bytes; return how many."""
    batches = _distinct(codec, records)
    count = 0
    while plog.active.tail.end < size:
        batch = batches[count % DISTINCT_BATCHES]
        now_ms = BASE_MS + count * BATCH_MS
        _BASE_TIMESTAMP.pack_into(batch, _BASE_TIMESTAMP_POSITION, now_ms)
        patch_max_timestamp(batch, 0, len(batch), now_ms)
        patch(batch, 0, plog.log_end_offset, 0)
        while plog.append_verbatim(memoryview(batch)) is None:
            await _room(plog)
        count += 1
    await plog.flush()
    return count


async def _room(plog: PartitionLog) -> None:
    room = asyncio.Event()
    plog.when_writable(room.set)
    await room.wait()


async def _search(plog: PartitionLog, records: int, batches: int) -> float:
    """Search for the times of batches by chance; return the median in µs."""
    rng = random.Random(9)
    found_us = []
    for _ in range(SEARCHES):
        number = rng.randrange(batches)
        began = time.perf_counter()
        found = await plog.offset_for_timestamp(BASE_MS + number * BATCH_MS)
        found_us.append((time.perf_counter() - began) * 1e6)
        if found is None or found.offset != number * records:
            raise SystemExit(f"a search found {found}, not batch {number}")
    return median(found_us)


async def _cpu_s(work: Callable[[], Awaitable[object]]) -> float:
    began = time.process_time()
    await work()
    return time.process_time() - began


async def _checksums(path: Path) -> None:
    """Read the segment in the same pieces and check the CRC of each batch, and no more."""
    rest = b""
    with path.open("rb", buffering=0) as file:
        while piece := file.read(PIECE_BYTES):
            data = rest + piece
            at = 0
            while len(data) - at >= BATCH_STRUCT.size:
                size = BATCH_STRUCT.unpack_from(data, at)[1] + LENGTH_OVERHEAD_BYTES
                if at + size > len(data):
                    break
                if not verify_crc(data, at, size):
                    raise SystemExit(f"{path} has a batch that was not written")
                at += size
            rest = data[at:]
    if rest:
        raise SystemExit(f"{path} ends within a batch")


async def _roll(plog: PartitionLog) -> Segment:
    """Close the active segment; nothing else looks at it then."""
    sealed: asyncio.Future[Segment] = asyncio.get_running_loop().create_future()
    plog.on_sealed = sealed.set_result
    plog.roll()
    return await sealed


async def measure(folder: Path, codec: Codec, records: int, size: int) -> dict[str, float]:
    """Fill a segment with batches of so many records, search it, close it, look at it."""
    folder.mkdir(parents=True)
    loop = asyncio.get_running_loop()
    engine = open_engine("auto", loop)
    tasks = Tasks()
    services = LogServices(
        loop=loop,
        clock=SystemClock(),
        engine=engine,
        memory=AppendMemory(BufferPool(32 << 20, call_soon=loop.call_soon)),
        tasks=tasks,
        metrics=StorageMetrics(),
        open_segments=OpenFileCache(),
    )
    config = LogConfig(segment_bytes=2 * size, flush_policy=FlushPolicy.INTERVAL)
    plog = await PartitionLog.open(
        TopicPartition("t", PartitionId(0)),
        ZERO_TOPIC_ID,
        PosixDirectory(str(folder)),
        config,
        services,
        clean=False,
    )
    try:
        batches = await _fill(plog, codec, records, size)
        first_s = await _cpu_s(plog.offset_of_max_timestamp)
        search_us = await _search(plog, records, batches)
        segment = await _roll(plog)
        path = Path(segment.path)
        await _checksums(path)  # the page cache has it now
        learn_s = await _cpu_s(lambda: plog.timestamps.learner.remember(segment))
        crc_s = await _cpu_s(lambda: _checksums(path))
        if not (segment.known_times.is_true and segment.known_times.is_decoded):
            raise SystemExit("the segment was not learned")
    finally:
        await plog.close()
        await tasks.close()
        engine.close()
    gb = segment.tail.end / 1e9
    return {
        "learn_cpu_s_per_gb": learn_s / gb,
        "learn_ns": learn_s / (batches * records) * 1e9,
        "crc_cpu_s_per_gb": crc_s / gb,
        "crc_ratio": learn_s / crc_s,
        "first_search_cpu_s_per_gb": first_s / gb,
        "search_us": search_us,
    }


def main() -> int:
    """Measure once and print the result."""
    parser = argparse.ArgumentParser(prog="python -m bench.load.segment_times")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--codec", choices=[each.name.lower() for each in Codec], default="none")
    parser.add_argument("--records", type=int, default=160, help="in each batch")
    parser.add_argument("--bytes", type=int, default=256 << 20)
    options = parser.parse_args()
    codec = Codec[options.codec.upper()]
    work = measure(options.folder, codec, options.records, options.bytes)
    print(json.dumps(asyncio.run(work)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
