"""A log with a damaged place in a closed segment, and what should be there."""

import asyncio

from dlogd.storage.log.log_config import LogConfig
from dlogd.storage.log.partition_log import PartitionLog
from dlogd.storage.segment.bad_ranges import BadRange
from dlogd.storage.segment.segment import SegmentState
from dlogd.storage.segment.segment_names import file_name
from tests.fakes.logs import LogHost, append_waiting, batch_of, read_batches

CONFIG = LogConfig(segment_bytes=4000, preallocate_bytes=0, index_interval_bytes=1000)
BATCH_BYTES = len(batch_of(b"x" * 100))
COUNT = 60
FIRST, END = 5, 8


async def damaged() -> tuple[LogHost, PartitionLog, BadRange, bytes]:
    """Return a log with three bad batches, the place, and what should be there."""
    host = LogHost(config=CONFIG)
    plog = await host.open()
    for number in range(COUNT):
        await append_waiting(plog, b"%03d" % number + b"x" * 97)
    await plog.flush()
    while plog.segments[0].state is not SegmentState.SEALED:
        await asyncio.sleep(0.01)
    good = await read_batches(plog, 0)
    file = host.directory.open(file_name(0))
    file.pwrite(b"\xff" * (2 * BATCH_BYTES + 30), FIRST * BATCH_BYTES + 8)
    file.close()
    path = plog.segments[0].path
    plog.damage.note(path, FIRST * BATCH_BYTES, FIRST, END, END * BATCH_BYTES)
    return host, plog, plog.damage.places[0], good
