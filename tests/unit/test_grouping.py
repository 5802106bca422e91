"""Tests that share something expensive stay in one worker."""

import pytest

from tests.conftest import group_of


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
