"""What holds for every test: what may run side by side, and that a skip is never silent."""

import os
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

HERE = Path(__file__).resolve().parent
# One server, one loop device, one crash loop: the tests of a file share it and stay in one worker.
ONE_WORKER_PER_FILE = ("attacks", "clients", "cluster", "crash", "daemon", "fuzz")
# These share one server over all files, named by the first parameter.
ONE_WORKER_PER_SERVER = ("behaviour",)

# One session of Spark, one rig of hosts for all of them.
ONE_WORKER_PER_FOLDER = ("hosts", "spark")

# Properties are tested, not speed: other work may have the cores.
settings.register_profile("no-deadline", parent=settings(), deadline=None)
settings.load_profile("no-deadline")

FAILURE_LETTERS = 1500
"""So much is told of a failure at once; the whole of it follows in the end."""

_skipped: list[tuple[str, str]] = []
_terminals: list[pytest.TerminalReporter] = []


def allowed_skips() -> list[str]:
    """Return the patterns of `allowed-skips`."""
    lines = (HERE / "allowed-skips").read_text(encoding="utf-8").splitlines()
    return [line.split()[0] for line in lines if line.strip() and not line.startswith("#")]


def group_of(node: str) -> str:
    """Return the name of what a test shares with others; its own where it shares nothing."""
    path, _, test = node.partition("::")
    folders = path.removeprefix("tests/").split("/")
    if folders[0] in ONE_WORKER_PER_FOLDER:
        return folders[0]
    if folders[0] in ONE_WORKER_PER_SERVER:
        return f"{folders[0]}[{test.partition('[')[2].partition('-')[0].rstrip(']')}]"
    return path if folders[0] in ONE_WORKER_PER_FILE else node


class GroupScheduling(LoadScopeScheduling):
    """Keep the tests of a group in one worker.

    Not by marks: `--dist loadgroup` writes those into a field that pytest 9.2 has no more, and
    without a word spreads the tests as if there were none.
    """

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


@pytest.hookimpl(optionalhook=True)  # some run without xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling:
    """Schedule by our groups, whatever `--dist` says."""
    return GroupScheduling(config, log)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Remember where to write; workers have no terminal."""
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    _terminals[:] = [] if terminal is None else [terminal]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember every skip, and name a failure at once: a run may be ended before it reports.

    With workers this runs in the controller.
    """
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        why = str(crash.message if crash else report.longrepr)[:FAILURE_LETTERS]
        for terminal in _terminals:
            terminal.write_line(f"\nfailed: {report.nodeid} ({report.when}): {why}")
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
        if not any(fnmatch(node, pattern) for pattern in patterns)
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
