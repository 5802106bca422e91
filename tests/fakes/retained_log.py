"""A log under retention by time, in virtual time."""

import asyncio
from collections.abc import Sequence

from dlog.compression import Codec
from dlogd.storage.log.log_config import LogConfig
from dlogd.storage.log.partition_log import PartitionLog
from dlogd.storage.segment.segment import SegmentState
from tests.fakes.lies import append_batch, lying
from tests.fakes.manager import ManagerHost
from tests.simulation.loop import SimClock, SimLoop

RETENTION_MS = 6_000
CONFIG = LogConfig(
    segment_bytes=400, preallocate_bytes=0, index_interval_bytes=256, retention_ms=RETENTION_MS
)


class Retained:
    """One log under retention by time, in virtual time."""

    def __init__(self, config: LogConfig = CONFIG) -> None:
        self.host = ManagerHost(1)
        self.host.config = config
        self.log: PartitionLog

    async def start(self, *numbers: int) -> None:
        """Start the manager with these partitions known, and make the log."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        self.host.clock = SimClock(loop)
        await self.host.start(*numbers)
        self.log = await self.host.create(0)

    @property
    def now_ms(self) -> int:
        """The wall clock of the log."""
        return self.host.services.clock.timestamp_ms()

    async def append(
        self, ages_ms: Sequence[int], head_ms: int | None, codec: Codec = Codec.GZIP
    ) -> None:
        """Append and flush a batch of records that are so old."""
        now_ms = self.now_ms
        batch = lying([now_ms - age for age in ages_ms], head_ms, codec, size=100)
        assert append_batch(self.log, batch) is not None
        await self.log.flush()

    async def close_segments(self) -> None:
        """Roll, and wait until all but the active segment are closed."""
        self.log.roll()
        while any(each.state is not SegmentState.SEALED for each in self.log.segments[:-1]):
            await asyncio.sleep(0.001)

    async def wait(self, ms: int) -> None:
        """Let time pass, and retention look."""
        await asyncio.sleep(ms / 1000)

    async def gone_by(self, ms: int) -> bool:
        """Return whether all records are deleted within this time."""
        await self.wait(ms)
        return self.log.log_start_offset == self.log.log_end_offset
