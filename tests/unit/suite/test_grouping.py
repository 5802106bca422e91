"""The suite itself: what shares something expensive stays in one worker, failures are named."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import group_of
from tests.tidy import sources

ROOT = sources.ROOT


@pytest.mark.parametrize(
    ("node", "group"),
    [
        ("tests/unit/test_a.py::test_b[x-1]", "tests/unit/test_a.py::test_b[x-1]"),
        ("tests/daemon/test_a.py::test_b[x-1]", "tests/daemon/test_a.py"),
        ("tests/behaviour/test_a.py::test_b[kafka]", "behaviour[kafka]"),
        ("tests/behaviour/test_c.py::test_d[kafka-a - b]", "behaviour[kafka]"),
        ("tests/behaviour/test_c.py::test_d[dlogd-1]", "behaviour[dlogd]"),
    ],
)
def test_what_a_test_shares(node: str, group: str) -> None:
    assert group_of(node) == group


def test_workers_are_given_whole_groups(request: pytest.FixtureRequest) -> None:
    """The hook is the one that the installed pytest-xdist calls."""
    manager = request.config.pluginmanager
    calls = [each.plugin_name for each in manager.hook.pytest_xdist_make_scheduler.get_hookimpls()]
    assert any(name.endswith("conftest.py") for name in calls)


def test_a_failure_is_named_at_once(tmp_path: Path) -> None:
    """A run that takes too long is ended, and never comes to its report."""
    file = tmp_path / "test_it.py"
    file.write_text("def test_it():\n    raise OSError('no such luck')\n")
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "tests.conftest", str(file)]
    options = ["-p", "no:cacheprovider", "--rootdir", str(tmp_path), "-c", "/dev/null"]
    done = subprocess.run(
        [*command, *options], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    before, _, _ = done.stdout.partition("= FAILURES =")
    assert "test_it.py::test_it (call): OSError: no such luck" in before
