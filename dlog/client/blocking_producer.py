"""Blocking producer; `dlog.client.blocking` exports it as `Producer`.

    with Producer("localhost:9092") as producer:
        written = producer.write("flights", b"value", key=b"key")
        delivery = producer.send("flights", b"another")  # waits for memory only
        print(written.offset, delivery.result().offset)

The names, options and promises are those of `dlog.client.producer`. Records are put into batches
by the thread that calls, under a lock; a thread with a loop sends them and is woken once per batch.
Any number of threads may use one producer.
"""

import asyncio
import random
import time
from collections.abc import Callable, Generator, Sequence
from types import TracebackType
from typing import Any, NoReturn, Self, cast

from dlog.batch.records import Header
from dlog.checksum import Buffer
from dlog.client import produce_options as defaults
from dlog.client.cluster.bootstrap import Bootstrap, parse_bootstrap
from dlog.client.cluster.cluster import Cluster
from dlog.client.cluster.loop_thread import LoopThread
from dlog.client.futures import BatchDelivery, BufferFullError, Delivery, Written, WrittenSpan
from dlog.client.produce_options import Acks, ProducerOptions
from dlog.client.producing.accumulator import record_bytes_bound
from dlog.client.producing.batch_results import ProducerCounters
from dlog.client.producing.bulk_append import Keys, Many, Partitions, bulk_append
from dlog.client.producing.bulk_steps import Step
from dlog.client.producing.producer_parts import ProducerParts
from dlog.client.retry import RetryPolicy
from dlog.errors import DlogError
from dlog.transport import ConnectionOptions


