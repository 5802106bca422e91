"""Fills a topic as pipelines do: batches of a megabyte, perhaps compressed; each record has a key.

Values are hexadecimal digits by chance, which zstd makes half as long.
"""

import argparse
import json
import random
import sys
import time

import pyarrow as pa

from bench.load.clients.task import BATCH_BYTES, CHUNK_RECORDS, LINGER_MS
from dlog.client.blocking import Producer

DISTINCT_CHUNKS = 8
CHUNK_BYTES_MAX = 4_000_000


def _chunk(rng: random.Random, count: int, value_bytes: int) -> pa.RecordBatch:
    values = [
        rng.randbytes(-(-value_bytes // 2)).hex()[:value_bytes].encode() for _ in range(count)
    ]
    keys = [b"%016d" % rng.randrange(10**16) for _ in range(count)]
    return pa.record_batch({"key": pa.array(keys), "value": pa.array(values)})


def main() -> int:
    """Write, and say how long it took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--value-bytes", type=int, required=True)
    parser.add_argument("--codec", default="none")
    parser.add_argument("--chunk", type=int, default=CHUNK_RECORDS, help="records in a row")
    options = parser.parse_args()
    rng = random.Random(7)
    count = min(options.chunk, CHUNK_BYTES_MAX // options.value_bytes, options.records)
    chunks = [_chunk(rng, count, options.value_bytes) for _ in range(DISTINCT_CHUNKS)]
    started = time.perf_counter()
    settings = {"acks": "all", "linger_ms": LINGER_MS, "batch_bytes": BATCH_BYTES}
    with Producer(options.bootstrap, compression=options.codec, **settings) as producer:
        for number, start in enumerate(range(0, options.records, count)):
            batch = chunks[number % DISTINCT_CHUNKS].slice(0, options.records - start)
            producer.send_many(options.topic, batch, partition=number % options.partitions)
        producer.flush()
    print(json.dumps({"seconds": time.perf_counter() - started}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
