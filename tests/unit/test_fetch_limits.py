"""A fetch that may hold less than there is does not wait for more."""

import asyncio
from pathlib import Path

import pytest

from tests.fakes.front import Front, fetch_frame
from tests.fakes.logs import values_in
from tests.unit.test_fetch_handler import check, fill


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"partition_bytes": 2500}, [2, 1]),  # a third batch of "a" does not fit
        ({"max_bytes": 2500}, [2, 0]),
        ({"max_bytes": 3300, "min_bytes": 3300}, [3, 0]),
    ],
)
def test_what_does_not_fit_is_not_waited_for(
    tmp_path: Path, limits: dict[str, int], expected: list[int]
) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path, ["a", "b"]) as front:
            client = await front.connect()
            await fill(front.partition("a"), 3)
            await fill(front.partition("b"), 1)
            options = {"min_bytes": 4000, **limits}
            await client.send(fetch_frame([("a", 0), ("b", 0)], max_wait_ms=60_000, **options))
            found = await asyncio.wait_for(client.fetched(), 10)
            assert [len(values_in(records)) for _, records in found.values()] == expected

    check(scenario)
