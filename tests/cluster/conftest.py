"""What tests share: the stage of a file's stories; the hosts, of which a machine has one set."""

from collections.abc import Iterator

import pytest

from tests.cluster.hosts import Hosts
from tests.cluster.stage import Stage, stage_in


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    yield from stage_in(tmp_path_factory.mktemp("stage"))


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    """Three hosts. Others may have them for long: `waits_for_hosts` is for whoever needs them."""
    with Hosts(3) as found:
        yield found
