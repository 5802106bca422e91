"""Record batches, as a fetch brings them, to Arrow: what one core does, checksums verified."""

import argparse
import json
import sys
import time

from bench.load import wire
from dlog.batch.columns import decode_columns
from dlog.batch.header import patch

BATCH_VALUE_BYTES = 1_000_000
BATCHES = 4


def main() -> int:
    """Decode as long as the arguments say and print the result."""
    parser = argparse.ArgumentParser(prog="python -m bench.load.decode")
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=3)
    options = parser.parse_args()
    count = BATCH_VALUE_BYTES // options.value_bytes
    fetched = bytearray()
    for number in range(BATCHES):
        batch = bytearray(wire.batch(count, options.value_bytes, seed=number))
        patch(batch, 0, number * count, 0)
        fetched += batch
    # This imports numpy and pyarrow, too.
    values = decode_columns([fetched]).to_arrow().column("value").to_pylist()
    if list(map(len, values)) != [options.value_bytes] * count * BATCHES:
        raise SystemExit("these are not the records that were encoded")
    records = 0
    started, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - started < options.seconds:
        records += decode_columns([fetched]).to_arrow().num_rows
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    result = {
        "records": records,
        "records_per_s": records / seconds,
        "records_per_cpu_s": records / cpu,
        "mb_per_s": records * options.value_bytes / seconds / 1e6,
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
