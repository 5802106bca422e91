"""A fetch that may hold less than there is does not wait for more."""

import asyncio
from pathlib import Path

import pytest

from dlogd.server.handlers import fetch_answers
from dlogd.storage.log.disk_search import SEARCHES_MAX
from tests.fakes.fetched_logs import ReaderStandIn, check, fill, forget_what_is_in_memory
from tests.fakes.front import Front, fetch_frame, until
from tests.fakes.logs import values_in


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


@pytest.mark.parametrize("topics", [[], [("a", 0)]])
def test_a_request_that_names_no_partition_is_answered_at_once(
    tmp_path: Path, topics: list[tuple[str, int]]
) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path, ["a"]) as front:
            client = await front.connect()
            options = {"max_wait_ms": 60_000, "min_bytes": 4000}
            await client.send(fetch_frame(topics, partitions=(), **options))
            assert await asyncio.wait_for(client.fetched(), 10) == {}

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


@pytest.mark.parametrize("is_topic_again", [False, True])
def test_a_partition_that_is_named_again_is_searched_once(
    tmp_path: Path, is_topic_again: bool
) -> None:
    """As in Kafka, what is said last counts. Else 100,000 searches fit into one small request."""

    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            await fill(front.partition("t"), 5)
            forget_what_is_in_memory(front.partition("t"))
            searches: list[int] = []
            reader = front.partition("t").log.reader

            async def counting(offset: int) -> None:
                searches.append(offset)
                await reader.locate(offset)

            ReaderStandIn(front.partition("t"), locate=counting)
            client = await front.connect()
            wanted = [("t", offset % 3) for offset in range(1000)] + [("t", 3)]
            if is_topic_again:
                await client.send(fetch_frame(wanted))
            else:
                await client.send(fetch_frame([("t", 3)], partitions=[0] * 1000))
            found = await asyncio.wait_for(client.fetched(), 10)
            assert [offset for offset, _ in values_in(found["t"][1])] == [3, 4]
            assert searches == [3]

    check(scenario)


def test_nothing_is_searched_any_more_for_a_client_that_has_gone(tmp_path: Path) -> None:
    """Else clients that come and go leave ever more searches behind."""

    async def scenario() -> None:
        topics = [f"t{number}" for number in range(SEARCHES_MAX + 10)]
        async with Front.open(tmp_path, topics) as front:
            gate = asyncio.Event()
            searches: list[int] = []

            async def late(offset: int) -> None:
                searches.append(offset)
                await gate.wait()

            for topic in topics:
                await fill(front.partition(topic), 2)
                forget_what_is_in_memory(front.partition(topic))
                ReaderStandIn(front.partition(topic), locate=late)
            client = await front.connect()
            await client.send(fetch_frame([(topic, 1) for topic in topics]))
            await until(lambda: len(searches) == SEARCHES_MAX)
            client.close()
            await until(lambda: not front.listener.connection_count)
            gate.set()
            await until(lambda: not len(front.tasks))
            assert len(searches) == SEARCHES_MAX

    check(scenario)
