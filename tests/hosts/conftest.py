"""One rig of hosts for all tests here; skipped where systemd-nspawn cannot run.

All tests of this folder run in one worker (`tests/conftest.py`).
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.appliance.bundles import Bundles
from tests.hosts.appliance.cluster import Cluster
from tests.hosts.rig.rig import Rig
from tests.hosts.rig.why_not import why_not

HERE = Path(__file__).resolve().parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin the clock of a test when it has its rig: a machine has one, and others may use it."""
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(func_only=True))


@pytest.fixture(scope="session")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Give three hosts that have booted, as the module of tests before left them."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with Rig(tmp_path_factory.mktemp("rig")) as rig:
        yield rig


@pytest.fixture(scope="module")
def fresh_rig(rig: Rig) -> Rig:
    """Give three new hosts, the same for all tests of a module."""
    if not rig.is_untouched:
        rig.renew()
    rig.is_untouched = False
    return rig


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    """Give bundles of this tree."""
    return Bundles(tmp_path_factory.mktemp("bundles"))


@pytest.fixture(scope="session")
def operator(rig: Rig, bundles: Bundles, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """Give the operator's side."""
    return Cluster(rig, bundles, tmp_path_factory.mktemp("operator"))


@pytest.fixture(scope="module")
def bare(fresh_rig: Rig, operator: Cluster) -> Cluster:
    """Give hosts that have nothing of dlog when a module begins."""
    assert operator.rig is fresh_rig
    operator.plays.write_inventory()
    return operator


@pytest.fixture
def cluster(operator: Cluster) -> Cluster:
    """Give a healthy cluster of the oldest version: that of the test before, unless it is not."""
    operator.make_healthy()
    return operator
