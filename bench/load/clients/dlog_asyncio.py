"""`dlog.client` for asyncio, at its defaults."""

import asyncio
import sys

from pyarrow import compute

from bench.load.clients.task import BATCH_BYTES, LINGER_MS, Seen, Task, checksum, run
from dlog.client.consumer import Consumer
from dlog.client.consuming.arrow_poll import assemble
from dlog.client.producer import Producer

# Imports numpy and pyarrow now, as what others need is imported before the time begins.
assemble([])


def _producer(task: Task) -> Producer:
    return Producer(task.bootstrap, acks="all", linger_ms=LINGER_MS, batch_bytes=BATCH_BYTES)


async def produce(task: Task) -> None:
    """Send one record with each call."""
    async with _producer(task) as producer:
        send, topic = producer.send, task.topic
        for value in task.each():
            await send(topic, value)
        await producer.flush()


async def produce_many(task: Task) -> None:
    """Send many records with each call."""
    chunk = task.chunk()
    async with _producer(task) as producer:
        for size in task.chunk_sizes():
            await producer.send_many(task.topic, chunk if size == len(chunk) else chunk[:size])
        await producer.flush()


async def consume(task: Task, check: bool) -> Seen:
    """Look at one record after the other."""
    seen = Seen()
    count = value_bytes = 0
    async with Consumer(task.bootstrap, task.topic) as consumer:
        async for record in consumer:
            value = record.value
            count += 1
            value_bytes += len(value or b"")
            if check:
                seen.checksum += checksum([value])
            if count == task.record_count:
                break
    seen.record_count, seen.value_bytes = count, value_bytes
    return seen


async def consume_many(task: Task, check: bool) -> Seen:
    """Take what comes as Arrow columns."""
    seen = Seen()
    async with Consumer(task.bootstrap, task.topic) as consumer:
        while seen.record_count < task.record_count:
            batch = await consumer.poll_arrow()
            column = batch.column("value")
            seen.record_count += len(column)
            seen.value_bytes += compute.sum(compute.binary_length(column)).as_py() or 0
            if check:
                seen.checksum += checksum(column.to_pylist())
            if not len(column):
                seen.check_time()
    return seen


if __name__ == "__main__":
    sys.exit(
        run(
            one=lambda task: asyncio.run(produce(task)),
            many=lambda task: asyncio.run(produce_many(task)),
            read=lambda task, check: asyncio.run(consume(task, check)),
            read_many=lambda task, check: asyncio.run(consume_many(task, check)),
        )
    )
