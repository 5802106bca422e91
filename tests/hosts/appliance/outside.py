"""What surrounds a cluster of hosts in a test: producers, their judges, and the sampler.

Each is a process in the rig's network namespace. `Outside` is a `with` block: everything writes
and samples from its beginning to its end, and then `report` says what clients noticed.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.hosts.appliance import restarts, sampling
from tests.hosts.appliance.bundles import ROOT
from tests.hosts.rig.rig import Rig

PORT = 9092
READY_S = 90.0
END_S = 300.0
AFTER_S = 30
MEASURED = "measured"
PARTITIONS = 6
MIN_ISR = 2


@dataclass(slots=True)
class Report:
    """What was noticed from outside."""

    what: str
    stall_s: float
    records: dict[str, Any]
    breaches: list[str] = field(default_factory=list)
    """Of the rules of rolling operations."""
    seconds: float = 0.0
    load_average: float = 0.0

    def __str__(self) -> str:
        told = self.records
        return (
            f"{self.what}: stall={self.stall_s * 1000:.0f} ms acknowledged={told['acknowledged']}"
            f" failed={told['failed']} breaches={told['breaches']}"
            f" slowest={told['slowest_s'] * 1000:.0f} ms seconds={self.seconds:.1f}"
            f" load={self.load_average:.1f}"
        )

    def must_be_clean(self) -> None:
        """Raise AssertionError when clients or the sampler noticed what they must not."""
        assert self.records["acknowledged"] > 0
        assert self.records["failed"] == 0, self.records
        assert self.records["breaches"] == 0, self.records
        assert self.breaches == []


def bootstrap(rig: Rig) -> str:
    """Return the addresses of all nodes that run."""
    running = [host for host in rig.hosts if host.is_on and restarts.main_pid(host)]
    return ",".join(f"{host.address}:{PORT}" for host in running)


def make_topic(rig: Rig, name: str) -> None:
    """Make a topic of the load, by dlogctl of an unprivileged user of a host."""
    rig.hosts[0].ssh(
        f"dlogctl topic create {name} -p {PARTITIONS} -r 3 -s min.insync.replicas={MIN_ISR}"
        " --if-not-exists"
    )


class Outside:
    """The load and the sampler around one operation. Life: a `with` block."""

    def __init__(
        self,
        rig: Rig,
        folder: Path,
        what: str,
        *,
        results: Path | None,
        is_rolling: bool,
        measured: int,
    ) -> None:
        self._rig, self._what, self._results = rig, what, results
        self._is_rolling, self._measured = is_rolling, measured
        # Records are numbered from 0 in each block, so each has a topic of its own.
        self._topic = f"numbered-{time.monotonic_ns()}"
        self._folder = folder / self._topic
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self.since_ns = 0
        self.report: Report | None = None

    def _start(self, name: str, module: str, *arguments: str) -> None:
        log = (self._folder / f"{name}.log").open("w")
        with log:
            self._processes[name] = self._rig.popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )

    def _line(self, name: str) -> Any:
        """Return the next line of a process, of JSON."""
        process = self._processes[name]
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"{name} has ended:\n{(self._folder / f'{name}.log').read_text()}"
        return json.loads(line)

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True)
        nodes = bootstrap(self._rig)
        for name in (MEASURED, self._topic):
            make_topic(self._rig, name)
        try:
            self._start(
                "records", "tests.hosts.appliance.records",
                *("--bootstrap", nodes, "--topic", self._topic),
                *("--history", str(self._folder / "history.jsonl")),
            )  # fmt: skip
            self._start(
                "stalls", "bench.load.writing",
                *("--bootstrap", nodes, "--topic", MEASURED),
                *("--partitions", str(self._measured)),
            )  # fmt: skip
            places = ",".join(f"{host.number}={host.address}:{PORT}" for host in self._rig.hosts)
            self._start(
                "samples", "tests.hosts.appliance.sampling",
                *("--nodes", places, "--to", str(self._folder / "samples.jsonl")),
            )  # fmt: skip
            for name in self._processes:
                assert self._line(name) == "ready"
        except BaseException:
            self._kill()
            raise
        self.since_ns = time.monotonic_ns()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.report = self._finish()
                print(f"\n{self.report}", flush=True)
                if self._results is not None:
                    with self._results.open("a") as file:
                        file.write(f"{self.report}\n")
        finally:
            self._kill()

    def _ask(self, name: str, line: str) -> Any:
        process = self._processes[name]
        assert process.stdin is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()
        return self._line(name)

    def _finish(self) -> Report:
        seconds = (time.monotonic_ns() - self.since_ns) / 1e9
        waited = self._ask("stalls", f"wait {time.monotonic_ns()} {AFTER_S}")
        assert isinstance(waited, float), waited
        stall_s = self._ask("stalls", f"gap {self.since_ns}")
        for process in self._processes.values():
            assert process.stdin is not None
            process.stdin.close()
        records = self._line("records")
        self._line("samples")
        for process in self._processes.values():
            process.wait(END_S)
        self._rig.hosts[0].ssh(f"dlogctl topic delete {self._topic} --yes")
        report = Report(self._what, stall_s, records, seconds=seconds)
        report.load_average = os.getloadavg()[0]
        if self._is_rolling:
            found = [restarts.restart_of(host) for host in self._rig.hosts]
            report.breaches = restarts.breaches(found, self.samples, self.since_ns)
        return report

    @property
    def samples(self) -> list[sampling.Sample]:
        """All samples; whole after the end."""
        return sampling.load(self._folder / "samples.jsonl")

    @property
    def checked(self) -> Report:
        """The report of a block that has ended."""
        assert self.report is not None
        return self.report

    def _kill(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
