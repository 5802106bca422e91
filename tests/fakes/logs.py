"""A partition log for tests, on the simulated disk: made, crashed, damaged, opened again."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from dlog.batch.header import BATCH_STRUCT
from dlog.batch.records import Record, decode, encode
from dlog.types import ZERO_TOPIC_ID, LeaderEpoch, Offset, PartitionId, TopicPartition
from dlogd.runtime.clock import Clock, SystemClock
from dlogd.runtime.tasks import Tasks
from dlogd.storage.io.append_memory import AppendMemory
from dlogd.storage.io.buffer_pool import BufferPool
from dlogd.storage.io.files import Directory
from dlogd.storage.io.io_engine import Engine
from dlogd.storage.log.log_config import LogConfig
from dlogd.storage.log.log_state import LogServices
from dlogd.storage.log.partition_log import PartitionLog
from dlogd.storage.segment.open_file_cache import OpenFileCache
from dlogd.storage.segment.segment import Segment
from dlogd.telemetry.metrics import StorageMetrics
from tests.fakes.disk import Machine, Process
from tests.simulation.loop import SimLoop, run_alone

TOPIC_PARTITION = TopicPartition("t", PartitionId(0))


def services_for(
    engine: Engine,
    *,
    pool_bytes: int = 1 << 20,
    small_bytes: int = 4096,
    large_bytes: int = 16384,
    clock: Clock | None = None,
) -> LogServices:
    """Return what a log needs beside its directory, with little memory, on the running loop."""
    loop = asyncio.get_running_loop()
    pool = BufferPool(
        pool_bytes, small_bytes=small_bytes, large_bytes=large_bytes, call_soon=loop.call_soon
    )
    return LogServices(
        loop=loop,
        clock=clock or SystemClock(),
        engine=engine,
        memory=AppendMemory(pool, 1 << 20),
        tasks=Tasks(),
        metrics=StorageMetrics(),
        open_segments=OpenFileCache(2),
    )


class LogHost:
    """A machine with one log; `crash` and `power_cut` end the process, `open` begins the next."""

    def __init__(self, seed: int = 1, config: LogConfig | None = None, **memory: int) -> None:
        self.machine = Machine(random.Random(seed))
        self.config = config or LogConfig(segment_bytes=1 << 20, preallocate_bytes=1 << 18)
        self._memory: dict[str, Any] = dict(memory)
        self.process: Process
        self.directory: Directory
        self.services: LogServices
        self.log: PartitionLog

    async def open(self, *, clean: bool = False) -> PartitionLog:
        """Start a process and open the log in it."""
        self.process = self.machine.boot(asyncio.get_running_loop())
        self.directory = self.process.open_directory("/data/t-0")
        self.services = services_for(self.process.engine, **self._memory)
        self.log = await PartitionLog.open(
            TOPIC_PARTITION, ZERO_TOPIC_ID, self.directory, self.config, self.services, clean=clean
        )
        return self.log

    async def reopen(self) -> PartitionLog:
        """Stop in order and start again."""
        await self.log.close()
        await self.services.tasks.close()
        self.machine.crash()
        return await self.open(clean=True)

    async def crash(self) -> PartitionLog:
        """Kill the process and start again."""
        self.machine.crash()
        await self._forget()
        return await self.open()

    async def kill(self) -> Directory:
        """Kill the process; return the log's directory as it is on the disk, to be damaged."""
        self.machine.crash()
        await self._forget()
        return self.machine.boot().open_directory("/data/t-0")

    async def power_cut(self, keep: float | None = None) -> PartitionLog:
        """Cut the power and start again."""
        self.machine.power_cut(keep)
        await self._forget()
        return await self.open()

    async def _forget(self) -> None:
        await self.services.tasks.close()


def run(scenario: Callable[[], Awaitable[Any]]) -> Any:
    """Run a scenario on a plain loop of its own."""

    async def main() -> Any:
        return await asyncio.wait_for(asyncio.ensure_future(scenario()), 60)

    return asyncio.run(main())


def run_virtual(scenario: Callable[[], Awaitable[Any]]) -> Any:
    """Run a scenario in virtual time: other load on the machine changes nothing."""

    async def main() -> Any:
        return await scenario()

    return run_alone(main())


