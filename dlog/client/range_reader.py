"""Reader of ranges of offsets over connections that stay open: for Spark tasks.

Unlike a consumer it knows where each range ends, so nothing is fetched behind it; records are
handed out as whole batches, checked and still packed, for the caller to decode. Gaps are told by
`GapError`, and it is the caller who says where to go on.
"""

import asyncio
import random
from contextlib import suppress
from uuid import UUID

from dlog.client.cluster.bootstrap import Bootstrap, parse_bootstrap
from dlog.client.cluster.offset_lookup import UNKNOWN_TOPIC_PATIENCE_S
from dlog.client.consuming.consumer_core import ConsumerCore, PollLimits, Settings
from dlog.client.consuming.fetch_plan import FetchLimits
from dlog.client.consuming.partition_cursor import Packed, PartitionCursor
from dlog.client.gaps import Gap, GapReason
from dlog.client.retry import RetryPolicy
from dlog.client.views import TopicView
from dlog.errors import (
    DlogError,
    ProtocolError,
    TransportError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    WireError,
)
from dlog.transport import ConnectionOptions
from dlog.types import ZERO_TOPIC_ID, PartitionId, TopicPartition

RECORD_BYTES_GUESS = 4096.0
"""Of a partition that was not read yet: a small range does not bring megabytes behind its end."""
REMEMBERED_MAX = 10_000
_RECHECK_S = 0.1


class RangeReader:
    """Reads one range at a time. Owner: one event loop, one task. Life: until `close`."""

    def __init__(
        self,
        bootstrap: Bootstrap,
        *,
        limits: FetchLimits,
        connection: ConnectionOptions | None = None,
        policy: RetryPolicy | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """Find the cluster when the first range is begun; to be called on a running loop."""
        settings = Settings(
            addresses=parse_bootstrap(bootstrap),
            limits=limits,
            on_gap=None,
            connection=connection,
            policy=policy,
            rng=rng or random.Random(),
        )
        self._reading = ConsumerCore(settings, asyncio.get_running_loop())
        self._cursor: PartitionCursor | None = None
        # What records took when a range of the partition was read last.
        self._record_bytes: dict[TopicPartition, float] = {}

    async def close(self) -> None:
        """Stop reading and close all connections. Idempotent."""
        await self._reading.close()

    async def begin(
        self,
        topic: str,
        partition: int,
        start_offset: int,
        end_offset: int,
        *,
        topic_id: UUID = ZERO_TOPIC_ID,
    ) -> None:
        """Read from `start_offset` up to `end_offset`, exclusive; ends the range before.

        Raises UnknownTopicOrPartitionError when there is no such partition, UnknownTopicIdError
        when the topic has another id than `topic_id` (zero: any), and errors that last until the
        policy's deadline.
        """
        await self.end()
        key = TopicPartition(topic, PartitionId(partition))
        told = await self._found_id(key, topic_id)
        self._cursor = PartitionCursor(key, start_offset, end_offset)
        self._cursor.topic_id = told if topic_id != ZERO_TOPIC_ID else ZERO_TOPIC_ID
        self._cursor.record_bytes = self._record_bytes.get(key, RECORD_BYTES_GUESS)
        self._reading.fetcher.add([self._cursor])

    async def _found_id(self, key: TopicPartition, wanted: UUID) -> UUID:
        """Return the id of a partition's topic, zero where none is told.

        Raises UnknownTopicOrPartitionError, or UnknownTopicIdError for another id than `wanted`.
        What is known here may be old, and a node that lags does not know what was made just now, or
        tells of a former topic of that name. So others are asked, for a while, before it is
        believed: whoever reads would take for lost what is there.
        """
        reading, loop = self._reading, asyncio.get_running_loop()
        deadline_s = loop.time() + UNKNOWN_TOPIC_PATIENCE_S
        view: TopicView | None = None
        with suppress(UnknownTopicOrPartitionError):
            view = await reading.finder.topic(key.topic)
        are_others_asked = False
        while (error := _why_not(view, key, wanted)) is not None:
            if are_others_asked:
                if loop.time() >= deadline_s:
                    raise error
                await asyncio.sleep(_RECHECK_S)
            with suppress(TransportError, WireError, ProtocolError):  # logged where it happened
                await reading.cluster.refresh([key.topic], elsewhere=True)
            view = reading.cluster.known_topic(key.topic)
            are_others_asked = True
        return ZERO_TOPIC_ID if view is None else view.topic_id

    async def end(self) -> None:
        """Read no more of the range, and forget what is at hand of it."""
        if self._cursor is not None:
            key = self._cursor.topic_partition
            if len(self._record_bytes) >= REMEMBERED_MAX:
                self._record_bytes.clear()
            self._record_bytes[key] = self._cursor.record_bytes
            self._reading.fetcher.remove([key])
            self._cursor = None

    async def take(self, timeout_s: float) -> Packed | None:
        """Return the next batches; None at the end of the range, or when time is over.

        Batches may begin before the wanted offset and end behind the last one. Raises GapError,
        and errors that last until the policy's deadline.
        """
        limits = PollLimits(1, None, timeout_s)
        taken = await self._reading.poll(self._take, limits)
        return taken[0] if taken else None

    def _take(self, _count_max: int, _bytes_max: int | None) -> list[Packed]:
        cursor = self._begun
        packed = cursor.take_packed()
        if packed is None:
            return []
        if not cursor.has_data:
            self._reading.fetcher.ready.pop(cursor.topic_partition, None)
        self._reading.fetcher.on_taken()
        return [packed]

    @property
    def is_at_end(self) -> bool:
        """Whether all of the range was taken."""
        return self._begun.is_at_end

    @property
    def position(self) -> int:
        """Behind what was taken."""
        return self._begun.position

    async def skip(self, gap: Gap, offset: int) -> None:
        """Go on at `offset` after a gap that `take` has told."""
        if gap.reason is GapReason.MISSING:
            # Each further one would cost a fetch in vain.
            self._reading.fetcher.expect_holes(gap.topic_partition.topic)
        self._reading.fetcher.seek(self._begun, offset)

    @property
    def _begun(self) -> PartitionCursor:
        if self._cursor is None:
            raise DlogError("no range was begun")
        return self._cursor


def _why_not(view: TopicView | None, key: TopicPartition, wanted: UUID) -> WireError | None:
    """Return why a partition cannot be read as the topic is known; None: it can."""
    if view is None or all(each.partition != key.partition for each in view.partitions):
        return UnknownTopicOrPartitionError(f"{key} does not exist")
    if ZERO_TOPIC_ID in (wanted, view.topic_id) or view.topic_id == wanted:
        return None
    return UnknownTopicIdError(
        f"{key.topic} was deleted and created again: its id is {view.topic_id}, not {wanted}"
    )
