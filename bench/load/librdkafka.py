"""A user's producer at full speed: librdkafka through confluent-kafka's `produce_batch`.

After the flush the ends of all partitions are compared with what was sent, since a delivery report
per record would make Python the thing that is measured.
"""

import argparse
import json
import random
import sys
import time

from confluent_kafka import Consumer, Producer, TopicPartition

CHUNK_RECORDS = 2000
WORDS = ("get", "put", "order", "paid", "cart", "error", "retry", "200", "404", "eu-west", "ms=")


def _end_offsets(bootstrap: str, topic: str, partitions: int) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    try:
        ends = [
            consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)[1]
            for partition in range(partitions)
        ]
    finally:
        consumer.close()
    return sum(ends)


def _values(options: argparse.Namespace) -> list[bytes]:
    """Return a chunk of values: with a codec, lines of a log, else the same bytes again."""
    rng = random.Random(0)
    size = options.value_bytes
    if options.codec == "none":
        return [rng.randbytes(size)] * CHUNK_RECORDS
    values = []
    for number in range(CHUNK_RECORDS):
        words = [rng.choice(WORDS) for _ in range(size // 6)]
        line = f"{number:08} user={rng.randrange(10**6)} {' '.join(words)}"
        values.append(line.encode()[:size].ljust(size))
    return values


def _send(producer: Producer, topic: str, options: argparse.Namespace) -> float:
    """Queue all records, as fast as the library takes them, and wait for the last answer."""
    chunk = _values(options)
    started = time.perf_counter()
    left, partition = options.records, 0
    while left:
        count = min(CHUNK_RECORDS, left)
        messages = [{"value": value} for value in chunk[:count]]
        where = {} if options.spread else {"partition": partition % options.partitions}
        queued = producer.produce_batch(topic, messages, **where)
        left -= queued
        partition += 1
        if queued < count:
            producer.poll(0.005)
    unanswered = producer.flush(120)
    if unanswered:
        raise SystemExit(f"{unanswered} records without an answer")
    return time.perf_counter() - started


def main() -> int:
    """Run the load that the arguments describe and print its result."""
    parser = argparse.ArgumentParser(prog="python -m bench.load.librdkafka")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--value-bytes", type=int, default=1024)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--spread", action="store_true", help="a random partition per record")
    parser.add_argument("--acks", default="1")
    parser.add_argument("--codec", default="none")
    options = parser.parse_args()
    producer = Producer(
        {
            "bootstrap.servers": options.bootstrap,
            "acks": options.acks,
            "compression.type": options.codec,
            "batch.size": 1_000_000,
            "batch.num.messages": 1_000_000,
            "linger.ms": 5,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 512 * 1024,
            "sticky.partitioning.linger.ms": 0,
        }
    )
    producer.list_topics(options.topic, timeout=30)
    before = (
        0 if options.spread else _end_offsets(options.bootstrap, options.topic, options.partitions)
    )
    seconds = _send(producer, options.topic, options)
    if not options.spread:
        after = _end_offsets(options.bootstrap, options.topic, options.partitions)
        if after - before != options.records:
            raise SystemExit(f"{after - before} of {options.records} records are there")
    value_bytes = options.records * options.value_bytes
    result = {
        "records": options.records,
        "seconds": seconds,
        "records_per_s": options.records / seconds,
        "mb_per_s": value_bytes / seconds / 1e6,
        "value_bytes": value_bytes,
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
