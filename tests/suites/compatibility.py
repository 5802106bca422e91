"""The page docs/compatibility.md: outcomes of foreign suites, and reasons for differences.

Pure. A test that passes on Apache Kafka and not on dlog needs a reason in `reasons.REASONS`.
"""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from tests.suites.outcomes import FAILED, PASSED, SKIPPED, SuiteResult
from tests.suites.reasons import REASONS, Reason
from tests.suites.running import SUITES

PATH = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"

HEAD = """# Test suites of other projects

Test suites that other projects wrote for Apache Kafka run against dlog and against Apache Kafka,
one node each. `make suites` runs them and makes this page. The outcomes are kept in
`tests/suites/results.json`, the reasons in `tests/suites/reasons.py`.
"""


def page(results: Sequence[SuiteResult]) -> str:
    """Return the page."""
    parts = [HEAD, _table(results)]
    for suite in SUITES:
        ours, theirs = pair(results, suite.name)
        if ours is not None and theirs is not None:
            parts.append(_differences(ours, theirs))
    return "\n".join(parts)


def pair(
    results: Iterable[SuiteResult], suite: str
) -> tuple[SuiteResult | None, SuiteResult | None]:
    """Return what a suite said of dlog and of Kafka."""
    found = {each.server.split()[0]: each for each in results if each.suite == suite}
    return found.get("dlog"), found.get("kafka")


def differences(ours: SuiteResult, theirs: SuiteResult) -> list[str]:
    """Return the tests that pass on Kafka and not on dlog."""
    return sorted(
        name
        for name, found in theirs.outcomes.items()
        if found == PASSED and ours.outcomes.get(name) != PASSED
    )


def reason_for(suite: str, test: str) -> Reason | None:
    """Return the first reason that fits."""
    return next((r for r in REASONS if r.suite == suite and fnmatchcase(test, r.tests)), None)


def unexplained(results: Sequence[SuiteResult]) -> list[str]:
    """Return the tests that differ, or fail on dlog alone or on both, without a reason."""
    missing: list[str] = []
    for suite in SUITES:
        ours, theirs = pair(results, suite.name)
        if ours is None or theirs is None:
            continue
        failed = {name for name, found in ours.outcomes.items() if found == FAILED}
        missing += [
            f"{suite.name}: {name}"
            for name in sorted(failed.union(differences(ours, theirs)))
            if reason_for(suite.name, name) is None
        ]
    return missing


def _table(results: Sequence[SuiteResult]) -> str:
    lines = [
        "| suite | server | passed | failed | skipped | date |",
        "|---|---|---|---|---|---|",
    ]
    for suite in SUITES:
        for each in pair(results, suite.name):
            if each is not None:
                counts = " | ".join(str(each.counts[kind]) for kind in (PASSED, FAILED, SKIPPED))
                lines.append(
                    f"| {suite.name} {each.version}: {suite.what} | {each.server} | {counts}"
                    f" | {each.date} |"
                )
    return "\n".join(lines) + "\n"


def _differences(ours: SuiteResult, theirs: SuiteResult) -> str:
    lines = [f"## {ours.suite}", ""]
    names = differences(ours, theirs)
    failed = [n for n, found in sorted(ours.outcomes.items()) if found == FAILED and n not in names]
    if not names and not failed:
        return "\n".join([*lines, "No test differs.", ""])
    lines += ["| test | dlog | Kafka | reason |", "|---|---|---|---|"]
    for name in [*names, *failed]:
        reason = reason_for(ours.suite, name)
        lines.append(
            f"| `{name}` | {ours.outcomes.get(name, 'not run')}"
            f" | {theirs.outcomes.get(name, 'not run')} | {reason.why if reason else ''} |"
        )
    return "\n".join([*lines, ""])
