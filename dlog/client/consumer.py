"""Consumer for asyncio: records of named partitions, or of all partitions of topics.

`Consumer` is what programs use; `dlog.client.consuming.consumer_core` is its inside. There is no
group here: a program says where it begins, and keeps account of what it has done.

    async with Consumer("127.0.0.1:9092", "payments", start="earliest") as consumer:
        async for record in consumer:
            print(record.partition, record.offset, record.value)
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from dlog.batch.records import RECORDS_BYTES_MAX
from dlog.client.cluster.bootstrap import Bootstrap, parse_bootstrap
from dlog.client.cluster.counters import ClientCounters
from dlog.client.consumed import ConsumedRecord, Stash
from dlog.client.consuming.arrow_poll import assemble
from dlog.client.consuming.consumer_core import ConsumerCore, PollLimits, Settings
from dlog.client.consuming.consumer_counters import ConsumerCounters
from dlog.client.consuming.fetch_plan import (
    MAX_WAIT_MS,
    PARTITION_BYTES_MAX,
    PREFETCH_BYTES_MAX,
    FetchLimits,
)
from dlog.client.consuming.partition_cursor import UNKNOWN, PartitionCursor
from dlog.client.gaps import OnGap
from dlog.client.retry import RetryPolicy
from dlog.client.starts import Start, query_timestamp
from dlog.errors import DlogError
from dlog.offset_specs import EARLIEST, LATEST, Isolation
from dlog.transport import ConnectionOptions
from dlog.types import PartitionId, TopicPartition

Partition = TopicPartition | tuple[str, int]
"""Topic and number."""
Starts = Start | Mapping[TopicPartition, Start]
"""One for all, or one for each; see `dlog.client.starts.Start`."""

POLL_RECORDS_MAX = 10_000
ARROW_RECORDS_MAX = 1_000_000
ARROW_BYTES_MAX = 64 * 1024 * 1024
POLL_TIMEOUT_MS = 1_000


def _key(partition: Partition) -> TopicPartition:
    if isinstance(partition, TopicPartition):
        return partition
    topic, number = partition
    return TopicPartition(topic, PartitionId(number))


def _spread(start: Starts, keys: Iterable[TopicPartition]) -> dict[TopicPartition, Start]:
    """Return the start of each partition; raise ValueError for what is no start."""
    starts: dict[TopicPartition, Start] = {}
    for key in keys:
        starts[key] = start[key] if isinstance(start, Mapping) else start
        query_timestamp(starts[key])
    return starts


class Consumer:
    """Reads partitions in order, each record once. Owner: one event loop, one task at a time.

    Life: an `async with` block. Records of one partition come in the order of their offsets;
    partitions take turns. What lies ahead is fetched meanwhile, up to `max_prefetch_bytes`.
    """

    def __init__(
        self,
        bootstrap: Bootstrap,
        topics: str | Iterable[str] = (),
        *,
        partitions: Iterable[Partition] = (),
        start: Starts = "earliest",
        isolation: Isolation = Isolation.READ_COMMITTED,
        on_gap: OnGap | None = None,
        max_prefetch_bytes: int = PREFETCH_BYTES_MAX,
        max_partition_bytes: int = PARTITION_BYTES_MAX,
        max_decompressed_batch_bytes: int = RECORDS_BYTES_MAX,
        max_wait_ms: int = MAX_WAIT_MS,
        rack: str | None = None,
        connection: ConnectionOptions | None = None,
        policy: RetryPolicy | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """Read all partitions of `topics`, and `partitions`, from `start` on.

        Where records are gone (deleted before they were read, a log cut back), `on_gap` is told
        and reading goes on; without it `poll` raises GapError and the partition stays there until
        it is sought: the other partitions go on, and each poll that finds nothing raises it again.
        A batch that cannot be decoded stops its partition in the same way: `poll` gives all records
        before that batch, then raises UndecodableBatchError, which says where to go on.
        With READ_COMMITTED records of aborted transactions are left out, and open ones waited for.
        With a `rack`, partitions are read from in-sync followers there, where leaders name them.

        A consumer has connections of its own: others would wait behind its waiting fetches.
        """
        self._topics = [topics] if isinstance(topics, str) else list(dict.fromkeys(topics))
        self._named = [_key(each) for each in partitions]
        self._start = start
        if not isinstance(start, Mapping):
            query_timestamp(start)  # raises now for what is no start
        self._settings = Settings(
            addresses=parse_bootstrap(bootstrap),
            limits=FetchLimits(
                prefetch_bytes_max=max_prefetch_bytes,
                partition_bytes_max=max_partition_bytes,
                decompressed_batch_bytes_max=max_decompressed_batch_bytes,
                max_wait_ms=max_wait_ms,
                isolation=Isolation(isolation),
                rack=rack or "",
            ),
            on_gap=on_gap,
            connection=connection,
            policy=policy,
            rng=rng or random.Random(),
        )
        # Records that a loop was given and has not come to.
        self.stash = Stash()
        self._started: ConsumerCore | None = None
        self._watch: asyncio.Task[None] | None = None

    # Life

    async def start(self) -> None:
        """Find the cluster, the partitions and their starts; begin to read ahead.

        A consumer that starts at "latest" reads all that is written after this has returned.
        Raises the errors of topics and partitions that last until the policy's deadline; the
        consumer is closed then.
        """
        if self._started is not None:
            raise DlogError("a consumer is started once")
        self._started = reading = ConsumerCore(self._settings, asyncio.get_running_loop())
        is_started = False
        try:
            keys = list(self._named)
            for topic in self._topics:
                keys += await reading.partitions_of(topic)
            await reading.add(_spread(self._start, keys))
            is_started = True
        finally:
            if not is_started:
                await reading.close()
        if self._topics:
            watch = reading.watch_topics(self._topics)
            self._watch = reading.fetcher.spawn(watch, "dlog-consumer-topics")

    async def close(self) -> None:
        """Stop reading and close all connections. Idempotent."""
        if self._started is not None:
            await self._started.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def _reading(self) -> ConsumerCore:
        if self._started is None:
            raise DlogError("the consumer is not started: use it in `async with`")
        return self._started

    @property
    def counters(self) -> ConsumerCounters:
        """What was read and met."""
        return self._settings.counters

    @property
    def client_counters(self) -> ClientCounters:
        """Connections, look-ups and retries."""
        return self._reading.cluster.counters

    # Reading

    async def poll(
        self,
        max_records: int = POLL_RECORDS_MAX,
        max_bytes: int | None = None,
        timeout_ms: float | None = POLL_TIMEOUT_MS,
    ) -> list[ConsumedRecord]:
        """Return the next records: what is at hand, else what comes first; none after the time-out.

        `max_bytes` counts keys and values, and may be exceeded by the last record; `timeout_ms` of
        None waits for ever. Cancelling loses nothing. Raises GapError, UndecodableBatchError,
        and errors that last for the policy's deadline or do not pass at all; poll again to go on.
        """
        limits = PollLimits.of(max_records, max_bytes, timeout_ms)
        stashed = self.stash.take(max_records, max_bytes)
        if stashed:
            return stashed
        reading = self._reading
        return await reading.poll(reading.take_records, limits)

    async def poll_to_stash(
        self, max_records: int, max_bytes: int | None, timeout_ms: float | None
    ) -> None:
        """Poll and stash the records, for a caller in another thread who may leave meanwhile."""
        self.stash.fill(await self.poll(max_records, max_bytes, timeout_ms))

    async def poll_arrow(
        self,
        max_records: int = ARROW_RECORDS_MAX,
        max_bytes: int | None = ARROW_BYTES_MAX,
        timeout_ms: float | None = POLL_TIMEOUT_MS,
    ) -> Any:
        """Return the next records as a `pyarrow.RecordBatch`, without an object per record.

        Columns: offset, timestamp, key, value, headers, topic, partition; see
        `dlog.client.consuming.arrow_poll`. Else as `poll`, with no rows when the time is over.
        """
        limits = PollLimits.of(max_records, max_bytes, timeout_ms)
        reading = self._reading
        self._unread(reading.fetcher.cursors)
        return assemble(await reading.poll(reading.take_columns, limits))

    async def __aiter__(self) -> AsyncIterator[ConsumedRecord]:
        """Yield one record after the other, without end.

        Leaving the loop loses nothing: the next poll or loop goes on behind the last record.
        """
        while True:
            for record in self.stash.fill(await self.poll(timeout_ms=None)):
                yield record

    # Which partitions

    @property
    def assignment(self) -> tuple[TopicPartition, ...]:
        """The partitions that are read, paused ones included."""
        return tuple(self._reading.fetcher.cursors)

    async def assign(self, partitions: Iterable[Partition], start: Starts = "earliest") -> None:
        """Read these partitions and no others; those that were read before go on where they are.

        New partitions of `topics` are looked for no more. Raises as `start` does; nothing has
        changed then.
        """
        reading = self._reading
        keys = [_key(each) for each in partitions]
        new = [key for key in keys if key not in reading.fetcher.cursors]
        await reading.add(_spread(start, new))
        gone = [key for key in reading.fetcher.cursors if key not in keys]
        for key in gone:
            self.stash.drop(key)
        reading.fetcher.remove(gone)
        if self._watch is not None:
            self._watch.cancel()

    def pause(self, *partitions: Partition) -> None:
        """Return no records of these (all when none is named) until they are resumed."""
        for cursor in self._cursors(partitions):
            self._unread([cursor.topic_partition])
            self._reading.fetcher.pause(cursor)

    def resume(self, *partitions: Partition) -> None:
        """Go on with these, or with all when none is named."""
        for cursor in self._cursors(partitions):
            cursor.is_paused = False
            self._reading.fetcher.wake(cursor)

    @property
    def paused(self) -> tuple[TopicPartition, ...]:
        """The partitions that are paused."""
        cursors = self._reading.fetcher.cursors
        return tuple(key for key, cursor in cursors.items() if cursor.is_paused)

    def _cursors(self, partitions: Iterable[Partition]) -> list[PartitionCursor]:
        keys = [_key(each) for each in partitions] or list(self._reading.fetcher.cursors)
        return [self._reading.cursor(key) for key in keys]

    # Where in them

    def position(self, partition: Partition) -> int:
        """Return the offset of the next record: behind the last one that was given."""
        key = _key(partition)
        stashed = self.stash.first_offset(key)
        return self._reading.cursor(key).position if stashed is None else stashed

    async def seek(self, partition: Partition, start: Start) -> None:
        """Go on from another place. Raises as `start` does; the place is the old one then."""
        reading, key = self._reading, _key(partition)
        reading.cursor(key)
        offset, epoch = (await reading.finder.places({key: start}))[key]
        self.stash.drop(key)
        reading.fetcher.seek(reading.cursor(key), offset, epoch)

    def _unread(self, keys: Iterable[TopicPartition]) -> None:
        """Take back what an iteration was given and has not come to."""
        if not len(self.stash):
            return
        for key in keys:
            offset = self.stash.first_offset(key)
            if offset is not None:
                self.stash.drop(key)
                self._reading.fetcher.seek(self._reading.cursor(key), offset)

    async def start_offsets(
        self, partitions: Iterable[Partition] | None = None
    ) -> dict[TopicPartition, int]:
        """Ask for the first offset of these partitions, or of all that are read."""
        return await self._find(partitions, EARLIEST)

    async def end_offsets(
        self, partitions: Iterable[Partition] | None = None
    ) -> dict[TopicPartition, int]:
        """Ask where these partitions, or all that are read, end for this reader now (exclusive).

        That is the high watermark, or with READ_COMMITTED the first open transaction.
        """
        return await self._find(partitions, LATEST)

    async def offsets_at(
        self, starts: Mapping[TopicPartition, Start] | Mapping[tuple[str, int], Start]
    ) -> dict[TopicPartition, int]:
        """Return the offset that each start stands for now."""
        by_key = {_key(partition): start for partition, start in starts.items()}
        return await self._reading.finder.place(by_key)

    async def lag(self) -> dict[TopicPartition, int]:
        """Return how many offsets each partition is behind its end, as told last."""
        cursors = self._reading.fetcher.cursors
        is_committed_only = self._settings.limits.isolation is Isolation.READ_COMMITTED
        ends = {
            key: cursor.last_stable_offset if is_committed_only else cursor.high_watermark
            for key, cursor in cursors.items()
        }
        unknown = [key for key, end in ends.items() if end == UNKNOWN]
        ends.update(await self._find(unknown, LATEST))
        return {key: max(0, end - self.position(key)) for key, end in ends.items()}

    async def _find(
        self, partitions: Iterable[Partition] | None, timestamp: int
    ) -> dict[TopicPartition, int]:
        reading = self._reading
        keys = list(reading.fetcher.cursors) if partitions is None else map(_key, partitions)
        found = await reading.finder.find(dict.fromkeys(keys, timestamp))
        return {key: each.offset for key, each in found.items()}
