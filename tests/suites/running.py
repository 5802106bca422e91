"""Runs a foreign suite against a server that runs already, and returns its outcomes."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.peers.kafka import VERSION as KAFKA_VERSION
from bench.peers.server import StartError
from tests.suites import old_clients, outcomes, sources
from tests.suites.outcomes import Outcomes

TIMEOUT_S = 3600
PARTITIONS_MAX = 7
RECORDS = 20_000


def kafka_python(bootstrap: str, folder: Path, only: str = "") -> tuple[Outcomes, str]:
    """Run kafka-python's integration tests; `only` is pytest's `-k`. Return also the version."""
    source, version = sources.kafka_python()
    report = folder / "kafka-python.xml"
    names = ("producer", "consumer", "admin")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += [
        "--timeout",
        "60",
        "--timeout-method",
        "signal",
        f"--junitxml={report}",
        *(["-k", only] if only else []),
    ]
    command += [f"test/integration/test_{name}_integration.py" for name in names]
    extra = {
        "KAFKA_ROOT": ".",
        "KAFKA_VERSION": KAFKA_VERSION,
        "KAFKA_URI": f"kafka://{bootstrap}",
        "PYTHONPATH": str(source),
    }
    told = folder / "kafka-python.log"
    _run(command, source, told, extra)
    if not report.exists():
        raise StartError(f"kafka-python's tests wrote no report: {told.read_text()[-2000:]}")
    return outcomes.of_junit(report.read_text(encoding="utf-8")), version


def franz_go(bootstrap: str, folder: Path, only: str = "") -> tuple[Outcomes, str]:
    """Run franz-go's tests of `kgo`; `only` is Go's `-run`. Return outcomes and version.

    Most are its own unit tests; those that need a broker use KGO_SEEDS.
    """
    source, version = sources.franz_go()
    command = ["go", "tool", "test2json", "-t", "./kgo.test", "-test.v=test2json"]
    command += [f"-test.timeout={TIMEOUT_S}s", *([f"-test.run={only}"] if only else [])]
    extra = {
        "KGO_SEEDS": bootstrap,
        "KGO_TEST_RF": "1",
        "KGO_TEST_RECORDS": str(RECORDS),
        "KGO_TEST_MAX_TOPIC_PARTS": str(PARTITIONS_MAX),
    }
    told = folder / "franz-go.json"
    _run(command, source, told, extra)
    found = outcomes.of_go(told.read_text(encoding="utf-8", errors="replace").splitlines())
    (folder / "franz-go.xml").write_text(outcomes.to_junit("franz-go", found), encoding="utf-8")
    return found, version


def _run(command: list[str], folder: Path, output: Path, extra: Mapping[str, str]) -> None:
    """Run to the end; the exit code says whether all passed, which the report says as well."""
    with output.open("wb") as told:
        subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=told,
            stderr=subprocess.STDOUT,
            env={**os.environ, **extra},
            timeout=TIMEOUT_S,
            check=False,
        )


@dataclass(frozen=True, slots=True)
class Suite:
    """A suite of another project."""

    name: str
    what: str
    run: Callable[[str, Path, str], tuple[Outcomes, str]]


SUITES = (
    Suite("franz-go", "tests of `pkg/kgo`, most of them without a broker", franz_go),
    Suite("old-clients", "batches, retention and search by time of old clients", old_clients.run),
    Suite("kafka-python", "integration tests of producer, consumer and admin", kafka_python),
)
