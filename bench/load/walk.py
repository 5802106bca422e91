"""The walk over the records of a plain batch, next to the CRC of the same bytes and to its twin.

Each is called for a slice of time in turns, in one process: the machine's drift meets all alike.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from statistics import median

from dlog.batch import _pure_walk, native
from dlog.batch.header import BATCH_STRUCT, HEADER_BYTES, verify_crc
from dlog.batch.records import Record, encode

BASE_MS = 1_790_000_000_000
RECORDS_PER_MS = 8
SLICE_S = 0.02

Call = Callable[[], object]


def plain_batch(count: int, value_bytes: int) -> bytes:
    """Return a batch with the timestamps of a busy producer: several records each millisecond."""
    value = bytes(value_bytes)
    stamps_ms = (BASE_MS + number // RECORDS_PER_MS for number in range(count))
    return bytes(encode([Record(value=value, timestamp_ms=at) for at in stamps_ms]))


def _cpu_s_of_each(call: Call) -> float:
    """Return the CPU seconds of one call, over a slice of time."""
    calls, step = 0, 1
    started = time.process_time()
    while (passed := time.process_time() - started) < SLICE_S:
        for _ in range(step):
            call()
        calls, step = calls + step, step * 2
    return passed / calls


def measure(count: int, value_bytes: int, seconds: float) -> dict[str, float]:
    """Return what each record of such a batch costs in ns, and the ratios; medians of slices."""
    batch = plain_batch(count, value_bytes)
    size = len(batch)
    times = (HEADER_BYTES, size, count, BATCH_STRUCT.unpack_from(batch)[7])
    expected = (BASE_MS + (count - 1) // RECORDS_PER_MS, BASE_MS)
    for walk in (native.walk_records, _pure_walk.walk_records):
        newest_ms, _, oldest_ms = walk(batch, *times)
        if (newest_ms, oldest_ms) != expected:
            raise SystemExit("the walk gave other times than those of the records")
    calls: dict[str, Call] = {
        "walk": lambda: native.walk_records(batch, *times),
        "crc": lambda: verify_crc(batch, 0, size),
        "twin": lambda: _pure_walk.walk_records(batch, *times),
    }
    slices: dict[str, list[float]] = {name: [] for name in calls}
    started = time.perf_counter()
    while not slices["walk"] or time.perf_counter() - started < seconds:
        for name, call in calls.items():
            slices[name].append(_cpu_s_of_each(call))
    each = {f"{name}_ns": median(found) / count * 1e9 for name, found in slices.items()}
    ratios = {
        f"{name}_ratio": median(
            ours / theirs for ours, theirs in zip(slices["walk"], slices[name], strict=True)
        )
        for name in ("crc", "twin")
    }
    return each | ratios


def main() -> int:
    """Measure as long as the arguments say and print the result."""
    parser = argparse.ArgumentParser(prog="python -m bench.load.walk")
    parser.add_argument("--records", type=int, default=160)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=3)
    options = parser.parse_args()
    if not native.IS_COMPILED:
        raise SystemExit("the walk in C is not built; run `make install`")
    print(json.dumps(measure(options.records, options.value_bytes, options.seconds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