class _Parts(ProducerParts):
    """Parts that are used by other threads, under the lock."""

    thread: LoopThread

    def wake(self) -> None:
        """Let the sender look at everything again; under the lock."""
        self.sender.wake_from_thread()

    def wait_for(self, is_done: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait, under the lock, until something is so; return whether it is."""
        self.thread.check()
        return self.thread.lock.wait_for(is_done, timeout_s)


class BlockingDelivery(Delivery):
    """A record on its way; `result` waits for the outcome."""

    __slots__ = ()

    def result(self, timeout_s: float | None = None) -> Written:
        """Wait, and return where the record is, or raise what became of it instead.

        Raises RefusedError or UnknownOutcomeError; TimeoutError when the time is over before.
        """
        if not self.done():
            parts = cast(_Parts, self.batch.owner)
            with parts.thread.lock:
                self.batch.hurry()
                if not parts.wait_for(self.done, timeout_s):
                    raise TimeoutError("the outcome is not known yet")
        return self.written()

    def __await__(self) -> Generator[Any, None, Written]:
        raise TypeError("a blocking producer's delivery has result() and is not awaited")


class BlockingBatchDelivery(BatchDelivery):
    """Many records on their way; `result` waits for all outcomes."""

    __slots__ = ("_parts",)

    def __init__(self, parts: _Parts) -> None:
        super().__init__()
        self._parts = parts

    def result(self, timeout_s: float | None = None) -> list[WrittenSpan]:
        """Wait, and return all spans in order, or raise the first error."""
        with self._parts.thread.lock:
            self.hurry()
            if not self._parts.wait_for(self.done, timeout_s):
                raise TimeoutError("some outcomes are not known yet")
        return self.written()

    def __await__(self) -> Generator[Any, None, list[WrittenSpan]]:
        raise TypeError("a blocking producer's delivery has result() and is not awaited")


class BlockingProducer:
    """Writes records to topics, from any thread. Life: a `with` block.

    The options are those of `dlog.client.producer.Producer`.
    """

    def __init__(
        self,
        bootstrap: Bootstrap,
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
        self._addresses = parse_bootstrap(bootstrap)
        self._connection = connection
        self._policy = policy
        self._rng = rng or random.Random()
        self._timestamp_ns = timestamp_ns
        self._thread = LoopThread("dlog-producer", self._on_fork)
        self._lock = self._thread.lock
        self._parts: _Parts | None = None
        self._is_closing = False
        self._append: Callable[..., Delivery | None] = _refuse_closed

    def start(self) -> None:
        """Make ready; `with` does it. Raises when the cluster cannot be asked for acks."""
        if self._parts is not None or self._is_closing:
            raise RuntimeError("the producer was started before")
        thread = self._thread
        thread.start()
        try:
            self._parts = thread.call(lambda: self._open(thread))
        finally:
            if self._parts is None:
                thread.close()
        self._append = self._parts.accumulator.append

    async def _open(self, thread: LoopThread) -> _Parts:
        loop = asyncio.get_running_loop()
        self._cluster = cluster = Cluster(
            self._addresses,
            loop=loop,
            rng=self._rng,
            options=self._connection,
            policy=self._policy,
        )
        acks = self._options.acks
        parts = None
        try:
            known = await cluster.ack_default() if acks is None else acks
            parts = _Parts(
                cluster,
                self._options,
                cast(Acks, known),
                loop=loop,
                rng=self._rng,
                lock=thread.lock,
                counters=self.counters,
                on_released=self._on_released,
                delivery_type=BlockingDelivery,
            )
            parts.thread = thread
        finally:
            if parts is None:
                await cluster.close()
        return parts

    # Sending

    def send(
        self,
        topic: str,
        value: Buffer | None,
        key: Buffer | None = None,
        headers: Sequence[Header] = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> BlockingDelivery:
        """Take a record over; the returned delivery has its outcome.

        Waits only while memory is full or the topic not known, at most `block_ms`. Raises
        BufferFullError, or why the topic cannot be used, or RecordTooLargeError; ValueError for a
        partition that is not there, TypeError for what is not bytes.
        """
        if timestamp_ms is None:
            timestamp_ms = self._timestamp_ns() // 1_000_000
        with self._lock:
            delivery = self._append(topic, key, value, headers, timestamp_ms, partition)
        if delivery is None:
            delivery = self._send_slowly(topic, key, value, headers, timestamp_ms, partition)
        return delivery  # type: ignore[return-value]  # a cast would cost a call per record

    def _send_slowly(
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
        self._know_topic(topic, deadline_s)
        with self._lock:
            while True:
                delivery = self._started().accumulator.append_slowly(
                    self._now_s(), topic, key, value, headers, timestamp_ms, partition
                )
                if delivery is not None:
                    return delivery
                self._wait_for_memory(deadline_s)

    def write(
        self,
        topic: str,
        value: Buffer | None,
        key: Buffer | None = None,
        headers: Sequence[Header] = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> Written:
        """Send a record and wait until it is written; raise as `send` and `result` do."""
        return self.send(topic, value, key, headers, timestamp_ms, partition).result()

    def send_many(
        self,
        topic: str,
        records: Many,
        keys: Keys = None,
        timestamp_ms: int | None = None,
        partition: Partitions = None,
    ) -> BlockingBatchDelivery:
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
        parts = self._started()
        self._know_topic(topic, self._deadline_s())
        delivery = BlockingBatchDelivery(parts)
        append = bulk_append(
            parts.accumulator,
            topic,
            records,
            keys,
            timestamp_ms=timestamp_ms,
            partition=partition,
            delivery=delivery,
        )
        deadline_s = self._deadline_s()
        while True:
            with self._lock:
                self._started()
                step = append.advance(self._now_s())
                if step is Step.DONE:
                    return delivery
                if step is Step.SHORT:
                    self._wait_for_memory(deadline_s)
                else:
                    deadline_s = self._deadline_s()

    def _now_s(self) -> float:
        return self._thread.loop.time()

    def _deadline_s(self) -> float:
        self._started()
        return self._now_s() + self._options.block_ms / 1000

    def _know_topic(self, topic: str, deadline_s: float) -> None:
        parts = self._started()
        if parts.accumulator.topic(topic) is None:
            self._thread.call(lambda: parts.sender.errands.find_topic(topic, deadline_s))

    def _wait_for_memory(self, deadline_s: float) -> None:
        """Wait, under the lock, until some memory was given back."""
        parts = self._started()
        self.counters.memory_waits += 1
        parts.accumulator.memory_is_wanted = True
        parts.wake()
        if not self._lock.wait(deadline_s - self._now_s()) and self._now_s() >= deadline_s:
            raise BufferFullError("the producer's memory is full")

    def _on_released(self) -> None:
        """Let those who wait look, after something was settled or sealed; on the loop's thread."""
        with self._lock:
            if self._parts is not None and self._parts.accumulator.take_freed():
                self._parts.accumulator.memory_is_wanted = False
            self._lock.notify_all()

    def refresh(self, topic: str) -> None:
        """Look a topic up again, now: it may have more partitions, or have been made anew.

        For who comes back to a producer after a pause; raises why the topic cannot be used.
        """
        parts, deadline_s = self._started(), self._deadline_s()
        find = parts.sender.errands.find_topic
        self._thread.call(lambda: find(topic, deadline_s, refresh=True))

    def partition_count(self, topic: str) -> int:
        """Return how many partitions a topic has, as it is known; 0 where nobody has asked yet."""
        known = self._started().accumulator.topic(topic)
        return 0 if known is None else len(known.queues)

    # The end

    def flush(self, timeout_s: float | None = None) -> None:
        """Send everything that was taken over, and return when all outcomes are known."""
        with self._lock:
            parts = self._started()
            pending = BlockingBatchDelivery(parts)
            for batch in parts.accumulator.seal_all():
                pending.add(batch.result, 0, range(batch.record_count))
            if not parts.wait_for(pending.done, timeout_s):
                raise TimeoutError("some outcomes are not known yet")

    def close(self, timeout_ms: int | None = None) -> None:
        """Flush, then end; after `timeout_ms` what is left ends as refused or unknown. Idempotent.

        Without a time-out it takes at most `delivery_timeout_ms`. Leaving the block by an exception
        (Ctrl-C, a cancellation) gives it `abandon_ms`. Whatever ends unwritten is logged.
        """
        with self._lock:
            parts = self._parts
            if parts is None or self._is_closing:
                return
            self._is_closing = True
            self._append = _refuse_closed
        try:
            self.flush(None if timeout_ms is None else timeout_ms / 1000)
        except TimeoutError:
            pass
        finally:
            self._parts = None
            self._thread.call(parts.sender.close)
            self._thread.call(self._cluster.close)
            self._thread.close()

    def _on_fork(self) -> None:
        """Take no more records in a forked process; the other one sends what was taken."""
        self._lock = self._thread.lock
        self._append = self._refuse_forked
        self._is_closing = True

    def _refuse_forked(self, *_record: object) -> NoReturn:
        self._thread.check()
        _refuse_closed()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close(None if kind is None else self._options.abandon_ms)

    def _started(self) -> _Parts:
        self._thread.check()
        if self._parts is None:
            _refuse_closed()
        return self._parts


def _refuse_closed(*_record: object) -> NoReturn:
    raise DlogError("the producer is not open")
