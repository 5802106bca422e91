"""Fetch and Produce of very many partitions hold nobody up; of more than there are, are refused."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import MethodType
from typing import cast

import pytest

from dlog.batch.records import Record, encode
from dlog.errors import ProtocolError
from dlog.wire.frame import RequestHeader
from dlogd.server import router
from dlogd.server.connection import Connection
from dlogd.server.handlers.fetch import FetchWork
from dlogd.server.request_turns import PIECE_ENTRIES, RequestTurns
from tests.fakes.fetched_logs import check, fill
from tests.fakes.front import Front, fetch_frame, produce_frame, request_frame, response_of
from tests.fakes.logs import values_in


class CountedTurns:
    """Counts the turns that are asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        ask = RequestTurns.ask

        def counting(turns: RequestTurns, go_on: Callable[[], object]) -> None:
            self.count += 1
            ask(turns, go_on)

        monkeypatch.setattr(RequestTurns, "ask", counting)


def test_ten_thousand_partitions_are_fetched_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path, ["t"]) as front:
            turns = CountedTurns(monkeypatch)
            await fill(front.partition("t"), 2)
            client = await front.connect()
            names = [f"u{number}" for number in range(9_999)]
            frame = fetch_frame([*((name, 0) for name in names), ("t", 0)])
            assert len(frame) > router.LARGE_FETCH_BYTES
            # What comes behind waits for it, as its answer does.
            await client.send(frame, fetch_frame([("t", 1)]))
            found = await asyncio.wait_for(client.fetched(), 20)
            assert len(found) == 10_000
            assert found["u7"][0] == 3
            assert [offset for offset, _ in values_in(found["t"][1])] == [0, 1]
            found = await asyncio.wait_for(client.fetched(), 10)
            assert [offset for offset, _ in values_in(found["t"][1])] == [1]
            assert turns.count == 2

    check(scenario)


def test_nothing_is_looked_for_when_the_connection_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Callable[[], object]] = []
    started: list[FetchWork] = []
    monkeypatch.setattr(RequestTurns, "ask", lambda _, go_on: asked.append(go_on))
    monkeypatch.setattr(FetchWork, "start", lambda work, _: started.append(work))

    async def scenario() -> None:
        async with Front.open(tmp_path, ["t"]) as front:
            client = await front.connect()
            await client.send(fetch_frame([(f"u{number}", 0) for number in range(5_000)]))
            while not asked:
                await asyncio.sleep(0)
            unstall = cast(MethodType, asked[0])
            cast(Connection, unstall.__self__).abort(None)
            unstall()
            assert len(asked) == 1
            assert not started

    check(scenario)


def test_many_partitions_are_produced_to_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path, ["t"]) as front:
            turns = CountedTurns(monkeypatch)
            client = await front.connect()
            count = 3 * PIECE_ENTRIES + 1
            batch = encode([Record(value=b"v", timestamp_ms=1)])
            # What comes behind waits for it.
            frames = [produce_frame("t", batch, partitions=range(n)) for n in (count, 2)]
            await client.send(*frames)
            ((_, results),) = await asyncio.wait_for(client.produced(), 10)
            assert [each[1] for each in results] == [0] + [3] * (count - 1)
            assert results[0][2] == 0
            ((_, results),) = await asyncio.wait_for(client.produced(), 10)
            assert results[0][2] == 1
            assert turns.count == 3

    check(scenario)


def test_requests_that_come_together_are_answered_in_turns_once_they_are_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One read holds a thousand small requests; each of some milliseconds would take seconds."""

    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            turns = CountedTurns(monkeypatch)
            spent = 0

            def answer(header: RequestHeader) -> bytes:
                front.dispatcher.turns.spend(spent)
                return response_of(header, b"")

            front.dispatcher.answer = answer
            one, other = await front.connect(), await front.connect()
            for entries, expected in ((0, 0), (PIECE_ENTRIES, 20)):
                spent, turns.count = entries, 0
                front.dispatcher.bodies.clear()
                frames = [request_frame(number, bytes([number])) for number in range(21)]
                await one.send(*frames)
                for number in range(21):
                    answered = await asyncio.wait_for(one.receive(), 10)
                    assert answered[:4] == number.to_bytes(4, "big")
                assert turns.count == expected
                # What was kept for its turn is read from the right place.
                assert front.dispatcher.bodies == [bytes([number]) for number in range(21)]
            await other.send(request_frame(7))
            assert (await asyncio.wait_for(other.receive(), 10))[:4] == (7).to_bytes(4, "big")

    check(scenario)


def test_more_than_a_request_may_hold_ends_the_connection(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path, ["t"]) as front:
            client = await front.connect()
            await client.send(fetch_frame([("t", 0)], partitions=range(20_000)))
            assert await asyncio.wait_for(client.is_closed_by_peer(), 10)
            assert front.telemetry.server.connections_broken_total == 1

    check(scenario)


def test_nonsense_that_is_found_late_ends_the_connection(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path) as front:

            async def answer() -> bytes:
                raise ProtocolError("an array is cut")

            front.dispatcher.answer = lambda _: answer()
            client = await front.connect()
            await client.send(request_frame())
            assert await asyncio.wait_for(client.is_closed_by_peer(), 10)
            assert front.telemetry.server.connections_broken_total == 1
            assert not len(front.tasks)

    check(scenario)
