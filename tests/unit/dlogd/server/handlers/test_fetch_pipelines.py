"""Many Fetch requests in a row on one connection, and those that wait for several partitions."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dlogd.server import listener as listener_module
from dlogd.server.router import LARGE_FETCH_BYTES
from tests.fakes.front import Front, fetch_frame, produce_frame, request_frame, run_on, until
from tests.fakes.logs import batch_of, values_in

LONG_MS = 60_000


def check(scenario: Callable[[], Awaitable[None]]) -> None:
    run_on(asyncio.new_event_loop, scenario())


async def produce(front: Front, topic: str, value: bytes) -> None:
    client = await front.connect()
    await client.send(produce_frame(topic, batch_of(value)))
    await client.produced()
    client.close()


@pytest.mark.parametrize("size", ["small", "large"])
def test_one_fetch_of_a_connection_waits_at_a_time(tmp_path: Path, size: str) -> None:
    """The next ones are not even parsed; they are answered in order, each from its own offset."""

    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            client = await front.connect()
            others = [("gone", 0)] * (LARGE_FETCH_BYTES // 40 if size == "large" else 0)
            frames = [
                fetch_frame([("t", offset), *others], max_wait_ms=LONG_MS, correlation_id=offset)
                for offset in range(3)
            ]
            if size == "large":  # whose other topics are refused at once
                frames[0] = fetch_frame([("t", 0)], max_wait_ms=LONG_MS, correlation_id=0)
            await client.send(*frames, request_frame(9))
            await until(lambda: front.fetch.parked)
            await asyncio.sleep(0.05)
            assert len(front.fetch.parked) == 1 and front.telemetry.api("FETCH").requests == 1
            assert not front.dispatcher.requests
            for number in range(3):
                await produce(front, "t", b"%d" % number)
            for number in range(3):
                frame = await client.receive()
                assert int.from_bytes(frame[:4], "big") == number
                assert bytes(frame).endswith(batch_of(b"%d" % number)[61:]) or size == "large"
            assert (await client.receive())[:4] == (9).to_bytes(4, "big")
            assert not front.fetch.parked

    check(scenario)


def test_other_requests_behind_a_fetch_that_waits_are_worked_on(tmp_path: Path) -> None:
    """A client may write, on the same connection, what its Fetch waits for."""

    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            client = await front.connect()
            await client.send(fetch_frame([("t", 0)], max_wait_ms=LONG_MS), request_frame(9))
            await client.send(produce_frame("t", batch_of(b"x")))
            assert [value for _, value in values_in((await client.fetched())["t"][1])] == [b"x"]
            assert (await client.receive())[:4] == (9).to_bytes(4, "big")
            await client.produced()

    check(scenario)


def test_the_time_of_a_fetch_begins_when_it_arrives(tmp_path: Path) -> None:
    """Ten in a row that wait for 300 ms take 300 ms, not three seconds."""

    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            client = await front.connect()
            loop = asyncio.get_running_loop()
            started = loop.time()
            await client.send(*[fetch_frame([("t", 0)], max_wait_ms=1000) for _ in range(10)])
            for _ in range(10):
                assert await client.fetched() == {"t": (0, b"")}
            assert 0.99 < loop.time() - started < 8  # one after the other: 10 s

    check(scenario)


def test_requests_that_wait_are_dropped_when_their_client_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is read meanwhile, so nobody hears of the end of the connection by itself."""
    monkeypatch.setattr(listener_module, "LEFT_S", 0.05)

    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            client = await front.connect()
            await client.send(*[fetch_frame([("t", 0)], max_wait_ms=LONG_MS) for _ in range(1000)])
            await until(lambda: front.telemetry.server.paused_connections)
            assert len(front.fetch.parked) == 1
            client.close()
            await until(lambda: not front.listener.connection_count)
            assert not front.fetch.parked and not front.partition("t").fetches
            assert front.telemetry.server.inflight_bytes == 0
            assert front.telemetry.api("FETCH").requests == 1

    check(scenario)


def test_a_request_of_a_client_that_has_left_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_module, "LEFT_S", 1e6)

    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            client = await front.connect()
            await client.send(*[fetch_frame([("t", 0)], max_wait_ms=LONG_MS) for _ in range(2)])
            await until(lambda: front.telemetry.server.paused_connections)
            client.close()
            await asyncio.sleep(0.05)
            (work,) = front.fetch.parked
            work.expire()
            await until(lambda: not front.listener.connection_count)
            assert front.telemetry.api("FETCH").requests == 1

    check(scenario)


def test_a_crowd_whose_time_is_over_at_once_is_answered_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            clients = [await front.connect() for _ in range(60)]
            for client in clients:
                await client.send(fetch_frame([("t", 0)], max_wait_ms=LONG_MS))
            await until(lambda: len(front.fetch.parked) == 60)
            for work in list(front.fetch.parked):
                work._on_timeout()
            assert len(front.fetch.parked) > 30
            for client in clients:
                assert await client.fetched() == {"t": (0, b"")}

    check(scenario)


# -- several partitions


@pytest.mark.parametrize("seed", range(6))
def test_several_partitions_together_are_waited_for_exactly(tmp_path: Path, seed: int) -> None:
    """Answered with the batch that makes it enough: all together, or one beyond its maximum."""
    rng = Random(seed)
    topics = [f"t{number}" for number in range(rng.choice((1, 2, 3, 8)))]
    min_bytes = rng.choice((2, 500, 5_000, 20_000))
    partition_bytes = rng.choice((1_500, 6_000, 1 << 20))

    async def scenario() -> None:
        async with Front.open(tmp_path, topics) as front:
            sizes = dict.fromkeys(topics, 0)
            for topic in topics:
                if min_bytes > 5_000 and rng.random() < 0.5:
                    await produce(front, topic, bytes(300))
                    sizes[topic] = front.partition(topic).log.size_bytes
            client = await front.connect()
            wanted = [(topic, 0) for topic in topics]
            await client.send(
                fetch_frame(
                    wanted,
                    max_wait_ms=LONG_MS,
                    min_bytes=min_bytes,
                    partition_bytes=partition_bytes,
                )
            )

            def is_enough() -> bool:
                all_bytes = list(sizes.values())
                return sum(all_bytes) >= min_bytes or max(all_bytes) > partition_bytes

            await until(lambda: front.fetch.parked)
            while not is_enough():
                assert front.fetch.parked, sizes
                topic = rng.choice(topics)
                await produce(front, topic, bytes(rng.randint(1, 800)))
                sizes[topic] = front.partition(topic).log.size_bytes
            await until(lambda: not front.fetch.parked)
            found: dict[str, Any] = await client.fetched()
            assert sum(len(records) for _, records in found.values()) > 0

    check(scenario)
