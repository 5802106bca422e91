"""`dlog.client.blocking`, at its defaults."""

import sys

from pyarrow import compute

from bench.load.clients.task import BATCH_BYTES, LINGER_MS, Seen, Task, checksum, run
from dlog.client.blocking import Consumer, Producer
from dlog.client.consuming.arrow_poll import assemble

# Imports numpy and pyarrow now, as what others need is imported before the time begins.
assemble([])


def _producer(task: Task) -> Producer:
    return Producer(task.bootstrap, acks="all", linger_ms=LINGER_MS, batch_bytes=BATCH_BYTES)


def produce(task: Task) -> None:
    """Send one record with each call."""
    with _producer(task) as producer:
        send, topic = producer.send, task.topic
        for value in task.each():
            send(topic, value)
        producer.flush()


def produce_many(task: Task) -> None:
    """Send many records with each call."""
    chunk = task.chunk()
    with _producer(task) as producer:
        for size in task.chunk_sizes():
            producer.send_many(task.topic, chunk if size == len(chunk) else chunk[:size])
        producer.flush()


def consume(task: Task, check: bool) -> Seen:
    """Look at one record after the other."""
    seen = Seen()
    count = value_bytes = 0
    with Consumer(task.bootstrap, task.topic) as consumer:
        for record in consumer:
            value = record.value
            count += 1
            value_bytes += len(value or b"")
            if check:
                seen.checksum += checksum([value])
            if count == task.record_count:
                break
    seen.record_count, seen.value_bytes = count, value_bytes
    return seen


def consume_many(task: Task, check: bool) -> Seen:
    """Take what comes as Arrow columns."""
    seen = Seen()
    with Consumer(task.bootstrap, task.topic) as consumer:
        while seen.record_count < task.record_count:
            batch = consumer.poll_arrow()
            column = batch.column("value")
            seen.record_count += len(column)
            seen.value_bytes += compute.sum(compute.binary_length(column)).as_py() or 0
            if check:
                seen.checksum += checksum(column.to_pylist())
            if not len(column):
                seen.check_time()
    return seen


if __name__ == "__main__":
    sys.exit(run(one=produce, many=produce_many, read=consume, read_many=consume_many))
