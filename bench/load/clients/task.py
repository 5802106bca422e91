"""What every client is told to do, with what records, and how it is measured.

A program gives four functions: records one by one or many at once, in or out. Each returns when the
last record is acknowledged or was seen. The time runs from making the client to that moment; the
CPU seconds are those of the whole process, library threads included. `--check` sums up checksums of
what was read: that is for a run that is not measured.
"""

import argparse
import itertools
import json
import random
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

DISTINCT_VALUES = 1_000
CHUNK_RECORDS = 10_000
"""How many records a call takes or gives where a client has calls for many."""
LINGER_MS, BATCH_BYTES = 5, 1_000_000
"""For every producer: what dlog.client and librdkafka have by default, the others less."""
READ_TIMEOUT_S = 30


@dataclass(frozen=True, slots=True)
class Task:
    """Topic and load of one run."""

    bootstrap: str
    topic: str
    partitions: int
    record_count: int
    value_bytes: int
    settings: Mapping[str, str] = field(default_factory=dict)

    def values(self) -> list[bytes]:
        """Return the values that records have, in turns."""
        return values(self.value_bytes)

    def each(self) -> Iterator[bytes]:
        """Return the values of all records."""
        return itertools.islice(itertools.cycle(self.values()), self.record_count)

    def chunk(self) -> list[bytes]:
        """Return the values of one call for many records."""
        return (self.values() * (CHUNK_RECORDS // DISTINCT_VALUES))[: self.record_count]

    def chunk_sizes(self) -> Iterator[int]:
        """Yield how many records each call for many has."""
        for start in range(0, self.record_count, CHUNK_RECORDS):
            yield min(CHUNK_RECORDS, self.record_count - start)


def values(value_bytes: int) -> list[bytes]:
    """Return the distinct values that records have."""
    rng = random.Random(0)
    return [rng.randbytes(value_bytes) for _ in range(DISTINCT_VALUES)]


def checksum(some: Sequence[bytes | None]) -> int:
    """Return a sum that does not depend on the order of records."""
    return sum(zlib.crc32(value or b"") for value in some)


def checksum_of(record_count: int, value_bytes: int) -> int:
    """Return what a reader of `record_count` records must find."""
    sums = [zlib.crc32(value) for value in values(value_bytes)]
    rounds, rest = divmod(record_count, DISTINCT_VALUES)
    return rounds * sum(sums) + sum(sums[:rest])


@dataclass(slots=True)
class Seen:
    """What a reader has seen."""

    record_count: int = 0
    value_bytes: int = 0
    checksum: int = 0
    deadline_s: float = field(default_factory=lambda: time.monotonic() + READ_TIMEOUT_S)

    def check_time(self) -> None:
        """End the program when nothing more comes; called when a read gave nothing."""
        if time.monotonic() > self.deadline_s:
            raise SystemExit(f"only {self.record_count} records in {READ_TIMEOUT_S} s")


Produce = Callable[[Task], None]
Consume = Callable[[Task, bool], Seen]


def run(
    *,
    one: Produce | None = None,
    many: Produce | None = None,
    read: Consume | None = None,
    read_many: Consume | None = None,
) -> int:
    """Do what the arguments say and print the result: the whole of a client's program."""
    does = {"produce": one, "produce-many": many, "consume": read, "consume-many": read_many}
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--value-bytes", type=int, required=True)
    parser.add_argument("--do", choices=[name for name, work in does.items() if work])
    parser.add_argument("--setting", action="append", default=[], help="of the library: key=value")
    parser.add_argument("--check", action="store_true", help="sum up checksums of what is read")
    options = parser.parse_args()
    task = Task(
        options.bootstrap,
        options.topic,
        options.partitions,
        options.records,
        options.value_bytes,
        dict(setting.split("=", 1) for setting in options.setting),
    )
    producing = {"produce": one, "produce-many": many}.get(options.do)
    consuming = {"consume": read, "consume-many": read_many}.get(options.do)
    # kio, which dlog.client imports when it connects, registers strategies with a hypothesis that
    # is installed, in 0.14 s. It is here for the tests; where programs run it is not.
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    started, cpu = time.perf_counter(), time.process_time()
    seen = None
    if producing is not None:
        producing(task)
    elif consuming is not None:
        seen = consuming(task, options.check)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    print(json.dumps(result_of(task, seen, seconds, cpu)))
    return 0


def result_of(task: Task, seen: Seen | None, seconds: float, cpu_s: float) -> dict[str, float]:
    """Return the figures of a run; end the program when its reader has missed something."""
    value_bytes = task.record_count * task.value_bytes
    result: dict[str, float] = {
        "records": task.record_count,
        "seconds": seconds,
        "records_per_s": task.record_count / seconds,
        "mb_per_s": value_bytes / seconds / 1e6,
        "value_bytes": value_bytes,
        "client_cpu_s": cpu_s,
        "client_cpu_us": cpu_s / task.record_count * 1e6,
    }
    if seen is not None:
        if (seen.record_count, seen.value_bytes) != (task.record_count, value_bytes):
            raise SystemExit(f"{seen.record_count} records of {seen.value_bytes} bytes were read")
        result["checksum"] = seen.checksum
    return result
