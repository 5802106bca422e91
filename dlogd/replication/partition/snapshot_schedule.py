"""Schedule of producer snapshots: after enough appends, and at the stop.

Owner: the event loop's thread; made by `dlogd.replication.replica_manager`.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence

from dlog.errors import WireError
from dlog.types import TopicId
from dlogd.replication.partition.partition import Partition
from dlogd.replication.partition.producer_snapshots import save_producers
from dlogd.runtime.clock import Clock

log = logging.getLogger(__name__)

SNAPSHOT_BYTES = 16 << 20
"""Appended bytes after which a partition's producer state is written anew."""
SNAPSHOT_PAUSE_S = 5.0
SAVED_AT_ONCE = 64
CLOCK_SET_MS = 1_000
"""A wall clock that gains more than this on the monotonic one was set."""


class SnapshotSchedule:
    """Writes snapshots of the partitions of one node."""

    def __init__(self, partitions: Mapping[tuple[TopicId, int], Partition], clock: Clock) -> None:
        self._partitions = partitions
        self._clock = clock

    async def run(self) -> None:
        """Write what is due, for ever."""
        lead_ms = self._lead_ms()
        while True:
            await asyncio.sleep(SNAPSHOT_PAUSE_S)
            now_ms = self._clock.timestamp_ms()
            before_ms, lead_ms = lead_ms, self._lead_ms()
            gained_ms = lead_ms - before_ms
            for partition in list(self._partitions.values()):
                if gained_ms > CLOCK_SET_MS:
                    partition.producers.shift(gained_ms, now_ms)
                partition.producers.expire(now_ms)
                is_due = partition.unsnapshotted_bytes >= SNAPSHOT_BYTES
                if is_due and not partition.is_ended and partition.log.blocked is None:
                    await self.save(partition)

    def _lead_ms(self) -> int:
        """Return what the wall clock is ahead of the monotonic one; it changes by being set."""
        return self._clock.timestamp_ms() - self._clock.now_ms()

    async def save_all(self, partitions: Sequence[Partition]) -> None:
        """Write what is not written yet."""
        stale = [each for each in partitions if each.unsnapshotted_bytes and not each.log.failed]

        async def save_some() -> None:
            while stale:
                await self.save(stale.pop())

        await asyncio.gather(*(save_some() for _ in range(SAVED_AT_ONCE)))

    async def save(self, partition: Partition) -> None:
        """Write the state of one partition; what fails is logged."""
        async with partition.cutting:
            await self._save(partition)

    async def _save(self, partition: Partition) -> None:
        taken_bytes, partition.unsnapshotted_bytes = partition.unsnapshotted_bytes, 0
        try:
            await save_producers(partition.log, partition.producers)
        except (WireError, OSError) as error:
            if isinstance(error, WireError):
                partition.unsnapshotted_bytes += taken_bytes  # not now: the log waits for space
            log.warning(
                "Could not write producer snapshot partition=%s error=%s",
                partition.topic_partition,
                error,
            )
