"""The producer for asyncio: records in, batches out, an outcome for each.

    async with Producer("localhost:9092") as producer:
        written = await producer.write("flights", b"value", key=b"key")
        delivery = await producer.send("flights", b"another")  # waits for memory only
        print(written.offset, (await delivery).offset)

Records of one partition are appended in the order of the calls, each once (unless `idempotent` is
off), whatever fails on the way. Memory is bounded: `send` waits when it is full. Every record ends
by `delivery_timeout_ms`: written, refused, or with an unknown outcome.

`dlog.client.blocking` has the twin for programs without an event loop.
"""

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import TracebackType
from typing import NoReturn, Self, cast

from dlog.batch.records import Header
from dlog.checksum import Buffer
from dlog.client import produce_options as defaults
from dlog.client.cluster.bootstrap import Bootstrap, parse_bootstrap
from dlog.client.cluster.cluster import Cluster
from dlog.client.futures import BatchDelivery, BufferFullError, Delivery, Written
from dlog.client.produce_options import Acks, ProducerOptions
from dlog.client.producing.accumulator import record_bytes_bound
from dlog.client.producing.batch_results import ProducerCounters
from dlog.client.producing.bulk_append import Keys, Many, Partitions, bulk_append
from dlog.client.producing.bulk_steps import Step
from dlog.client.producing.producer_parts import ProducerParts
from dlog.client.retry import RetryPolicy
from dlog.errors import DlogError
from dlog.transport import ConnectionOptions


