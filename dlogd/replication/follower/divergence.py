"""Divergence from the leader: truncation of a log and of the state next to it.

A follower's log is only cut where its leader's history says so (KIP-101), never at a watermark.
Producers are read anew: what they sent behind the cut was never there.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

from dlog.errors import NONE, CorruptMessageError, OffsetOutOfRangeError
from dlog.types import LeaderEpoch, Offset
from dlogd.replication.partition.partition import Partition
from dlogd.replication.partition.producer_snapshots import load_producers
from dlogd.replication.placement_diff import Key
from dlogd.replication.protocol import Refusal
from dlogd.runtime.clock import Clock
from dlogd.storage.log.partition_log import PartitionLog

log = logging.getLogger(__name__)

READ_AGAIN_S = 1.0

Cut = Callable[[], Awaitable[None]]
"""Cuts a log. Raises WireError or OSError when that cannot be done now."""


def divergence(plog: PartitionLog, leader_epoch: int, leader_end: int) -> Offset:
    """Return where a follower's log has to end to be a beginning of its leader's, perhaps.

    `leader_epoch` is the leader's largest epoch not above that of this log's last batch,
    `leader_end` where it ends. The log may have to be asked about again afterwards (KIP-279).
    """
    own_epoch, own_end = plog.end_offset_for_epoch(LeaderEpoch(leader_epoch))
    if own_epoch < 0:
        # All epochs here are older: the last of them is asked about next.
        own_epoch, own_end = plog.last_epoch, plog.log_end_offset
    if own_epoch == leader_epoch:
        own_end = Offset(min(own_end, leader_end))
    return Offset(max(plog.log_start_offset, min(own_end, plog.log_end_offset)))


class Divergence:
    """Cuts the logs of followers of one node."""

    def __init__(self, clock: Clock, others_have_it: Callable[[Key], bool]) -> None:
        """`others_have_it`: whether the cluster has a partition's records without this replica."""
        self._clock = clock
        self._others_have_it = others_have_it

    def cut_for(self, partition: Partition, refusal: Refusal) -> Cut | None:
        """Return what a leader's refusal asks for; None: nothing that a cut would help."""
        plog = partition.log
        end, leader_start = refusal.end_offset, refusal.log_start_offset
        if refusal.error_code == NONE and refusal.epoch >= 0:
            if 0 <= end < plog.log_start_offset and leader_start >= 0:
                # They part below all that is here, and the leader has what is missing.
                return partial(self.start_at, partition, Offset(leader_start))
            target = divergence(plog, refusal.epoch, end)
            if target < plog.log_end_offset:
                return partial(self.truncate_to, partition, target)
        elif refusal.error_code in (NONE, OffsetOutOfRangeError.code):
            # A leader of an earlier version that knows no epoch: what it deleted has counted.
            leader_end = Offset(refusal.log_end_offset)
            if plog.log_end_offset > leader_end >= plog.log_start_offset:
                return partial(self.truncate_to, partition, leader_end)
            if leader_start >= 0:
                return partial(self.start_at, partition, Offset(leader_start))
        return None

    async def truncate_to(self, partition: Partition, offset: Offset) -> None:
        """Drop what lies at or behind `offset`. Raises WireError or OSError.

        Where the batch that holds `offset` is damaged, its segment goes as a whole, as soon as
        nobody counts on this replica; CorruptMessageError until then.
        """
        plog = partition.log
        before = plog.log_end_offset
        async with self._cutting(partition):
            self._lower_watermark(partition, offset)
            try:
                await plog.truncate_to(offset)
            except CorruptMessageError:
                if not self._others_have_it((plog.topic_id, plog.topic_partition.partition)):
                    raise
                await self._drop_segment(partition, offset)
            # The batch that holds the offset has gone as a whole.
            self._lower_watermark(partition, plog.log_end_offset)
            await self._read_producers(partition)
        log.warning(
            "Truncated log partition=%s from=%d to=%d leader_epoch=%d",
            partition.topic_partition,
            before,
            plog.log_end_offset,
            partition.leader_epoch,
        )

    async def _drop_segment(self, partition: Partition, offset: Offset) -> None:
        """Cut where the damaged segment that holds `offset` begins; its leader sends it again.

        Nothing else would ever heal it: what another replica has there fits no longer.
        """
        plog = partition.log
        base_offset = plog.segment_of(offset).base_offset
        start = Offset(max(base_offset, plog.log_start_offset))
        self._lower_watermark(partition, start)
        if start == base_offset:
            await plog.truncate_to(start)
        else:
            await plog.start_at(start)

    async def start_at(self, partition: Partition, offset: Offset) -> None:
        """Drop everything and begin anew at `offset`. Raises WireError or OSError."""
        plog = partition.log
        before = (plog.log_start_offset, plog.log_end_offset)
        async with self._cutting(partition):
            self._lower_watermark(partition, Offset(0))
            await plog.start_at(offset)
            partition.high_watermark = offset
            await self._read_producers(partition)
        log.warning(
            "Restarted log from the leader's log start partition=%s had=%d..%d begins=%d"
            " leader_epoch=%d",
            partition.topic_partition,
            *before,
            offset,
            partition.leader_epoch,
        )

    @asynccontextmanager
    async def _cutting(self, partition: Partition) -> AsyncIterator[None]:
        partition.is_cutting = True
        try:
            async with partition.cutting:
                yield
        finally:
            partition.is_cutting = False
            # Where a trim was under way first, the start may be behind what was to be the end.
            start = partition.log.log_start_offset
            partition.high_watermark = max(partition.high_watermark, start)

    def _lower_watermark(self, partition: Partition, offset: Offset) -> None:
        if offset >= partition.high_watermark:
            return
        # Only after an unclean election, or below the leader's log start.
        log.warning(
            "Truncating below the high watermark partition=%s high_watermark=%d to=%d",
            partition.topic_partition,
            partition.high_watermark,
            offset,
        )
        partition.high_watermark = Offset(max(offset, partition.log.log_start_offset))

    async def _read_producers(self, partition: Partition) -> None:
        plog = partition.log
        while True:
            partition.producers.clear()
            try:
                await load_producers(self._clock, plog, partition.producers)
                break
            except OSError as error:
                # Who does not know the producers must not lead: it would take batches twice.
                plog.fail_read(error)
                if plog.failed is not None:
                    raise
            await asyncio.sleep(READ_AGAIN_S)
        partition.unsnapshotted_bytes = partition.log.size_bytes
