"""confluent-kafka, the newest librdkafka."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.clients.drivers.driver import TAIL_WAIT_MS, Driver, Rec, RefusedError

CALL_S = 20


def _wait(futures: Mapping[Any, "Future[Any]"]) -> Any:
    """Return the one result, with the server's error as RefusedError."""
    (future,) = futures.values()
    return _result(future)


def _result(future: "Future[Any]") -> Any:
    try:
        return future.result(CALL_S)
    except KafkaException as error:
        raise _refused(error) from error


def _refused(error: KafkaException) -> RefusedError:
    return RefusedError(error.args[0].code(), error.args[0].str())


def _rec(message: Any) -> Rec:
    return Rec(
        key=message.key(),
        value=message.value(),
        headers=tuple(message.headers() or ()),
        timestamp_ms=message.timestamp()[1],
        partition=message.partition(),
        offset=message.offset(),
    )


class ConfluentDriver(Driver):
    """Drives confluent_kafka's Producer, Consumer and AdminClient."""

    name = "confluent-kafka"
    lacks = frozenset({"log_dirs"})

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap})

    def create_topic(
        self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        new = NewTopic(topic, num_partitions=partitions, config=dict(configs or {}))
        _wait(self._admin.create_topics([new]))

    def delete_topic(self, topic: str) -> None:
        _wait(self._admin.delete_topics([topic]))

    def create_partitions(self, topic: str, partitions: int) -> None:
        _wait(self._admin.create_partitions([NewPartitions(topic, partitions)]))

    def describe_topic(self, topic: str) -> list[int]:
        found = self._admin.list_topics(topic, timeout=CALL_S).topics[topic]
        if found.error is not None:
            raise RefusedError(found.error.code(), found.error.str())
        return [found.partitions[index].leader for index in sorted(found.partitions)]

    def list_topics(self) -> list[str]:
        return sorted(self._admin.list_topics(timeout=CALL_S).topics)

    def describe_configs(self, topic: str) -> dict[str, str | None]:
        entries = _wait(self._admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))
        return {name: entry.value for name, entry in entries.items()}

    def alter_configs(self, topic: str, configs: Mapping[str, str | None]) -> None:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        for key, value in configs.items():
            operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
            entry = ConfigEntry(key, value or "", incremental_operation=operation)
            resource.add_incremental_config(entry)
        _wait(self._admin.incremental_alter_configs([resource]))

    def delete_records(self, topic: str, partition: int, offset: int) -> int:
        wanted = TopicPartition(topic, partition, offset)
        return int(_wait(self._admin.delete_records([wanted])).low_watermark)

    def describe_cluster(self) -> tuple[str, int, list[int]]:
        found = _result(self._admin.describe_cluster())
        return found.cluster_id, found.controller.id, [node.id for node in found.nodes]

    def list_offset(self, topic: str, partition: int, at: str | int) -> int:
        named = {
            "earliest": OffsetSpec.earliest(),
            "latest": OffsetSpec.latest(),
            "max_timestamp": OffsetSpec.max_timestamp(),
        }
        spec = named[at] if isinstance(at, str) else OffsetSpec.for_timestamp(at)
        return int(_wait(self._admin.list_offsets({TopicPartition(topic, partition): spec})).offset)

    def produce(
        self,
        topic: str,
        records: Sequence[Rec],
        *,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int]:
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "compression.type": codec,
                "acks": acks,
                "enable.idempotence": idempotent,
                "linger.ms": 5,
                "message.max.bytes": 10_000_000,
                "delivery.timeout.ms": 30_000,
            }
        )
        offsets = [-1] * len(records)
        errors: list[Any] = []

        def report(index: int) -> Callable[[Any, Any], None]:
            def delivered(error: Any, message: Any) -> None:
                if error is not None:
                    errors.append(error)
                elif message.offset() is not None:
                    offsets[index] = max(message.offset(), -1)

            return delivered

        for index, record in enumerate(records):
            stamp = {} if record.timestamp_ms is None else {"timestamp": record.timestamp_ms}
            producer.produce(
                topic,
                value=record.value,
                key=record.key,
                partition=record.partition,
                headers=list(record.headers),
                on_delivery=report(index),
                **stamp,
            )
        left = producer.flush(40)
        if errors:
            raise RefusedError(errors[0].code(), errors[0].str())
        assert left == 0, f"{left} records unanswered"
        return offsets

    def _consumer(self) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.message.max.bytes": 1_000_000,
                "fetch.wait.max.ms": TAIL_WAIT_MS,
            }
        )

    def consume(
        self, topic: str, partition: int, start: str | int, count: int, timeout_s: float = 20
    ) -> list[Rec]:
        consumer = self._consumer()
        try:
            offset = OFFSET_BEGINNING if isinstance(start, str) else start
            consumer.assign([TopicPartition(topic, partition, offset)])
            return self._read(consumer, count, timeout_s)
        finally:
            consumer.close()

    def _read(self, consumer: Consumer, count: int, timeout_s: float) -> list[Rec]:
        end = time.monotonic() + timeout_s
        found: list[Rec] = []
        while len(found) < count and time.monotonic() < end:
            for message in consumer.consume(count - len(found), timeout=min(1, timeout_s)):
                error = message.error()
                if error is not None:
                    raise RefusedError(error.code(), error.str())
                found.append(_rec(message))
        return found

    @contextmanager
    def tail(self, topic: str, partition: int) -> Iterator[Callable[[int, float], list[Rec]]]:
        consumer = self._consumer()
        try:
            _, end = consumer.get_watermark_offsets(
                TopicPartition(topic, partition), timeout=CALL_S
            )
            consumer.assign([TopicPartition(topic, partition, end)])
            yield lambda count, timeout_s: self._read(consumer, count, timeout_s)
        finally:
            consumer.close()