class Producer:
    """Writes records to topics. Owner: one event loop. Life: an `async with` block.

    `acks`: "all" replicas in sync, the "leader" alone, or "none" (nothing is confirmed then); by
    default what the topic says, or else the cluster (`ack.default`). `compression`: none, gzip,
    snappy, lz4, zstd. `linger_ms`: how long a record may wait for company while nobody awaits it.
    `batch_bytes`: size of a full batch before compression. `memory_bytes`: all batches together.
    `block_ms`: how long `send` may wait for memory or for a topic to be known. `abandon_ms`: how
    long leaving the block by an exception may take. `gapless`: a partition takes nothing more once
    something that was sent to it ended unwritten. All options: docs/client.md.
    """

    def __init__(
        self,
        bootstrap: Bootstrap | Cluster,
        *,
        acks: Acks | None = None,
        compression: str = "none",
        linger_ms: float = defaults.LINGER_MS,
        batch_bytes: int = defaults.BATCH_BYTES,
        memory_bytes: int = defaults.MEMORY_BYTES,
        request_bytes: int = defaults.REQUEST_BYTES,
        request_timeout_ms: int = defaults.REQUEST_TIMEOUT_MS,
        delivery_timeout_ms: int = defaults.DELIVERY_TIMEOUT_MS,
        block_ms: int = defaults.BLOCK_MS,
        abandon_ms: int = defaults.ABANDON_MS,
        idempotent: bool | None = None,
        gapless: bool = False,
        connection: ConnectionOptions | None = None,
        policy: RetryPolicy | None = None,
        rng: random.Random | None = None,
        timestamp_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.counters = ProducerCounters()
        self._options = ProducerOptions(
            acks=acks,
            compression=compression,
            linger_ms=linger_ms,
            batch_bytes=batch_bytes,
            memory_bytes=memory_bytes,
            request_bytes=request_bytes,
            request_timeout_ms=request_timeout_ms,
            delivery_timeout_ms=delivery_timeout_ms,
            block_ms=block_ms,
            abandon_ms=abandon_ms,
            idempotent=idempotent,
            gapless=gapless,
        )
        # A cluster that was given stays open: it may have other users.
        self._given = bootstrap if isinstance(bootstrap, Cluster) else None
        self._addresses = [] if isinstance(bootstrap, Cluster) else parse_bootstrap(bootstrap)
        self._connection = connection
        self._policy = policy
        self._rng = rng or random.Random()
        self._timestamp_ns = timestamp_ns
        self._cluster: Cluster | None = None
        self._parts: ProducerParts | None = None
        self._is_closing = False
        self._append: Callable[..., Delivery | None] = _refuse_closed
        self._turns: deque[asyncio.Future[None]] = deque()

    async def start(self) -> None:
        """Make ready; `async with` does it. Raises when the cluster cannot be asked for acks."""
        if self._parts is not None or self._is_closing:
            raise RuntimeError("the producer was started before")
        loop = asyncio.get_running_loop()
        self._loop = loop
        cluster = self._given or Cluster(
            self._addresses,
            loop=loop,
            rng=self._rng,
            options=self._connection,
            policy=self._policy,
        )
        self._cluster = cluster
        acks = self._options.acks
        try:
            known = await cluster.ack_default() if acks is None else acks
            self._parts = ProducerParts(
                cluster,
                self._options,
                cast(Acks, known),
                loop=loop,
                rng=self._rng,
                lock=nullcontext(),
                counters=self.counters,
                on_released=self._on_released,
            )
        finally:
            if self._parts is None and self._given is None:
                await cluster.close()
        self._append = self._parts.accumulator.append

    @property
    def cluster(self) -> Cluster:
        """The cluster that is written to, with counters of its own."""
        if self._cluster is None:
            raise RuntimeError("the producer was not started")
        return self._cluster

    # Sending

    async def send(
        self,
        topic: str,
        value: Buffer | None,
        key: Buffer | None = None,
        headers: Sequence[Header] = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> Delivery:
        """Take a record over; the returned delivery can be awaited for its outcome.

        Waits only while memory is full or the topic not known, at most `block_ms`. Raises
        BufferFullError, or why the topic cannot be used, or RecordTooLargeError; ValueError for a
        partition that is not there, TypeError for what is not bytes. A call that is cancelled may
        have taken the record over: sent again, it may be there twice.
        """
        if timestamp_ms is None:
            timestamp_ms = self._timestamp_ns() // 1_000_000
        delivery = self._append(topic, key, value, headers, timestamp_ms, partition)
        if delivery is None:
            return await self._send_slowly(topic, key, value, headers, timestamp_ms, partition)
        return delivery

    async def _send_slowly(
        self,
        topic: str,
        key: Buffer | None,
        value: Buffer | None,
        headers: Sequence[Header],
        timestamp_ms: int,
        partition: int | None,
    ) -> Delivery:
        deadline_s = self._deadline_s()
        self._started().accumulator.check_size(record_bytes_bound(key, value, headers))
        await self._know_topic(topic, deadline_s)
        is_turn = not self._turns
        try:
            while True:
                if is_turn:
                    delivery = self._started().accumulator.append_slowly(
                        self._loop.time(), topic, key, value, headers, timestamp_ms, partition
                    )
                    if delivery is not None:
                        break
                await self._wait_for_memory(deadline_s, is_first=is_turn)
                is_turn = True
        finally:
            # There may be room for the next one, too, or for that one instead.
            self._give_turn()
        # A program that sends without a pause must let the loop send, too.
        await asyncio.sleep(0)
        return delivery

    async def write(
        self,
        topic: str,
        value: Buffer | None,
        key: Buffer | None = None,
        headers: Sequence[Header] = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> Written:
        """Send a record and wait until it is written; raise as `send` and `Delivery` do."""
        return await (await self.send(topic, value, key, headers, timestamp_ms, partition))

    async def send_many(
        self,
        topic: str,
        records: Many,
        keys: Keys = None,
        timestamp_ms: int | None = None,
        partition: Partitions = None,
    ) -> BatchDelivery:
        """Take many records over: values with or without `keys`, whole `Record`s, or Arrow.

        Arrow is a `pyarrow.RecordBatch` or `Table` with a column `value` and perhaps `key`,
        `timestamp` and `headers`, or an array of values, perhaps with one of keys: no Python object
        is made per record. `partition` may be an array of one for each then, null where the key
        decides. Records without a timestamp get `timestamp_ms`, or the time of now.

        Waits while memory is full, `block_ms` for each step. Raises as `send`; what was taken over
        before is sent all the same.
        """
        if timestamp_ms is None:
            timestamp_ms = self._timestamp_ns() // 1_000_000
        await self._know_topic(topic, self._deadline_s())
        delivery = BatchDelivery()
        append = bulk_append(
            self._started().accumulator,
            topic,
            records,
            keys,
            timestamp_ms=timestamp_ms,
            partition=partition,
            delivery=delivery,
        )
        deadline_s = self._deadline_s()
        is_turn = not self._turns
        try:
            while True:
                self._started()
                step = append.advance(self._loop.time()) if is_turn else Step.SHORT
                if step is Step.DONE:
                    return delivery
                if step is Step.SHORT:
                    await self._wait_for_memory(deadline_s, is_first=is_turn)
                    is_turn = True
                else:
                    self._give_turn()
                    await asyncio.sleep(0)
                    deadline_s = self._deadline_s()
                    is_turn = not self._turns
        finally:
            self._give_turn()

    def _deadline_s(self) -> float:
        return self._loop.time() + self._options.block_ms / 1000

    async def _know_topic(self, topic: str, deadline_s: float) -> None:
        parts = self._started()
        if parts.accumulator.topic(topic) is None:
            await parts.sender.errands.find_topic(topic, deadline_s)

    # Memory: who waits for it is served in order.

    async def _wait_for_memory(self, deadline_s: float, *, is_first: bool) -> None:
        """Return when it is this caller's turn to try; `is_first`: it was, and there was none."""
        self.counters.memory_waits += 1
        parts = self._started()
        turn: asyncio.Future[None] = self._loop.create_future()
        if is_first:
            self._turns.appendleft(turn)
        else:
            self._turns.append(turn)
        if not self._is_closing:
            self._append = _wait_in_line
        parts.accumulator.memory_is_wanted = True
        parts.sender.wake()
        try:
            async with asyncio.timeout_at(deadline_s):
                await turn
        except TimeoutError:
            raise BufferFullError("the producer's memory is full") from None
        finally:
            # Only now: until then nobody who comes later may go ahead.
            self._turns.remove(turn)
            if not self._turns and not self._is_closing:
                self._append = parts.accumulator.append
            parts.accumulator.memory_is_wanted = bool(self._turns)

    def _on_released(self) -> None:
        if self._parts is not None and self._parts.accumulator.take_freed():
            self._give_turn()

    def _give_turn(self) -> None:
        """Let the first one that waits try; it makes place for the next one itself."""
        if self._turns and not self._turns[0].done():
            self._turns[0].set_result(None)

    async def refresh(self, topic: str) -> None:
        """Look a topic up again, now: it may have more partitions, or have been made anew.

        For who comes back to a producer after a pause; raises why the topic cannot be used.
        """
        find = self._started().sender.errands.find_topic
        await find(topic, self._deadline_s(), refresh=True)

    # The end

    async def flush(self) -> None:
        """Send everything that was taken over, and return when all outcomes are known."""
        pending = BatchDelivery()
        for batch in self._started().accumulator.seal_all():
            pending.add(batch.result, 0, range(batch.record_count))
        await pending.wait()

    async def close(self, timeout_ms: int | None = None) -> None:
        """Flush, then end; after `timeout_ms` what is left ends as refused or unknown. Idempotent.

        Without a time-out it takes at most `delivery_timeout_ms`. Leaving the block by an exception
        (Ctrl-C, a cancellation) gives it `abandon_ms`. Whatever ends unwritten is logged.
        """
        parts = self._parts
        if parts is None or self._is_closing:
            return
        self._is_closing = True
        self._append = _refuse_closed
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await self.flush()
        except TimeoutError:
            pass
        finally:
            self._parts = None
            for turn in self._turns:
                if not turn.done():
                    turn.set_result(None)
            await parts.sender.close()
            if self._given is None:
                await self.cluster.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        await self.close(None if kind is None else self._options.abandon_ms)

    def _started(self) -> ProducerParts:
        if self._parts is None:
            _refuse_closed()
        return self._parts


def _wait_in_line(*_record: object) -> None:
    """Stand in for `append` while others wait for memory: their records come first."""


def _refuse_closed(*_record: object) -> NoReturn:
    raise DlogError("the producer is not open")
