"""Blocking twin of `dlog.client.consumer`: the same names, each call waits.

Reading ahead goes on in a thread of its own, so that records are at hand when they are asked for
and connections live while a program works on what it has. Programs use it as
`dlog.client.blocking.Consumer`:

    with Consumer("127.0.0.1:9092", "payments") as consumer:
        for record in consumer:
            print(record.offset, record.value)
"""

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from dlog.client.cluster.bootstrap import Bootstrap
from dlog.client.cluster.counters import ClientCounters
from dlog.client.cluster.loop_thread import LoopThread
from dlog.client.consumed import ConsumedRecord
from dlog.client.consumer import (
    ARROW_BYTES_MAX,
    ARROW_RECORDS_MAX,
    POLL_RECORDS_MAX,
    POLL_TIMEOUT_MS,
    Consumer,
    Partition,
    Starts,
)
from dlog.client.consuming.consumer_counters import ConsumerCounters
from dlog.client.starts import Start
from dlog.errors import DlogError
from dlog.types import TopicPartition

T = TypeVar("T")


class BlockingConsumer:
    """Reads partitions in order, each record once. Owner: one thread at a time.

    Life: a `with` block. Takes the arguments of `Consumer`; `on_gap` is called by the thread that
    reads ahead, while `poll` waits.
    """

    def __init__(
        self, bootstrap: Bootstrap, topics: str | Iterable[str] = (), **settings: Any
    ) -> None:
        """See `dlog.client.consumer.Consumer`."""
        self._consumer = Consumer(bootstrap, topics, **settings)
        self._thread: LoopThread | None = None

    # Life

    def start(self) -> None:
        """Find the cluster, the partitions and their starts; begin to read ahead."""
        if self._thread is not None:
            raise DlogError("a consumer is started once")
        self._thread = LoopThread("dlog-consumer")
        self._thread.start()
        is_started = False
        try:
            self._call(self._consumer.start)
            is_started = True
        finally:
            if not is_started:
                self.close()

    def close(self) -> None:
        """Stop reading, close all connections and end the thread. Idempotent."""
        if self._thread is not None and self._thread.is_open:
            self._call(self._consumer.close)
            self._thread.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self._thread is None:
            raise DlogError("the consumer is not started: use it in `with`")
        self._thread.check()
        if not self._thread.is_open:
            raise DlogError("the consumer is closed")
        return self._thread.call(work)

    def _do(self, work: Callable[[], T]) -> T:
        """Run something short on the thread that reads ahead."""

        async def run() -> T:
            return work()

        return self._call(run)

    @property
    def counters(self) -> ConsumerCounters:
        """What was read and met."""
        return self._consumer.counters

    @property
    def client_counters(self) -> ClientCounters:
        """Connections, look-ups and retries."""
        return self._consumer.client_counters

    # Reading

    def poll(
        self,
        max_records: int = POLL_RECORDS_MAX,
        max_bytes: int | None = None,
        timeout_ms: float | None = POLL_TIMEOUT_MS,
    ) -> list[ConsumedRecord]:
        """Return the next records, as `Consumer.poll`; interrupting it loses nothing."""
        stash = self._consumer.stash
        if len(stash):
            return stash.take(max_records, max_bytes)
        self._call(lambda: self._consumer.poll_to_stash(max_records, max_bytes, timeout_ms))
        return stash.take(max_records)

    def poll_arrow(
        self,
        max_records: int = ARROW_RECORDS_MAX,
        max_bytes: int | None = ARROW_BYTES_MAX,
        timeout_ms: float | None = POLL_TIMEOUT_MS,
    ) -> Any:
        """Return the next records as a `pyarrow.RecordBatch`, as `Consumer.poll_arrow`."""
        return self._call(lambda: self._consumer.poll_arrow(max_records, max_bytes, timeout_ms))

    def __iter__(self) -> Iterator[ConsumedRecord]:
        """Yield one record after the other, without end; leaving the loop loses nothing."""
        while True:
            yield from self._consumer.stash.fill(self.poll(timeout_ms=None))

    # Which partitions

    @property
    def assignment(self) -> tuple[TopicPartition, ...]:
        """The partitions that are read, paused ones included."""
        return self._do(lambda: self._consumer.assignment)

    def assign(self, partitions: Iterable[Partition], start: Starts = "earliest") -> None:
        """Read these partitions and no others."""
        self._call(lambda: self._consumer.assign(partitions, start))

    def pause(self, *partitions: Partition) -> None:
        """Return no records of these (all when none is named) until they are resumed."""
        self._do(lambda: self._consumer.pause(*partitions))

    def resume(self, *partitions: Partition) -> None:
        """Go on with these, or with all when none is named."""
        self._do(lambda: self._consumer.resume(*partitions))

    @property
    def paused(self) -> tuple[TopicPartition, ...]:
        """The partitions that are paused."""
        return self._do(lambda: self._consumer.paused)

    # Where in them

    def position(self, partition: Partition) -> int:
        """Return the offset of the next record: behind the last one that was given."""
        # Two reads that nobody disturbs: asked for with every record, it must not cost a switch.
        return self._consumer.position(partition)

    def seek(self, partition: Partition, start: Start) -> None:
        """Go on from another place."""
        self._call(lambda: self._consumer.seek(partition, start))

    def start_offsets(
        self, partitions: Iterable[Partition] | None = None
    ) -> dict[TopicPartition, int]:
        """Ask for the first offset of these partitions, or of all that are read."""
        return self._call(lambda: self._consumer.start_offsets(partitions))

    def end_offsets(
        self, partitions: Iterable[Partition] | None = None
    ) -> dict[TopicPartition, int]:
        """Ask where these partitions, or all that are read, end for this reader now."""
        return self._call(lambda: self._consumer.end_offsets(partitions))

    def offsets_at(
        self, starts: Mapping[TopicPartition, Start] | Mapping[tuple[str, int], Start]
    ) -> dict[TopicPartition, int]:
        """Return the offset that each start stands for now."""
        return self._call(lambda: self._consumer.offsets_at(starts))

    def lag(self) -> dict[TopicPartition, int]:
        """Return how many offsets each partition is behind its end."""
        return self._call(self._consumer.lag)
