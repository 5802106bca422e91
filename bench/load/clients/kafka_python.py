"""kafka-python: pure Python, sending and fetching in a thread (idempotent by default)."""

import sys

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from bench.load.clients.task import BATCH_BYTES, LINGER_MS, Seen, Task, checksum, run


def produce(task: Task) -> None:
    """Send one record with each call."""
    producer = KafkaProducer(
        bootstrap_servers=task.bootstrap, acks="all", linger_ms=LINGER_MS, batch_size=BATCH_BYTES
    )
    send, topic = producer.send, task.topic
    for value in task.each():
        send(topic, value)
    producer.flush()
    producer.close()


def consume(task: Task, check: bool) -> Seen:
    """Look at one record after the other."""
    seen = Seen()
    consumer = KafkaConsumer(
        bootstrap_servers=task.bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
    )
    consumer.assign([TopicPartition(task.topic, each) for each in range(task.partitions)])
    count = value_bytes = 0
    for record in consumer:
        value = record.value
        count += 1
        value_bytes += len(value or b"")
        if check:
            seen.checksum += checksum([value])
        if count == task.record_count:
            break
    consumer.close()
    seen.record_count, seen.value_bytes = count, value_bytes
    return seen


if __name__ == "__main__":
    sys.exit(run(one=produce, read=consume))
