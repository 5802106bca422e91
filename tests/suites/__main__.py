"""Runs foreign suites against dlog and Apache Kafka, and writes docs/compatibility.md.

    python -m tests.suites [--suite NAME] [--server dlog|kafka] [--only PATTERN]

One node each, with the server's defaults. With `--only` nothing is written down. Exit code 1 when a
test fails on dlog for no known reason.
"""

import argparse
import datetime
import sys
import tempfile
from pathlib import Path

from bench.peers.dlog import DlogServer
from bench.peers.kafka import VERSION, KafkaServer
from bench.peers.server import Server
from dlog.version import VERSION as DLOG_VERSION
from tests.suites import compatibility, outcomes
from tests.suites.outcomes import SuiteResult
from tests.suites.running import SUITES, Suite

# What Kafka does by default, and the tests expect.
SERVERS: dict[str, tuple[type[Server], str, dict[str, str]]] = {
    "dlog": (
        DlogServer,
        f"dlog {DLOG_VERSION}",
        {"topic.auto_create": "true", "retention.check.interval": "1s"},
    ),
    "kafka": (KafkaServer, f"kafka {VERSION}", {"log.retention.check.interval.ms": "1000"}),
}


def run(suite: Suite, server: str, folder: Path, only: str) -> SuiteResult:
    """Run one suite against a server of its own."""
    make, name, overrides = SERVERS[server]
    home = folder / f"{suite.name}-{server}"
    node = make(home, overrides=overrides)  # type: ignore[call-arg]
    node.start()
    try:
        found, version = suite.run(node.bootstrap, home, only)
    finally:
        node.stop()
    today = datetime.date.today().isoformat()
    return SuiteResult(suite=suite.name, server=name, version=version, date=today, outcomes=found)


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.suites")
    parser.add_argument("--suite", choices=[each.name for each in SUITES])
    parser.add_argument("--server", choices=list(SERVERS))
    parser.add_argument("--only", default="", help="names of tests, as the suite's own tool wants")
    options = parser.parse_args()
    unexplained: list[str] = []
    with tempfile.TemporaryDirectory(prefix="dlog-suites-") as scratch:
        for suite in SUITES:
            for server in SERVERS:
                if options.suite not in (None, suite.name) or options.server not in (None, server):
                    continue
                result = run(suite, server, Path(scratch), options.only)
                counts = ", ".join(
                    f"{count} {kind}" for kind, count in sorted(result.counts.items())
                )
                print(f"{suite.name} on {result.server}: {counts}", flush=True)
                if not options.only:
                    outcomes.save([result])
                for name, found in sorted(result.outcomes.items()):
                    if found == outcomes.FAILED:
                        print(f"  failed: {name}")
        if not options.only:
            results = outcomes.load()
            compatibility.PATH.write_text(compatibility.page(results), encoding="utf-8")
            unexplained = compatibility.unexplained(results)
            for name in unexplained:
                print(f"no reason is known: {name}")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
