"""The entrance of a listening socket, on real sockets by asyncio and uvloop."""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import uvloop

from dlogd.net.acceptor import Acceptor
from dlogd.net.connection_admission import Bounds, Place, Rate, Refusal
from tests.fakes.front import run_on, until

Run = Callable[[Callable[[], Awaitable[None]]], None]
WIDE = Rate(per_s=1000, burst=1000)
BOUNDS = Bounds(count_max=4, per_address_max=3, per_address_rate=WIDE, rate=WIDE)


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    return lambda scenario: run_on(request.param, scenario())


class Echo(asyncio.Protocol):
    """Sends back what it gets, and a greeting."""

    def __init__(self, place: "Place[Echo]") -> None:
        self.place = place
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(b"hello ")

    def data_received(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.place.leave()

    def on_displaced(self) -> None:
        assert self.transport is not None
        self.transport.abort()


class Hall:
    """A listening socket with an entrance, and clients from any address of loopback."""

    def __init__(self, bounds: Bounds) -> None:
        self.made: list[Echo] = []
        self.refused: Counter[tuple[str, Refusal]] = Counter()
        self.now_us = 1_000_000
        self.entrance: Acceptor = Acceptor(
            "test", bounds, lambda: self.now_us, self.make, self.on_refused, {}
        )
        self.address: tuple[str, int] = ("", 0)
        self.writers: list[asyncio.StreamWriter] = []

    def make(self, place: Place[Echo]) -> Echo:
        self.made.append(Echo(place))
        return self.made[-1]

    def on_refused(self, name: str, reason: Refusal) -> None:
        self.refused[name, reason] += 1

    async def connect(self, source: str) -> Any:
        """Connect; return what reads."""
        reader, writer = await asyncio.open_connection(*self.address, local_addr=(source, 0))
        self.writers.append(writer)
        return reader

    async def served(self, source: str) -> Any:
        """Connect and be let in."""
        reader = await self.connect(source)
        assert await reader.readexactly(6) == b"hello "
        return reader


@asynccontextmanager
async def hall_of(bounds: Bounds) -> Any:
    hall = Hall(bounds)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: hall.entrance, "127.0.0.1", 0)
    hall.address = server.sockets[0].getsockname()[:2]
    try:
        yield hall
    finally:
        server.close()
        for writer in hall.writers:
            writer.transport.abort()
        await until(lambda: not hall.entrance.admission.count)


async def is_closed(reader: Any) -> bool:
    try:
        return bool(await asyncio.wait_for(reader.read(), 5) == b"")
    except ConnectionError:
        return True


def test_a_refused_connection_is_closed_before_an_object_is_made(run: Run) -> None:
    async def scenario() -> None:
        async with hall_of(BOUNDS) as hall:
            for _ in range(3):
                await hall.served("127.0.0.2")
            for _ in range(10):
                assert await is_closed(await hall.connect("127.0.0.2"))
            await hall.served("127.0.0.1")
            assert len(hall.made) == 4
            assert hall.refused == {("test", Refusal.ADDRESS_FULL): 10}

    run(scenario)


def test_who_comes_too_fast_is_closed_and_the_others_get_in(run: Run) -> None:
    async def scenario() -> None:
        rate = Rate(per_s=1, burst=2)
        bounds = Bounds(count_max=99, per_address_max=99, per_address_rate=rate, rate=WIDE)
        async with hall_of(bounds) as hall:
            for _ in range(2):
                await hall.served("127.0.0.2")
            for _ in range(5):
                assert await is_closed(await hall.connect("127.0.0.2"))
            await hall.served("127.0.0.1")
            assert hall.refused == {("test", Refusal.ADDRESS_RATE): 5}
            hall.now_us += 1_000_000
            await hall.served("127.0.0.2")

    run(scenario)


def test_in_a_full_hall_the_newest_of_the_crowd_gives_way(run: Run) -> None:
    async def scenario() -> None:
        async with hall_of(BOUNDS) as hall:
            oldest = await hall.served("127.0.0.1")
            crowd = [await hall.served("127.0.0.2") for _ in range(3)]
            newcomer = await hall.served("127.0.0.3")
            assert await is_closed(crowd[2])
            assert hall.refused == {("test", Refusal.DISPLACED): 1}
            for each, reader in ((0, oldest), (1, crowd[0]), (2, crowd[1]), (4, newcomer)):
                hall.made[each].transport.write(b"still here")
                assert await reader.readexactly(10) == b"still here"
            assert hall.entrance.admission.count == 4

    run(scenario)


def test_refusals_are_one_line_a_minute_for_each_address(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with hall_of(BOUNDS) as hall:
            for _ in range(3):
                await hall.served("127.0.0.2")
            for later_us in (0, 1, 59_000_000, 1_000_000):
                hall.now_us += later_us
                assert await is_closed(await hall.connect("127.0.0.2"))

    with caplog.at_level(logging.WARNING):
        run(scenario)
    lines = [each.getMessage() for each in caplog.records if "Refused" in each.getMessage()]
    assert [line.partition(" places_taken")[0] for line in lines] == [
        "Refused connections listener=test address=127.0.0.2 reason=address_full count=1",
        "Refused connections listener=test address=127.0.0.2 reason=address_full count=3",
    ]


def test_a_client_that_resets_at_once_leaves_no_place_behind(run: Run) -> None:
    async def scenario() -> None:
        async with hall_of(BOUNDS) as hall:
            for _ in range(20):
                with socket.socket() as sock:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    sock.connect(hall.address)
                await asyncio.sleep(0)
            await until(lambda: not hall.entrance.admission.count)
            for _ in range(3):
                await hall.served("127.0.0.1")

    run(scenario)
