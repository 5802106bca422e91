"""Bounds on partitions that parked Fetch requests watch: of a node, of an address, in time."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from dlogd.server.handlers import fetch as fetch_handler
from dlogd.server.handlers import fetch_waiting
from dlogd.server.handlers.fetch_waiting import WatchBudget
from tests.fakes.front import Client, Front, fetch_frame, produce_frame, run_on, until
from tests.fakes.logs import batch_of, values_in

LONG_MS = 60_000
TOPICS = ["a", "b", "c", "d", "e", "f"]
ALL = [(topic, 0) for topic in TOPICS]


def check(scenario: Callable[[], Awaitable[None]]) -> None:
    run_on(asyncio.new_event_loop, scenario())


@pytest.fixture(autouse=True)
def bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let requests of all six partitions be counted, two of an address and three of the node."""
    monkeypatch.setattr(fetch_waiting, "UNCOUNTED", 1)
    monkeypatch.setattr(fetch_waiting, "WATCHED_MAX", 18)
    monkeypatch.setattr(fetch_waiting, "WATCHED_OF_ADDRESS_MAX", 12)
    monkeypatch.setattr(fetch_waiting, "LEAVING_AT_ONCE", 4)
    monkeypatch.setattr(fetch_handler, "UNWATCHED_WAIT_MS", 300)


async def parked(front: Front, count: int) -> list[Client]:
    """Return clients whose Fetch for all partitions is parked."""
    clients = []
    for number in range(count):
        clients.append(await front.connect())
        await clients[-1].send(fetch_frame(ALL, max_wait_ms=LONG_MS))
        await until(lambda number=number: len(front.fetch.parked) == number + 1)
    return clients


def watchers(front: Front) -> int:
    return sum(len(front.partition(topic).fetches) for topic in TOPICS)


def test_beyond_the_bound_a_fetch_is_answered_and_the_next_one_waits(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path, topics=TOPICS) as front:
            await parked(front, 2)
            assert front.fetch.watches.used == 12
            loop = asyncio.get_running_loop()
            one = await front.connect()
            await one.send(fetch_frame(ALL, max_wait_ms=LONG_MS))
            assert await one.fetched() == {topic: (0, b"") for topic in TOPICS}
            assert len(front.fetch.parked) == 2 and watchers(front) == 12
            answered = loop.time()
            await one.send(fetch_frame(ALL, max_wait_ms=LONG_MS))
            writer = await front.connect()
            await writer.send(produce_frame("c", batch_of(b"x")))
            await writer.produced()
            found = await one.fetched()
            assert [value for _, value in values_in(found["c"][1])] == [b"x"]
            assert loop.time() - answered > 0.25

    check(scenario)


def test_a_fetch_of_few_partitions_is_always_woken(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path, topics=TOPICS) as front:
            await parked(front, 2)
            one = await front.connect()
            await one.send(fetch_frame([("c", 0)], max_wait_ms=LONG_MS))
            await until(lambda: len(front.fetch.parked) == 3)
            writer = await front.connect()
            await writer.send(produce_frame("c", batch_of(b"x")))
            found = await one.fetched()
            assert [value for _, value in values_in(found["c"][1])] == [b"x"]

    check(scenario)


@pytest.mark.parametrize("min_bytes", [1, 1000])
def test_what_was_counted_is_given_back(tmp_path: Path, min_bytes: int) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path, topics=TOPICS) as front:
            one = await front.connect()
            await one.send(fetch_frame(ALL, max_wait_ms=300, min_bytes=min_bytes))
            await until(lambda: front.fetch.watches.used == 6)
            writer = await front.connect()
            await writer.send(produce_frame("c", batch_of(b"x")))
            await writer.produced()
            await one.fetched()
            assert front.fetch.watches.used == 0 and not watchers(front)
            assert not front.fetch.watches._by_address

    check(scenario)


def test_closed_connections_cease_to_watch_a_few_partitions_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path, topics=TOPICS) as front:
            clients = await parked(front, 2)
            counts: list[int] = []
            leave = WatchBudget._leave_some

            def leave_some(budget: WatchBudget) -> None:
                before = watchers(front)
                leave(budget)
                counts.append(before - watchers(front))

            monkeypatch.setattr(WatchBudget, "_leave_some", leave_some)
            for client in clients:
                client.close()
            await until(lambda: not front.fetch.watches.used)
            assert counts and max(counts) == 4 and sum(counts) == 12
            assert not watchers(front) and not front.fetch.parked
            await parked(front, 2)

    check(scenario)


def test_an_address_leaves_room_for_others() -> None:
    budget = WatchBudget(asyncio.new_event_loop())
    assert budget.take("a", 12) and not budget.take("a", 2) and budget.take("a", 1)
    assert budget.take("b", 6) and not budget.take("c", 2)
    budget.give_back("a", 12)
    budget.give_back("a", 1)
    assert budget.take("c", 12) and budget.used == 18
