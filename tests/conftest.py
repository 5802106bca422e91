"""What holds for every test: what may run side by side, and that a skip is never silent."""

import os
from fnmatch import fnmatch
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
# One server, one loop device, one crash loop: the tests of a file share it and stay in one worker.
ONE_WORKER_PER_FILE = ("behaviour", "clients", "cluster", "crash", "daemon", "fuzz")

_skipped: list[tuple[str, str]] = []


def allowed_skips() -> list[str]:
    """Return the patterns of `allowed-skips`."""
    lines = (HERE / "allowed-skips").read_text(encoding="utf-8").splitlines()
    return [line.split()[0] for line in lines if line.strip() and not line.startswith("#")]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of one file together where they share something expensive."""
    for item in items:
        parts = item.path.relative_to(HERE).parts if item.path.is_relative_to(HERE) else ()
        grouped = item.get_closest_marker("xdist_group") is not None
        if parts and parts[0] in ONE_WORKER_PER_FILE and not grouped:
            item.add_marker(pytest.mark.xdist_group("/".join(parts)))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember every skip; with workers this runs in the controller."""
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        _skipped.append((report.nodeid, reason))


def _refused_skips() -> list[tuple[str, str]]:
    if os.environ.get("CI") != "true":
        return []
    patterns = allowed_skips()
    return [
        (node, why)
        for node, why in _skipped
        if not any(fnmatch(node.partition("@")[0], pattern) for pattern in patterns)
    ]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the skips that CI does not accept."""
    refused = _refused_skips()
    if refused:
        terminalreporter.section("skips that tests/allowed-skips does not list")
        for node, why in refused:
            terminalreporter.line(f"{node}: {why}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run when it skipped what it must not skip."""
    if session.exitstatus == 0 and _refused_skips():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
