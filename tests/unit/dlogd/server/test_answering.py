"""How many answers of one connection are made at a time, and what requests that wait may take."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from dlogd.server.request_budget import ANSWERS_MAX
from tests.fakes.front import Front, request_frame, response_of, run_on, until

Run = Callable[[Callable[[], Awaitable[None]]], None]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    return lambda scenario: run_on(request.param, scenario())


def test_requests_that_wait_for_answers_count_against_the_bound(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        # Of entries there are enough: the bytes alone are bounded.
        bounds = {"inflight_bytes_max": 120_000, "entries_max": 10_000_000}
        async with Front.open(tmp_path, **bounds) as front:
            release = asyncio.Event()

            async def later(header: Any) -> bytes:
                await release.wait()
                return response_of(header, b"")

            front.dispatcher.answer = later
            greedy, modest = await front.connect(), await front.connect()
            sending = asyncio.ensure_future(
                greedy.send(*[request_frame(number, bytes(50_000)) for number in range(20)])
            )
            frames = front.listener.limits.frames
            await until(lambda: frames.is_over)
            await asyncio.sleep(0.05)  # nothing more may come
            # The frame that has begun to come counts as well.
            assert 2 <= len(front.dispatcher.requests) < ANSWERS_MAX
            front.dispatcher.answer = lambda header: response_of(header, b"")
            await modest.send(request_frame(9))
            assert (await modest.receive())[:4] == (9).to_bytes(4, "big")
            release.set()
            for number in range(20):
                assert (await greedy.receive())[:4] == number.to_bytes(4, "big")
            await sending
            assert front.telemetry.server.inflight_bytes == 0

    run(scenario)


def test_few_answers_of_one_connection_are_made_at_a_time(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            releases = [asyncio.Event() for _ in range(20)]
            begun: list[int] = []

            async def later(header: Any) -> bytes:
                begun.append(header.correlation_id)
                await releases[header.correlation_id].wait()
                return response_of(header, b"")

            front.dispatcher.answer = later
            greedy, modest = await front.connect(), await front.connect()
            await greedy.send(*(request_frame(number) for number in range(20)))
            await until(lambda: len(begun) == ANSWERS_MAX)
            await modest.send(request_frame(19))
            await until(lambda: begun[ANSWERS_MAX:] == [19])
            # An answer that has to wait for those before it makes room for one more.
            releases[2].set()
            await until(lambda: begun[ANSWERS_MAX + 1 :] == [ANSWERS_MAX])
            for release in releases:
                release.set()
            for number in range(20):
                assert (await greedy.receive())[:4] == number.to_bytes(4, "big")
            assert (await modest.receive())[:4] == (19).to_bytes(4, "big")
            assert len(front.dispatcher.requests) == 21
            assert front.telemetry.server.inflight_bytes == 0

    run(scenario)
