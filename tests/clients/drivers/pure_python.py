"""kafka-python 3."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import AlterConfigOp, ConfigResource, KafkaAdminClient, OffsetSpec
from kafka.errors import KafkaError

from tests.clients.drivers.driver import TAIL_WAIT_MS, Driver, Rec, RefusedError

CALL_S = 20


@contextmanager
def _refusing() -> Iterator[None]:
    """Turn the library's errors into the code that came over the wire."""
    try:
        yield
    except KafkaError as error:
        raise RefusedError(error.errno, str(error)) from error


def _rec(message: Any) -> Rec:
    return Rec(
        key=message.key,
        value=message.value,
        headers=tuple(message.headers),
        timestamp_ms=message.timestamp,
        partition=message.partition,
        offset=message.offset,
    )


def _read(consumer: KafkaConsumer, count: int, timeout_s: float) -> list[Rec]:
    consumer.config["consumer_timeout_ms"] = int(timeout_s * 1000)
    found: list[Rec] = []
    for message in consumer:
        found.append(_rec(message))
        if len(found) == count:
            break
    return found


class KafkaPythonDriver(Driver):
    """Drives kafka.KafkaProducer, KafkaConsumer and KafkaAdminClient."""

    name = "kafka-python"
    # It cannot write a header without a value, and hides the errors of DescribeConfigs.
    lacks = frozenset({"null_headers", "config_errors"})

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._admin = KafkaAdminClient(bootstrap_servers=bootstrap)

    def create_topic(
        self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        with _refusing():
            self._admin.create_topics(
                {topic: {"num_partitions": partitions, "configs": dict(configs or {})}}
            )

    def delete_topic(self, topic: str) -> None:
        with _refusing():
            self._admin.delete_topics([topic])

    def create_partitions(self, topic: str, partitions: int) -> None:
        with _refusing():
            self._admin.create_partitions({topic: partitions})

    def describe_topic(self, topic: str) -> list[int]:
        with _refusing():
            (found,) = self._admin.describe_topics([topic])
        if found["error_code"]:
            raise RefusedError(found["error_code"])
        by_index = {p["partition_index"]: p["leader_id"] for p in found["partitions"]}
        return [by_index[index] for index in sorted(by_index)]

    def list_topics(self) -> list[str]:
        return sorted(self._admin.list_topics())

    def describe_configs(self, topic: str) -> dict[str, str | None]:
        resource = ConfigResource("topic", topic)
        with _refusing():
            found = self._admin.describe_configs([resource], config_filter="all")
        return {name: entry["value"] for name, entry in found["topic"][topic].items()}

    def alter_configs(self, topic: str, configs: Mapping[str, str | None]) -> None:
        operations = {
            key: (AlterConfigOp.DELETE if value is None else AlterConfigOp.SET, value)
            for key, value in configs.items()
        }
        with _refusing():
            found = self._admin.alter_configs([ConfigResource("topic", topic, operations)])
        result = found["topic"][topic]
        if result != "OK":
            code = re.match(r"\[Error (\d+)\]", result)
            raise RefusedError(int(code[1]) if code else -1, result)

    def delete_records(self, topic: str, partition: int, offset: int) -> int:
        wanted = TopicPartition(topic, partition)
        with _refusing():
            return int(self._admin.delete_records({wanted: offset})[wanted]["low_watermark"])

    def describe_cluster(self) -> tuple[str, int, list[int]]:
        found = self._admin.describe_cluster()
        nodes = [broker["broker_id"] for broker in found["brokers"]]
        return found["cluster_id"], found["controller_id"], nodes

    def describe_log_dirs(self) -> dict[str, int]:
        (node, *_) = self._admin.describe_log_dirs()
        return {
            f"{topic['name']}-{partition['partition_index']}": partition["partition_size"]
            for folder in node["log_dirs"]
            for topic in folder["topics"]
            for partition in topic["partitions"]
        }

    def list_offset(self, topic: str, partition: int, at: str | int) -> int:
        named = {
            "earliest": OffsetSpec.EARLIEST,
            "latest": OffsetSpec.LATEST,
            "max_timestamp": OffsetSpec.MAX_TIMESTAMP,
        }
        wanted = TopicPartition(topic, partition)
        spec = named[at] if isinstance(at, str) else at
        with _refusing():
            return int(self._admin.list_partition_offsets({wanted: spec})[wanted].offset)

    def produce(
        self,
        topic: str,
        records: Sequence[Rec],
        *,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int]:
        producer = KafkaProducer(
            bootstrap_servers=self._bootstrap,
            compression_type=None if codec == "none" else codec,
            acks=acks if acks == "all" else int(acks),
            enable_idempotence=idempotent,
            linger_ms=5,
            max_request_size=10_000_000,
            delivery_timeout_ms=30_000,
            request_timeout_ms=20_000,
        )
        try:
            with _refusing():
                sent = [
                    producer.send(
                        topic,
                        key=record.key,
                        value=record.value,
                        headers=list(record.headers),
                        partition=record.partition if record.partition >= 0 else None,
                        timestamp_ms=record.timestamp_ms,
                    )
                    for record in records
                ]
                producer.flush(40)
                return [int(future.get(CALL_S).offset) for future in sent]
        finally:
            producer.close(5)

    def _consumer(self) -> KafkaConsumer:
        return KafkaConsumer(
            bootstrap_servers=self._bootstrap,
            auto_offset_reset="none",
            enable_auto_commit=False,
            fetch_max_wait_ms=TAIL_WAIT_MS,
            group_id=None,
        )

    def consume(
        self, topic: str, partition: int, start: str | int, count: int, timeout_s: float = 20
    ) -> list[Rec]:
        consumer = self._consumer()
        try:
            wanted = TopicPartition(topic, partition)
            consumer.assign([wanted])
            with _refusing():
                if isinstance(start, str):
                    consumer.seek_to_beginning(wanted)
                else:
                    consumer.seek(wanted, start)
                return _read(consumer, count, timeout_s)
        finally:
            consumer.close(autocommit=False)

    @contextmanager
    def tail(self, topic: str, partition: int) -> Iterator[Callable[[int, float], list[Rec]]]:
        consumer = self._consumer()
        try:
            wanted = TopicPartition(topic, partition)
            consumer.assign([wanted])
            consumer.seek_to_end(wanted)
            consumer.position(wanted)
            yield lambda count, timeout_s: _read(consumer, count, timeout_s)
        finally:
            consumer.close(autocommit=False)

    def close(self) -> None:
        self._admin.close()
