"""Random lives of the replicas of one partition: what was acknowledged is on all that are in sync.

Which lives, and what must hold at each moment of them: `tests.fakes.partition_life`.
"""

import asyncio

import pytest

from tests.fakes.partition_life import PartitionLife, live, rest_never

WALKS = 60


async def walk(seed: int) -> None:
    await live(PartitionLife(seed))


@pytest.mark.parametrize("start", range(0, WALKS, 10))
def test_what_was_acknowledged_is_on_all_that_are_in_sync(
    start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest_never(monkeypatch)
    for seed in range(start, start + 10):
        asyncio.run(walk(seed))
