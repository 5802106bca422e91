"""confluent-kafka: librdkafka, a C library with threads of its own.

Room for a million records, else the caller waits for it; the rest is the library's default (no
idempotence, no checksums on reading).
"""

import sys
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from bench.load.clients.task import (
    BATCH_BYTES,
    CHUNK_RECORDS,
    LINGER_MS,
    Seen,
    Task,
    checksum,
    run,
)

FLUSH_S = 120
WAIT_S = 0.01


def _producer(task: Task) -> Producer:
    return Producer(
        {
            "bootstrap.servers": task.bootstrap,
            "acks": "all",
            "linger.ms": LINGER_MS,
            "batch.size": BATCH_BYTES,
            "batch.num.messages": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 512 * 1024,
        }
    )


def _flush(producer: Producer) -> None:
    unanswered = producer.flush(FLUSH_S)
    if unanswered:
        raise SystemExit(f"{unanswered} records without an answer")


def produce(task: Task) -> None:
    """Send one record with each call; the end offsets tell whether all arrived."""
    producer = _producer(task)
    send, topic = producer.produce, task.topic
    for value in task.each():
        try:
            send(topic, value)
        except BufferError:
            _wait_and_send(producer, lambda value=value: send(topic, value))
    _flush(producer)


def _wait_and_send(producer: Producer, send: Callable[[], None]) -> None:
    while True:
        producer.poll(WAIT_S)
        try:
            return send()
        except BufferError:
            continue


def produce_many(task: Task) -> None:
    """Send many records with each call."""
    producer = _producer(task)
    messages = [{"value": value} for value in task.chunk()]
    for size in task.chunk_sizes():
        left = messages if size == len(messages) else messages[:size]
        while left:
            queued = producer.produce_batch(task.topic, left)
            # Those that were refused carry their error.
            left = [message for message in left if "_error" in message] if queued < size else []
            for message in left:
                del message["_error"]
            if left:
                producer.poll(WAIT_S)
    _flush(producer)


def _consumer(task: Task) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": task.bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            **task.settings,
        }
    )
    consumer.assign([TopicPartition(task.topic, each, 0) for each in range(task.partitions)])
    return consumer


def _value(message: Message) -> bytes:
    if message.error():
        raise KafkaException(message.error())
    return message.value() or b""


def consume(task: Task, check: bool) -> Seen:
    """Look at one record after the other."""
    seen = Seen()
    count = value_bytes = 0
    consumer = _consumer(task)
    while count < task.record_count:
        message = consumer.poll(1)
        if message is None:
            seen.check_time()
            continue
        value = _value(message)
        count += 1
        value_bytes += len(value)
        if check:
            seen.checksum += checksum([value])
    consumer.close()
    seen.record_count, seen.value_bytes = count, value_bytes
    return seen


def consume_many(task: Task, check: bool) -> Seen:
    """Take lists of records, and the value of each."""
    seen = Seen()
    consumer = _consumer(task)
    while seen.record_count < task.record_count:
        # It waits for as many as it is asked for.
        messages = consumer.consume(min(CHUNK_RECORDS, task.record_count - seen.record_count), 1)
        if not messages:
            seen.check_time()
        values = [_value(message) for message in messages]
        seen.record_count += len(values)
        seen.value_bytes += sum(map(len, values))
        if check:
            seen.checksum += checksum(values)
    consumer.close()
    return seen


if __name__ == "__main__":
    sys.exit(run(one=produce, many=produce_many, read=consume, read_many=consume_many))
