"""How each library that runs in this process writes and reads under load."""

import asyncio
import contextlib
import time
from collections import deque
from typing import Any, ClassVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AiokafkaPartition
from confluent_kafka import KafkaError, Message
from confluent_kafka import Producer as ConfluentProducer
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as KafkaPythonPartition

from dlog.client.blocking import Consumer as BlockingConsumer
from dlog.client.blocking import Producer as BlockingProducer
from dlog.client.consumer import Consumer
from dlog.client.futures import DeliveryError, Written
from dlog.client.producer import Producer
from tests.clients.failovers.load import FLUSH_S, POLL_S, Load
from tests.clients.failovers.verdict import Promise
from tests.clients.guarded_consumer import GuardedConsumer


class DlogLoad(Load):
    """`dlog.client` on an event loop."""

    name = "dlog"

    def write(self) -> None:
        asyncio.run(self._write())

    async def _write(self) -> None:
        async with Producer(self.bootstrap) as producer, asyncio.TaskGroup() as waiting:
            async for number, partition in self.due_on_loop():
                sent_s = time.monotonic()
                value = b"%d" % number
                delivery = await producer.send(self.topic, value, partition=partition)
                waiting.create_task(self._note(number, delivery, sent_s))

    async def _note(self, number: int, delivery: Any, sent_s: float) -> None:
        await delivery.wait()
        outcome = delivery.outcome()
        if isinstance(outcome, Written):
            self.acked(number, outcome.partition, outcome.offset, sent_s)
        else:
            self.refused(number, outcome)

    def read(self) -> None:
        asyncio.run(self._read())

    async def _read(self) -> None:
        async with Consumer(self.bootstrap, self.topic) as consumer:
            while not self.has_read_all:
                records = await consumer.poll(timeout_ms=POLL_S * 1000)
                self.took([(each.partition, each.offset, each.value) for each in records])


class BlockingDlogLoad(Load):
    """`dlog.client.blocking`."""

    name = "dlog-blocking"

    def write(self) -> None:
        with BlockingProducer(self.bootstrap) as producer:
            waiting: list[deque[Any]] = [deque() for _ in range(self.partitions)]
            for number, partition in self.due():
                sent_s = time.monotonic()
                delivery = producer.send(self.topic, b"%d" % number, partition=partition)
                waiting[partition].append((number, delivery, sent_s))
                for queue in waiting:
                    while queue and queue[0][1].done():
                        self._note(*queue.popleft())
            for queue in waiting:
                for number, delivery, sent_s in queue:
                    with contextlib.suppress(DeliveryError, TimeoutError):
                        delivery.result(FLUSH_S)
                    self._note(number, delivery, sent_s)

    def _note(self, number: int, delivery: Any, sent_s: float) -> None:
        outcome = delivery.outcome()
        if isinstance(outcome, Written):
            self.acked(number, outcome.partition, outcome.offset, sent_s)
        else:
            self.refused(number, outcome)

    def read(self) -> None:
        with BlockingConsumer(self.bootstrap, self.topic) as consumer:
            while not self.has_read_all:
                records = consumer.poll(timeout_ms=POLL_S * 1000)
                self.took([(each.partition, each.offset, each.value) for each in records])


class LibrdkafkaLoad(Load):
    """confluent-kafka with numbered batches, as its makers advise."""

    name = "librdkafka"
    settings: ClassVar[dict[str, Any]] = {"enable.idempotence": True}

    def write(self) -> None:
        own = {"bootstrap.servers": self.bootstrap, "log_level": 0}
        producer = ConfluentProducer({**own, **self.settings})

        def note(number: int, sent_s: float) -> Any:
            def delivered(error: KafkaError | None, message: Message) -> None:
                if error is not None:
                    self.refused(number, error)
                else:
                    told = message.offset()
                    offset = -1 if told is None else told
                    self.acked(number, message.partition(), offset, sent_s)  # type: ignore[arg-type]

            return delivered

        for number, partition in self.due():
            value, told = b"%d" % number, note(number, time.monotonic())
            producer.produce(self.topic, value, partition=partition, on_delivery=told)
            producer.poll(0)
        producer.flush(FLUSH_S)

    def read(self) -> None:
        starts = {(self.topic, each): 0 for each in range(self.partitions)}
        consumer = GuardedConsumer(self.bootstrap, starts)
        try:
            while not self.has_read_all:
                found = consumer.consume(500, POLL_S)
                for message in found:
                    if message.error() is not None:
                        self.errors.append(f"read: {message.error()}")
                self.took(
                    [(each.partition(), each.offset(), each.value())  # type: ignore[misc]
                     for each in found if each.error() is None]
                )  # fmt: skip
        finally:
            consumer.close()
            self.lockup_count = consumer.lockups


