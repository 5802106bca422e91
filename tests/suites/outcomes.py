"""Outcomes of foreign tests: read from reports, and kept in `results.json`.

Pure but for `load` and `save`. A test has one outcome per server, with all its subtests.
"""

import json
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
RESULTS = Path(__file__).with_name("results.json")

Outcomes = dict[str, str]
"""Test name to PASSED, FAILED or SKIPPED."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteResult:
    """What one suite said of one server."""

    suite: str
    server: str  # with its version
    version: str  # of the suite
    date: str
    outcomes: Outcomes = field(default_factory=dict)

    @property
    def counts(self) -> Counter[str]:
        """How many tests had each outcome."""
        return Counter(self.outcomes.values())


def of_junit(text: str) -> Outcomes:
    """Read a JUnit XML report as pytest writes it; a test that errs counts as failed."""
    outcomes: Outcomes = {}
    for case in ET.fromstring(text).iter("testcase"):
        name = str(case.get("name"))
        found = PASSED
        if case.find("skipped") is not None:
            found = SKIPPED
        if case.find("failure") is not None or case.find("error") is not None:
            found = FAILED
        if outcomes.get(name) != FAILED:
            outcomes[name] = found
    return outcomes


def of_go(lines: Iterable[str]) -> Outcomes:
    """Read what `go test -json` prints. A test that began and did not end has failed."""
    outcomes: Outcomes = {}
    named = {"pass": PASSED, "fail": FAILED, "skip": SKIPPED, "run": FAILED}
    for line in lines:
        try:
            event: dict[str, Any] = json.loads(line)
        except ValueError:
            continue  # the compiler's own words
        test, found = str(event.get("Test", "")), named.get(str(event.get("Action")))
        if test and "/" not in test and found is not None:
            outcomes[test] = found
    return outcomes


def to_junit(suite: str, outcomes: Mapping[str, str]) -> str:
    """Return a JUnit XML report."""
    root = ET.Element("testsuite", name=suite, tests=str(len(outcomes)))
    for name, found in sorted(outcomes.items()):
        case = ET.SubElement(root, "testcase", classname=suite, name=name)
        if found != PASSED:
            ET.SubElement(case, "failure" if found == FAILED else "skipped")
    return ET.tostring(root, encoding="unicode")


def load(path: Path = RESULTS) -> list[SuiteResult]:
    """Return the results that were kept last."""
    return [SuiteResult(**each) for each in json.loads(path.read_text(encoding="utf-8"))]


def save(results: Iterable[SuiteResult], path: Path = RESULTS) -> None:
    """Keep results in the place of those of the same suite and kind of server."""
    kept = {_key(each): each for each in (load(path) if path.exists() else [])}
    kept |= {_key(each): each for each in results}
    rows = [
        {
            "suite": each.suite,
            "server": each.server,
            "version": each.version,
            "date": each.date,
            "outcomes": dict(sorted(each.outcomes.items())),
        }
        for _, each in sorted(kept.items())
    ]
    path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def _key(result: SuiteResult) -> tuple[str, str]:
    return result.suite, result.server.split()[0]
