"""dlog's own client, the blocking forms.

Writes whole batches through the calls below the producer, so that what is read is what one wrote.
"""

import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from dlog.batch.records import Record, encode
from dlog.client.admin import Resource
from dlog.client.blocking import BlockingClient, Consumer
from dlog.client.cluster.node import NodeClient
from dlog.client.cluster.partition_calls import delete_records, list_offsets, produce
from dlog.client.consumed import ConsumedRecord
from dlog.client.gaps import GapError
from dlog.client.producing.producer_id import init_producer_id
from dlog.client.retry import RetryPolicy
from dlog.client.starts import Start
from dlog.compression import Codec
from dlog.errors import WireError
from dlog.offset_specs import EARLIEST, LATEST, MAX_TIMESTAMP
from dlog.transport import Address
from dlog.types import PartitionId, TopicPartition
from tests.clients.drivers.driver import TAIL_WAIT_MS, Driver, Rec, RefusedError

T = TypeVar("T")
OUT_OF_RANGE = 1
BATCH_RECORDS_MAX = 40  # several batches in most tests, and none above what a topic allows
POLICY = RetryPolicy(deadline_s=10.0)
ACKS = {"0": 0, "1": 1, "all": -1}


def _rec(record: ConsumedRecord) -> Rec:
    return Rec(
        key=record.key,
        value=record.value,
        headers=record.headers,
        timestamp_ms=record.timestamp_ms,
        partition=record.partition,
        offset=record.offset,
    )


class DlogDriver(Driver):
    """Drives `Admin`, `Consumer` and the calls on partitions."""

    name = "dlog"

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._client = BlockingClient([Address.parse(bootstrap)], policy=POLICY)
        self._admin = self._client.admin

    def _run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            return self._client.run(work)
        except WireError as error:
            raise RefusedError(error.code, str(error)) from error

    def create_topic(
        self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        self._run(lambda: self._admin.create_topic(topic, partitions=partitions, configs=configs))

    def delete_topic(self, topic: str) -> None:
        self._run(lambda: self._admin.delete_topic(topic))

    def create_partitions(self, topic: str, partitions: int) -> None:
        self._run(lambda: self._admin.create_partitions(topic, partitions))

    def describe_topic(self, topic: str) -> list[int]:
        view = self._run(lambda: self._admin.describe_topic(topic))
        return [each.leader for each in view.partitions]

    def list_topics(self) -> list[str]:
        return sorted(self._run(lambda: self._admin.describe_topics()).topics)

    def describe_configs(self, topic: str) -> dict[str, str | None]:
        entries = self._run(lambda: self._admin.describe_configs(Resource.TOPIC, topic))
        return {each.name: each.value for each in entries}

    def alter_configs(self, topic: str, configs: Mapping[str, str | None]) -> None:
        values = {name: value for name, value in configs.items() if value is not None}
        deleted = [name for name, value in configs.items() if value is None]
        self._run(
            lambda: self._admin.alter_configs(
                Resource.TOPIC, topic, set_values=values, delete_names=deleted
            )
        )

    def _on_leader(
        self, topic: str, partition: int, work: Callable[[NodeClient], Coroutine[Any, Any, T]]
    ) -> T:
        cluster = self._client.cluster
        return self._run(
            lambda: cluster.run(lambda: cluster.leader(topic, partition), work, topic=topic)
        )

    def delete_records(self, topic: str, partition: int, offset: int) -> int:
        wanted = {partition: offset}
        found = self._on_leader(topic, partition, lambda node: delete_records(node, topic, wanted))
        return found[partition]

    def describe_cluster(self) -> tuple[str, int, list[int]]:
        view = self._run(lambda: self._admin.describe_cluster())
        return str(view.cluster_id), view.controller_id, list(view.nodes)

    def describe_log_dirs(self) -> dict[str, int]:
        node = next(iter(self._run(lambda: self._admin.describe_cluster()).nodes))
        views = self._run(lambda: self._admin.describe_log_dirs(node))
        return {
            f"{topic}-{partition}": size
            for view in views
            for topic, partition, size in view.partitions
        }

    def list_offset(self, topic: str, partition: int, at: str | int) -> int:
        names = {"earliest": EARLIEST, "latest": LATEST, "max_timestamp": MAX_TIMESTAMP}
        wanted = {partition: names[at] if isinstance(at, str) else at}
        found = self._on_leader(topic, partition, lambda node: list_offsets(node, topic, wanted))
        return found[partition][0]

    def produce(
        self,
        topic: str,
        records: Sequence[Rec],
        *,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int]:
        cluster = self._client.cluster
        now_ms = int(time.time() * 1000)
        offsets = dict.fromkeys(range(len(records)), -1)
        for partition in dict.fromkeys(record.partition for record in records):
            numbers = [n for n, record in enumerate(records) if record.partition == partition]
            identity = (-1, -1)
            if idempotent:
                identity = self._run(lambda: cluster.run(cluster.any_node, init_producer_id))
            for first in range(0, len(numbers), BATCH_RECORDS_MAX):
                some = numbers[first : first + BATCH_RECORDS_MAX]
                batch = encode(
                    [
                        Record(each.key, each.value, each.headers, each.timestamp_ms or now_ms)
                        for each in map(records.__getitem__, some)
                    ],
                    codec=Codec[codec.upper()],
                    producer_id=identity[0],
                    producer_epoch=identity[1],
                    base_sequence=first if idempotent else -1,
                )
                base = self._produce(topic, partition, bytes(batch), ACKS[acks])
                offsets.update((n, base + index) for index, n in enumerate(some) if base >= 0)
        return [offsets[n] for n in range(len(records))]

    def _produce(self, topic: str, partition: int, batch: bytes, acks: int) -> int:
        found = self._on_leader(
            topic, partition, lambda node: produce(node, topic, partition, batch, acks=acks)
        )
        return -1 if found is None else found.base_offset

    def _consumer(self, topic: str, partition: int, start: Start) -> Consumer:
        key = TopicPartition(topic, PartitionId(partition))
        return Consumer(
            self._bootstrap,
            partitions=[key],
            start=start,
            max_wait_ms=TAIL_WAIT_MS,
            policy=POLICY,
        )

    def consume(
        self, topic: str, partition: int, start: str | int, count: int, timeout_s: float = 20
    ) -> list[Rec]:
        # "earliest" or an offset.
        begin: Start = start if isinstance(start, int) else "earliest"
        with _translated(), self._consumer(topic, partition, begin) as consumer:
            return _read(consumer, count, timeout_s)

    @contextmanager
    def tail(self, topic: str, partition: int) -> Iterator[Callable[[int, float], list[Rec]]]:
        with _translated(), self._consumer(topic, partition, "latest") as consumer:
            yield lambda count, timeout_s: _read(consumer, count, timeout_s)

    def close(self) -> None:
        self._client.close()


def _read(consumer: Consumer, count: int, timeout_s: float) -> list[Rec]:
    found: list[Rec] = []
    while len(found) < count:
        records = consumer.poll(count - len(found), timeout_ms=timeout_s * 1000)
        if not records:
            break
        found += map(_rec, records)
    return found


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except WireError as error:
        raise RefusedError(error.code, str(error)) from error
    except GapError as error:
        raise RefusedError(OUT_OF_RANGE, str(error)) from error