class PlainLibrdkafkaLoad(LibrdkafkaLoad):
    """confluent-kafka as it comes: it promises neither order nor once when it sends again."""

    name = "librdkafka-plain"
    promise = Promise.ALL
    settings: ClassVar[dict[str, Any]] = {}


class KafkaPythonLoad(Load):
    """kafka-python, which numbers its batches by default."""

    name = "kafka-python"

    def write(self) -> None:
        producer = KafkaProducer(bootstrap_servers=self.bootstrap.split(","))
        try:
            for number, partition in self.due():
                sent_s = time.monotonic()
                future = producer.send(self.topic, b"%d" % number, partition=partition)
                future.add_callback(self._on_written, number, sent_s)
                future.add_errback(lambda error, number=number: self.refused(number, error))
            producer.flush(FLUSH_S)
        finally:
            producer.close(5)

    def _on_written(self, number: int, sent_s: float, written: Any) -> None:
        self.acked(number, written.partition, written.offset, sent_s)

    def read(self) -> None:
        consumer = KafkaConsumer(
            bootstrap_servers=self.bootstrap.split(","),
            group_id=None,
            auto_offset_reset="none",
            enable_auto_commit=False,
        )
        try:
            wanted = [KafkaPythonPartition(self.topic, each) for each in range(self.partitions)]
            consumer.assign(wanted)
            for each in wanted:
                consumer.seek(each, 0)
            while not self.has_read_all:
                for partition, messages in consumer.poll(timeout_ms=int(POLL_S * 1000)).items():
                    self.took([(partition.partition, each.offset, each.value) for each in messages])
        finally:
            consumer.close(autocommit=False)


class AiokafkaLoad(Load):
    """aiokafka with numbered batches."""

    name = "aiokafka"
    settings: ClassVar[dict[str, Any]] = {"enable_idempotence": True}

    def write(self) -> None:
        asyncio.run(self._write())

    async def _write(self) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=self.bootstrap, **self.settings)
        async with producer:
            async for number, partition in self.due_on_loop():
                sent_s = time.monotonic()
                future = await producer.send(self.topic, b"%d" % number, partition=partition)
                future.add_done_callback(lambda done, n=number, s=sent_s: self._note(n, s, done))
            await asyncio.wait_for(producer.flush(), FLUSH_S)

    def _note(self, number: int, sent_s: float, done: "asyncio.Future[Any]") -> None:
        error = done.exception()
        if error is not None:
            self.refused(number, error)
        else:
            written = done.result()
            self.acked(number, written.partition, written.offset, sent_s)

    def read(self) -> None:
        asyncio.run(self._read())

    async def _read(self) -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap, auto_offset_reset="none", enable_auto_commit=False
        )
        async with consumer:
            wanted = [AiokafkaPartition(self.topic, each) for each in range(self.partitions)]
            consumer.assign(wanted)
            for each in wanted:
                consumer.seek(each, 0)
            while not self.has_read_all:
                batches = await consumer.getmany(timeout_ms=int(POLL_S * 1000))
                for partition, messages in batches.items():
                    self.took([(partition.partition, each.offset, each.value) for each in messages])


class PlainAiokafkaLoad(AiokafkaLoad):
    """aiokafka as it comes, but for `acks`: what it sends again may be there twice."""

    name = "aiokafka-plain"
    promise = Promise.IN_ORDER
    settings: ClassVar[dict[str, Any]] = {"acks": "all"}
