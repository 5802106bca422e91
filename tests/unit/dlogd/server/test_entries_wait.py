"""Requests with many entries at the listener: they wait for room, and nothing of them stays."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from dlog.errors import ProtocolError
from dlog.wire.apis import ApiKey
from dlogd.server import connection as connection_module
from dlogd.server.dispatch import make_handlers
from dlogd.server.router import LARGE_FETCH_BYTES
from tests.fakes.front import Client, Front, fetch_frame, request_frame, response_of, run_on, until

Run = Callable[[Callable[[], Awaitable[None]]], None]
ENTRIES_MAX = 40_000
LARGE = bytes(45_000)
"""45,000 entries at most: one of these fits into the half that large requests have, two do not."""


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    return lambda scenario: run_on(request.param, scenario())


class Held:
    """Answers that are made when the test says so."""

    def __init__(self, front: Front) -> None:
        self.begun: list[int] = []
        self._releases: dict[int, asyncio.Event] = {}
        front.dispatcher.answer = self._answer

    async def _answer(self, header: Any) -> bytes:
        self.begun.append(header.correlation_id)
        await self._releases.setdefault(header.correlation_id, asyncio.Event()).wait()
        return response_of(header, b"")

    def release(self, number: int) -> None:
        """Let one request be answered."""
        self._releases.setdefault(number, asyncio.Event()).set()


async def number_of(client: Client) -> int:
    return int.from_bytes((await client.receive())[:4], "big")


def test_large_requests_are_answered_one_after_the_other(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path, entries_max=ENTRIES_MAX) as front:
            held, metrics = Held(front), front.telemetry.server
            first, second, small = [await front.connect() for _ in range(3)]
            await first.send(request_frame(1, LARGE))
            await until(lambda: held.begun == [1])
            # What comes behind waits with it: answers leave in order.
            await second.send(request_frame(2, LARGE), request_frame(3))
            await until(lambda: metrics.entries_waiting == 1)
            await small.send(request_frame(4))
            await until(lambda: held.begun == [1, 4])
            held.release(4)
            assert await number_of(small) == 4
            held.release(1)
            assert await number_of(first) == 1
            await until(lambda: held.begun == [1, 4, 2, 3])
            held.release(2)
            held.release(3)
            assert [await number_of(second) for _ in range(2)] == [2, 3]
            assert (metrics.entries_waits_total, metrics.inflight_entries) == (1, 0)
            assert front.dispatcher.bodies[2] == LARGE

    run(scenario)


def test_clients_that_leave_take_their_requests_with_them(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path, entries_max=ENTRIES_MAX) as front:
            held, metrics = Held(front), front.telemetry.server
            clients = [await front.connect() for _ in range(4)]
            answered: list[int] = []
            for number, client in enumerate(clients):
                await client.send(request_frame(number, LARGE))
            await until(lambda: metrics.entries_waiting == 3)
            (first,) = held.begun
            gone, *others = [each for each in range(4) if each != first]
            clients[gone].close()
            clients[first].close()  # a question: nobody waits for its answer
            for _ in others:
                await until(lambda: len(held.begun) == 2 + len(answered))
                assert gone not in held.begun
                held.release(held.begun[-1])
                answered.append(await number_of(clients[held.begun[-1]]))
            assert sorted(answered) == others
            await until(lambda: not len(front.tasks))
            assert metrics.inflight_entries == metrics.entries_waiting == 0

    run(scenario)


def test_nonsense_gives_its_entries_back(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path, entries_max=ENTRIES_MAX) as front:

            def refuse(header: Any) -> bytes:
                raise ProtocolError("an array is cut")

            front.dispatcher.answer = refuse
            client = await front.connect()
            await client.send(request_frame(1, LARGE))
            assert await asyncio.wait_for(client.is_closed_by_peer(), 10)
            assert front.telemetry.server.inflight_entries == 0

    run(scenario)


def test_large_fetches_wait_with_the_others(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path, entries_max=ENTRIES_MAX) as front:
            held, metrics = Held(front), front.telemetry.server
            first, fetching, gone = [await front.connect() for _ in range(3)]
            await first.send(request_frame(1, LARGE))
            await until(lambda: held.begun == [1])
            frame = fetch_frame([(f"u{number}", 0) for number in range(5_000)])
            assert len(frame) > LARGE_FETCH_BYTES
            await fetching.send(frame)
            await gone.send(frame)
            await until(lambda: metrics.entries_waiting == 2)
            gone.close()
            held.release(1)
            assert len(await asyncio.wait_for(fetching.fetched(), 10)) == 5_000
            await until(lambda: metrics.inflight_entries == metrics.entries_waiting == 0)

    run(scenario)


def test_hosts_that_count_as_one_address_take_turns_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of an IPv6 network do; its owner has a host for each connection."""
    monkeypatch.setattr(
        connection_module, "address_of", lambda host: "net" if "127.0.1." in host else host
    )

    async def scenario() -> None:
        async with Front.open(tmp_path, entries_max=ENTRIES_MAX) as front:
            held, metrics = Held(front), front.telemetry.server
            first = await front.connect()
            await first.send(request_frame(0, LARGE))
            await until(lambda: held.begun == [0])
            sources = [f"127.0.1.{1 + number}" for number in range(5)] + ["127.0.2.1"]
            for number, source in enumerate(sources, 1):
                await (await front.connect(source)).send(request_frame(number, LARGE))
                await until(lambda: metrics.entries_waiting == number)  # noqa: B023
            assert {each.replies.address for each in front.listener._connections} == {
                *("127.0.0.1", "net", "127.0.2.1")
            }
            for number in (0, 1, 6, 2, 3):
                await until(lambda: held.begun[-1] == number)  # noqa: B023
                held.release(number)

    run_on(asyncio.new_event_loop, scenario())


def test_a_crowd_of_small_requests_that_wait_holds_up_no_other(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path, entries_max=1_000) as front:
            held = Held(front)
            crowd = [await front.connect() for _ in range(10)]
            for number, client in enumerate(crowd):
                await client.send(request_frame(number, bytes(200)))
            await until(lambda: len(held.begun) == len(crowd))
            other = await front.connect()
            await other.send(request_frame(99))
            held.release(99)
            assert await asyncio.wait_for(number_of(other), 10) == 99

    run(scenario)


@pytest.mark.parametrize("api_key", make_handlers(), ids=lambda api_key: api_key.name)
def test_large_requests_of_each_served_api_wait(tmp_path: Path, api_key: ApiKey) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path, entries_max=ENTRIES_MAX) as front:
            held, metrics = Held(front), front.telemetry.server
            first, second = [await front.connect() for _ in range(2)]
            await first.send(request_frame(1, LARGE, api_key=api_key))
            await until(lambda: held.begun == [1])
            await second.send(request_frame(2, LARGE, api_key=api_key))
            await until(lambda: metrics.entries_waiting == 1)
            assert held.begun == [1]
            for number, client in ((1, first), (2, second)):
                held.release(number)
                assert await asyncio.wait_for(number_of(client), 10) == number
            await until(lambda: metrics.inflight_entries == metrics.entries_waiting == 0)

    run_on(asyncio.new_event_loop, scenario())
