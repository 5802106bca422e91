"""Core of a started consumer: cluster, cursors, and turns among them.

`dlog.client.consumer` is what programs see. Everything here is bound to one event loop.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self, TypeVar

from dlog.batch.columns import Columns
from dlog.client.bad_batches import BadBatch, UndecodableBatchError
from dlog.client.cluster.cluster import Cluster
from dlog.client.cluster.log_lines import error_name, log_event
from dlog.client.cluster.offset_lookup import OffsetLookup
from dlog.client.consumed import ConsumedRecord
from dlog.client.consuming.arrow_poll import Piece
from dlog.client.consuming.consumer_counters import ConsumerCounters
from dlog.client.consuming.fetch_plan import FetchLimits
from dlog.client.consuming.fetcher import Fetcher
from dlog.client.consuming.partition_cursor import PartitionCursor
from dlog.client.gaps import Gap, GapError, OnGap
from dlog.client.retry import RetryPolicy
from dlog.client.starts import Start
from dlog.errors import (
    DlogError,
    ProtocolError,
    TransportError,
    UnknownTopicOrPartitionError,
    WireError,
)
from dlog.transport import Address, ConnectionOptions
from dlog.types import PartitionId, TopicPartition

T = TypeVar("T")
P = TypeVar("P", list[ConsumedRecord], Columns)

COLUMN_BYTES_ENOUGH = 1024 * 1024
"""More columns than that are given by the next poll: joining them copies every byte."""

UNPACKED_BYTES_ENOUGH = 32 * 1024 * 1024
"""A poll takes no more batches once those that it took have so many bytes, decompressed."""

_FOREVER = float("inf")


@dataclass(frozen=True, slots=True)
class PollLimits:
    """How much one poll gives at most, and how long it waits for the first record."""

    record_count: int
    byte_count: int | None
    timeout_s: float

    @classmethod
    def of(cls, record_count: int, byte_count: int | None, timeout_ms: float | None) -> Self:
        """Return the limits; raise ValueError for limits that nothing fits in."""
        if record_count < 1 or (byte_count is not None and byte_count < 1):
            raise ValueError("a poll must be allowed one record at least")
        if timeout_ms is not None and timeout_ms != timeout_ms:
            raise ValueError("a poll cannot last for NaN")
        return cls(record_count, byte_count, _FOREVER if timeout_ms is None else timeout_ms / 1000)


@dataclass(slots=True, kw_only=True)
class Settings:
    """How a consumer reads; see `dlog.client.consumer.Consumer`."""

    addresses: list[Address]
    limits: FetchLimits
    on_gap: OnGap | None
    connection: ConnectionOptions | None
    policy: RetryPolicy | None
    rng: random.Random
    counters: ConsumerCounters = field(default_factory=ConsumerCounters)


class ConsumerCore:
    """Reads for one consumer. Owner: one event loop, one task. Life: until `close`."""

    def __init__(self, settings: Settings, loop: asyncio.AbstractEventLoop) -> None:
        self.cluster = Cluster(
            settings.addresses,
            loop=loop,
            rng=settings.rng,
            options=settings.connection,
            policy=settings.policy,
        )
        self.finder = OffsetLookup(
            self.cluster, loop=loop, rng=settings.rng, isolation=settings.limits.isolation
        )
        self.fetcher = Fetcher(
            self.cluster,
            loop=loop,
            rng=settings.rng,
            limits=settings.limits,
            counters=settings.counters,
        )
        self.fetcher.start()
        self.is_closed = False
        # The last bad batch, or without `on_gap` the last gap, of each partition that was raised.
        self._told: dict[TopicPartition, Gap | BadBatch] = {}
        self._on_gap = settings.on_gap
        self._counters = settings.counters
        self._loop = loop
        self._batch_bytes_max = settings.limits.decompressed_batch_bytes_max

    async def close(self) -> None:
        """Stop reading and close all connections. Idempotent."""
        self.is_closed = True
        self.fetcher.arrived.set()
        await self.fetcher.close()
        await self.cluster.close()

    # Which partitions, and where in them

    async def partitions_of(self, topic: str) -> list[TopicPartition]:
        """Return all partitions of a topic, in order; raise its error."""
        view = await self.finder.topic(topic)
        return [TopicPartition(topic, PartitionId(each.partition)) for each in view.partitions]

    async def add(self, starts: Mapping[TopicPartition, Start]) -> None:
        """Read these, too; nothing changes when a start cannot be found."""
        for topic in dict.fromkeys(key.topic for key in starts):
            there = await self.partitions_of(topic)
            for key in starts:
                if key.topic == topic and key not in there:
                    raise UnknownTopicOrPartitionError(f"{key} does not exist")
        places = await self.finder.places(starts)
        self.fetcher.add(
            PartitionCursor(key, offset, epoch=epoch, batch_bytes_max=self._batch_bytes_max)
            for key, (offset, epoch) in places.items()
        )

    async def watch_topics(self, topics: Iterable[str]) -> None:
        """Read new partitions of the topics, too, from their beginnings; until cancelled."""
        while True:
            await asyncio.sleep(self.cluster.policy.metadata_age_s_max)
            for topic in topics:
                try:
                    keys = await self.partitions_of(topic)
                    new = [key for key in keys if key not in self.fetcher.cursors]
                    await self.add(dict.fromkeys(new, "earliest"))
                except (TransportError, WireError, ProtocolError):
                    # Logged where it happened; the next round asks again.
                    continue

    def cursor(self, key: TopicPartition) -> PartitionCursor:
        """Return the cursor of an assigned partition; raise ValueError for another one."""
        cursor = self.fetcher.cursors.get(key)
        if cursor is None:
            raise ValueError(f"{key} is not assigned to this consumer")
        return cursor

    def release(self, keys: Iterable[TopicPartition]) -> None:
        """Read these no more."""
        self.fetcher.remove(keys)

    # Taking

    async def poll(self, take: Callable[[int, int | None], list[T]], limits: PollLimits) -> list[T]:
        """Return what `take` finds, as soon as it finds something; nothing when time is over.

        Raises GapError, UndecodableBatchError, errors of partitions that do not pass, and what
        `on_gap` raises.
        """
        deadline_s = self._loop.time() + limits.timeout_s
        # An obstacle is told at once. Told before, it must not keep the other partitions' records
        # back: it is told again by a poll that ends with none.
        if not self.has_decoded:
            # What has arrived is received, and the next requests leave, even for one who always
            # finds records at hand.
            await asyncio.sleep(0)
        while True:
            self._face_troubles()
            taken = take(limits.record_count, limits.byte_count)
            if taken:
                return taken
            if any(map(self._is_news, self.fetcher.troubled.values())):
                continue
            left_s = deadline_s - self._loop.time()
            if left_s <= 0 or self._all_at_obstacles() or self._all_at_ends():
                self._tell_again()
                return taken
            await self.fetcher.arrived.wait(left_s if left_s < _FOREVER else None)

    @property
    def has_decoded(self) -> bool:
        """Whether the next records can be taken without decoding any."""
        cursor = next(iter(self.fetcher.ready.values()), None)
        return cursor is not None and cursor.has_decoded

    def take_records(self, count_max: int, bytes_max: int | None) -> list[ConsumedRecord]:
        """Return what is at hand, of as many partitions as it takes."""
        # Nobody counts the bytes of single records but for a bound.
        bytes_of = _uncounted if bytes_max is None else _bytes_of_records
        pieces = self._take_turns(PartitionCursor.take_records, bytes_of, count_max, bytes_max)
        taken = pieces[0][1] if pieces else []
        for _, records in pieces[1:]:
            taken += records
        self._counters.records += len(taken)
        return taken

    def take_columns(self, count_max: int, bytes_max: int | None) -> list[Piece]:
        """Return what is at hand as columns, of as many partitions as it takes to be worth it."""
        pieces = self._take_turns(
            PartitionCursor.take_columns,
            _bytes_of_columns,
            count_max,
            bytes_max,
            COLUMN_BYTES_ENOUGH,
        )
        self._counters.records += sum(len(columns) for _, columns in pieces)
        return pieces

    def _take_turns(
        self,
        take: "Callable[[PartitionCursor, int, int | None], P]",
        bytes_of: "Callable[[P], int]",
        count_left: int,
        bytes_left: int | None,
        bytes_enough: float = _FOREVER,
    ) -> "list[tuple[TopicPartition, P]]":
        """Let partitions give what they have, the next one first, until there is enough."""
        ready = self.fetcher.ready
        pieces: list[tuple[TopicPartition, P]] = []
        left = _FOREVER if bytes_left is None else bytes_left
        least_left = left - bytes_enough if bytes_enough < left else 0
        unpacked_left = UNPACKED_BYTES_ENOUGH
        for _ in range(len(ready)):
            key, cursor = next(iter(ready.items()))
            held_bytes = cursor.buffered_bytes
            while cursor.has_data and count_left > 0 and left > least_left and unpacked_left > 0:
                piece = take(cursor, count_left, None if bytes_left is None else int(left))
                if not len(piece):
                    continue
                pieces.append((key, piece))
                count_left -= len(piece)
                unpacked_left -= cursor.given_bytes
                left -= bytes_of(piece)
            self._end_turn(key, cursor, held_bytes)
            if count_left <= 0 or left <= least_left or unpacked_left <= 0:
                break
        return pieces

    def _end_turn(self, key: TopicPartition, cursor: PartitionCursor, held_bytes: int) -> None:
        """Put a partition behind the others, and fetch more where there is room now."""
        ready = self.fetcher.ready
        del ready[key]
        if cursor.has_data:
            others: dict[TopicPartition, PartitionCursor] = {}
            if cursor.kept_bytes * (len(ready) + 1) > UNPACKED_BYTES_ENOUGH:
                # It has the next turn, too: else each partition would keep so much.
                others.update(ready)
                ready.clear()
            ready[key] = cursor
            ready.update(others)
        if cursor.bad_batch is not None:
            # What is at hand of it was forgotten.
            self.fetcher.troubled[key] = cursor
            self._note(cursor.bad_batch, held_bytes)
        if cursor.buffered_bytes < held_bytes or not cursor.has_data:
            self.fetcher.on_taken()

    def _note(self, bad: BadBatch, held_bytes: int) -> None:
        self._counters.bad_batches += 1
        self._counters.bytes_dropped += held_bytes
        log_event(
            logging.WARNING,
            "Could not decode a batch",
            partition=bad.topic_partition,
            offset=bad.offset,
            resume_offset=bad.resume_offset,
            error=error_name(bad.cause),
            reason=bad.cause,
        )

    # Troubles

    def _face_troubles(self) -> None:
        """Raise what a reader must know; tell `on_gap` of gaps and go on behind them."""
        if self.is_closed:
            raise DlogError("the consumer is closed")
        if self.fetcher.crash is not None:
            raise self.fetcher.crash
        for key, cursor in list(self.fetcher.troubled.items()):
            if not self._is_news(cursor):
                continue  # told before, or not yet: first what was read before
            failure = cursor.take_failure()
            obstacle = cursor.obstacle
            if obstacle is None:
                del self.fetcher.troubled[key]
            if failure is not None:
                self.fetcher.wake(cursor)
                raise failure
            if isinstance(obstacle, Gap) and self._on_gap is not None:
                self._on_gap(obstacle)
                self.fetcher.seek(cursor, obstacle.resume_offset)
            elif obstacle is not None:
                self._told[key] = obstacle
                raise _error_of(obstacle)

    def _is_news(self, cursor: PartitionCursor) -> bool:
        """Return whether a reader must hear of this one's trouble now."""
        if cursor.has_data:
            return False
        return cursor.failure is not None or not self._is_told(cursor)

    def _is_told(self, cursor: PartitionCursor) -> bool:
        obstacle = cursor.obstacle
        return obstacle is not None and self._told.get(cursor.topic_partition) is obstacle

    def _all_at_obstacles(self) -> bool:
        """Return whether nothing can come before the reader has sought past an obstacle."""
        reading = [each for each in self.fetcher.cursors.values() if not each.is_paused]
        return bool(reading) and all(map(self._is_told, reading))

    def _all_at_ends(self) -> bool:
        """Return whether every partition is read as far as it is to be."""
        cursors = self.fetcher.cursors.values()
        return bool(cursors) and all(cursor.is_at_end for cursor in cursors)

    def _tell_again(self) -> None:
        for cursor in self.fetcher.troubled.values():
            obstacle = cursor.obstacle
            if obstacle is not None and self._is_told(cursor) and not cursor.is_paused:
                raise _error_of(obstacle)


def _error_of(obstacle: Gap | BadBatch) -> DlogError:
    return GapError(obstacle) if isinstance(obstacle, Gap) else UndecodableBatchError(obstacle)


def _uncounted(_: object) -> int:
    return 0


def _bytes_of_records(records: list[ConsumedRecord]) -> int:
    return sum(len(each.key or b"") + len(each.value or b"") for each in records)


def _bytes_of_columns(columns: Columns) -> int:
    return len(columns.keys.data) + len(columns.values.data)
