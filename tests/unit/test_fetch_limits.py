"""A fetch that may hold less than there is does not wait for more."""

import asyncio
from pathlib import Path

import pytest

from dlogd.server.handlers import fetch_answers
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


def test_no_answer_is_larger_than_the_node_bears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a client that sets no limit gets all there is, at most 2 GiB of it."""
    monkeypatch.setattr(fetch_answers, "BYTES_MAX", 3300)

    async def scenario() -> None:
        async with Front.open(tmp_path, ["a", "b"]) as front:
            client = await front.connect()
            await fill(front.partition("a"), 4)
            await fill(front.partition("b"), 1)
            no_limits = {"max_bytes": (1 << 31) - 1, "partition_bytes": (1 << 31) - 1}
            frame = fetch_frame(
                [("a", 0), ("b", 0)], max_wait_ms=60_000, min_bytes=1 << 30, **no_limits
            )
            await client.send(frame)
            found = await asyncio.wait_for(client.fetched(), 10)
            assert [len(values_in(records)) for _, records in found.values()] == [3, 0]

    check(scenario)
