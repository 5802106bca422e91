"""aiokafka, on an event loop of its own thread."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError

from tests.clients.drivers.driver import TAIL_WAIT_MS, Driver, Rec, RefusedError

CALL_S = 60
T = TypeVar("T")


def _rec(message: Any) -> Rec:
    return Rec(
        key=message.key,
        value=message.value,
        headers=tuple(message.headers),
        timestamp_ms=message.timestamp,
        partition=message.partition,
        offset=message.offset,
    )


def _check(code: int, message: Any = "") -> None:
    if code:
        raise RefusedError(code, str(message))


async def _read(consumer: AIOKafkaConsumer, count: int, timeout_s: float) -> list[Rec]:
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout_s
    found: list[Rec] = []
    while len(found) < count and loop.time() < end:
        left_ms = max(1, int((end - loop.time()) * 1000))
        batches = await consumer.getmany(timeout_ms=left_ms, max_records=count - len(found))
        for messages in batches.values():
            found.extend(_rec(message) for message in messages)
    return found


class AiokafkaDriver(Driver):
    """Drives AIOKafkaProducer, AIOKafkaConsumer and AIOKafkaAdminClient.

    Its admin client has no IncrementalAlterConfigs, so that this is the test of AlterConfigs.
    """

    name = "aiokafka"
    lacks = frozenset({"log_dirs", "max_timestamp", "delete_config"})

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._admin: AIOKafkaAdminClient = self._run(self._open_admin())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_S)
        except KafkaError as error:
            raise RefusedError(error.errno, str(error)) from error

    async def _open_admin(self) -> AIOKafkaAdminClient:
        admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
        await admin.start()
        return admin

    def create_topic(
        self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        new = NewTopic(topic, partitions, 1, topic_configs=dict(configs or {}))
        answer = self._run(self._admin.create_topics([new]))
        for error in answer.topic_errors:
            _check(error[1], error)

    def delete_topic(self, topic: str) -> None:
        answer = self._run(self._admin.delete_topics([topic]))
        for error in answer.topic_error_codes:
            _check(error[1], error)

    def create_partitions(self, topic: str, partitions: int) -> None:
        self._run(self._admin.create_partitions({topic: NewPartitions(partitions)}))

    def describe_topic(self, topic: str) -> list[int]:
        (found,) = self._run(self._admin.describe_topics([topic]))
        _check(found["error_code"])
        by_index = {p["partition"]: p["leader"] for p in found["partitions"]}
        return [by_index[index] for index in sorted(by_index)]

    def list_topics(self) -> list[str]:
        return sorted(self._run(self._admin.list_topics()))

    def describe_configs(self, topic: str) -> dict[str, str | None]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        (answer,) = self._run(self._admin.describe_configs([resource]))
        ((code, message, _, _, entries),) = answer.resources
        _check(code, message)
        return {entry[0]: entry[1] for entry in entries}

    def alter_configs(self, topic: str, configs: Mapping[str, str | None]) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs=dict(configs))
        (answer, *_) = self._run(self._admin.alter_configs([resource]))
        for code, message, *_ in answer.resources:
            _check(code, message)

    def delete_records(self, topic: str, partition: int, offset: int) -> int:
        wanted = TopicPartition(topic, partition)
        return int(self._run(self._admin.delete_records({wanted: RecordsToDelete(offset)}))[wanted])

    def describe_cluster(self) -> tuple[str, int, list[int]]:
        found = self._run(self._admin.describe_cluster())
        nodes = [broker["node_id"] for broker in found["brokers"]]
        return found["cluster_id"], found["controller_id"], nodes

    def list_offset(self, topic: str, partition: int, at: str | int) -> int:
        return self._run(self._list_offset(TopicPartition(topic, partition), at))

    async def _list_offset(self, wanted: TopicPartition, at: str | int) -> int:
        async with self._consumer() as consumer:
            if at == "earliest":
                return int((await consumer.beginning_offsets([wanted]))[wanted])
            if at == "latest":
                return int((await consumer.end_offsets([wanted]))[wanted])
            found = (await consumer.offsets_for_times({wanted: at}))[wanted]
            return -1 if found is None else int(found.offset)

    def produce(
        self,
        topic: str,
        records: Sequence[Rec],
        *,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[int]:
        return self._run(self._produce(topic, records, codec, acks, idempotent))

    async def _produce(
        self, topic: str, records: Sequence[Rec], codec: str, acks: str, idempotent: bool
    ) -> list[int]:
        producer = AIOKafkaProducer(
            bootstrap_servers=self._bootstrap,
            compression_type=None if codec == "none" else codec,
            acks=acks if acks == "all" else int(acks),
            enable_idempotence=idempotent,
            linger_ms=5,
            max_request_size=10_000_000,
            max_batch_size=2_000_000,
            request_timeout_ms=20_000,
        )
        async with producer:
            sent = [
                await producer.send(
                    topic,
                    key=record.key,
                    value=record.value,
                    headers=list(record.headers),
                    partition=record.partition if record.partition >= 0 else None,
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            answers = [await future for future in sent]
            return [-1 if answer is None else int(answer.offset) for answer in answers]

    def _consumer(self) -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap,
            auto_offset_reset="none",
            enable_auto_commit=False,
            fetch_max_wait_ms=TAIL_WAIT_MS,
        )

    def consume(
        self, topic: str, partition: int, start: str | int, count: int, timeout_s: float = 20
    ) -> list[Rec]:
        wanted = TopicPartition(topic, partition)
        return self._run(self._consume(wanted, start, count, timeout_s))

    async def _consume(
        self, wanted: TopicPartition, start: str | int, count: int, timeout_s: float
    ) -> list[Rec]:
        async with self._consumer() as consumer:
            consumer.assign([wanted])
            if isinstance(start, str):
                await consumer.seek_to_beginning(wanted)
            else:
                consumer.seek(wanted, start)
            return await _read(consumer, count, timeout_s)

    @contextmanager
    def tail(self, topic: str, partition: int) -> Iterator[Callable[[int, float], list[Rec]]]:
        async def opened() -> AIOKafkaConsumer:
            consumer = self._consumer()
            await consumer.start()
            wanted = TopicPartition(topic, partition)
            consumer.assign([wanted])
            await consumer.seek_to_end(wanted)
            await consumer.position(wanted)
            return consumer

        consumer = self._run(opened())
        try:
            yield lambda count, timeout_s: self._run(_read(consumer, count, timeout_s))
        finally:
            self._run(consumer.stop())

    def close(self) -> None:
        self._run(self._admin.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