def batch_of(
    *values: bytes, timestamp_ms: int = 1000, producer_id: int = -1, step_ms: int = 0
) -> bytearray:
    """Return a batch with one record per value."""
    records = [
        Record(value=value, timestamp_ms=timestamp_ms + step_ms * number)
        for number, value in enumerate(values or (b"x",))
    ]
    return encode(records, producer_id=producer_id)


def append(
    plog: PartitionLog, *values: bytes, epoch: int = 0, timestamp_ms: int = 1000
) -> Offset | None:
    """Append one batch with a record per value."""
    batch = batch_of(*values, timestamp_ms=timestamp_ms)
    fields = BATCH_STRUCT.unpack_from(batch)
    return plog.append(memoryview(batch), fields, leader_epoch=LeaderEpoch(epoch))


async def append_waiting(
    plog: PartitionLog, *values: bytes, epoch: int = 0, timestamp_ms: int = 1000
) -> Offset:
    """Append one batch, waiting for memory as a server would."""
    while True:
        offset = append(plog, *values, epoch=epoch, timestamp_ms=timestamp_ms)
        if offset is not None:
            return offset
        future = asyncio.get_running_loop().create_future()
        plog.when_writable(lambda: future.set_result(None))  # noqa: B023 (awaited at once)
        await future


TICK_S = 0.00001


async def settle() -> None:
    """Let everything happen that takes no time."""
    # In virtual time a timer of no delay runs only when nothing else is ready.
    pause_s = TICK_S if isinstance(asyncio.get_running_loop(), SimLoop) else 0
    for _ in range(20):
        await asyncio.sleep(pause_s)


async def read_batches(
    plog: PartitionLog, offset: int, max_bytes: int = 1 << 30, end_offset: int | None = None
) -> bytes:
    """Read from `offset` to the end, piece by piece, as a server would."""
    parts = []
    end = plog.log_end_offset if end_offset is None else end_offset
    while offset < end:
        found = plog.read(offset, max_bytes, end)
        while found is None:
            await plog.locate(offset)
            found = plog.read(offset, max_bytes, end)
        if not found.ranges:
            break
        data = b"".join([await bytes_of(plog, *piece[:3]) for piece in found.ranges])
        assert len(data) == found.bytes
        assert int.from_bytes(data[:8], "big") == found.base_offset <= offset
        parts.append(data)
        offset = next_offset_of(data)
    return b"".join(parts)


async def bytes_of(plog: PartitionLog, segment: Segment, position: int, length: int) -> bytes:
    """Stream one range, from memory or by the engine."""
    parts = []
    segment.acquire()
    try:
        while length:
            view = segment.memory_view(position, length)
            if view is not None:
                part = bytes(view)
            else:
                part = await _from_disk(plog, segment, position, length)
            assert part, f"{segment} ended at {position}, {length} bytes are missing"
            parts.append(part)
            position += len(part)
            length -= len(part)
    finally:
        segment.release()
    return b"".join(parts)


async def _from_disk(plog: PartitionLog, segment: Segment, position: int, length: int) -> bytes:
    future = asyncio.get_running_loop().create_future()

    def on_read(result: Any) -> None:
        if isinstance(result, OSError):
            future.set_exception(result)
        else:
            future.set_result(bytes(result.view))
            result.release()

    length = min(length, segment.written_position - position, 65536)
    assert segment.file is not None
    plog.services.engine.read(segment.file, position, length, on_read)
    return bytes(await future)


def next_offset_of(data: bytes) -> int:
    """Return the offset after the last batch of `data`, all of which must be whole."""
    position = offset = 0
    while position < len(data):
        fields = BATCH_STRUCT.unpack_from(data, position)
        offset = fields[0] + fields[6] + 1
        position += fields[1] + 12
    assert position == len(data)
    return offset


def values_in(data: bytes) -> list[tuple[int, bytes]]:
    """Return (offset, value) of all records in a row of batches, checksums verified."""
    found: list[tuple[int, bytes]] = []
    position = 0
    while position < len(data):
        fields = BATCH_STRUCT.unpack_from(data, position)
        found += [(record.offset, record.value or b"") for record in decode(data, position)]
        position += fields[1] + 12
    return found


async def values_of(plog: PartitionLog, offset: int | None = None) -> list[tuple[int, bytes]]:
    """Return (offset, value) of all records of the log."""
    start = plog.log_start_offset if offset is None else offset
    return [entry for entry in values_in(await read_batches(plog, start)) if entry[0] >= start]
