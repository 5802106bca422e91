"""The stage that the stories of a file share."""

from collections.abc import Iterator

import pytest

from tests.cluster.stage import Stage, stage_in


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    yield from stage_in(tmp_path_factory.mktemp("stage"))
