"""aiokafka: asyncio, with record batches read and written by compiled code."""

import asyncio
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from bench.load.clients.task import BATCH_BYTES, LINGER_MS, Seen, Task, checksum, run


async def produce(task: Task) -> None:
    """Send one record with each call."""
    producer = AIOKafkaProducer(
        bootstrap_servers=task.bootstrap,
        acks="all",
        linger_ms=LINGER_MS,
        max_batch_size=BATCH_BYTES,
    )
    await producer.start()
    send, topic = producer.send, task.topic
    for value in task.each():
        await send(topic, value)
    await producer.flush()
    await producer.stop()


async def consume(task: Task, check: bool) -> Seen:
    """Look at one record after the other."""
    seen = Seen()
    consumer = AIOKafkaConsumer(
        bootstrap_servers=task.bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
    )
    await consumer.start()
    consumer.assign([TopicPartition(task.topic, each) for each in range(task.partitions)])
    count = value_bytes = 0
    async for record in consumer:
        value = record.value
        count += 1
        value_bytes += len(value or b"")
        if check:
            seen.checksum += checksum([value])
        if count == task.record_count:
            break
    await consumer.stop()
    seen.record_count, seen.value_bytes = count, value_bytes
    return seen


if __name__ == "__main__":
    sys.exit(
        run(
            one=lambda task: asyncio.run(produce(task)),
            read=lambda task, check: asyncio.run(consume(task, check)),
        )
    )
