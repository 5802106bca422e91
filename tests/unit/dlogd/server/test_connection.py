"""Connections of clients on real sockets, by asyncio and uvloop: order, limits, what is given back.

What a connection costs and does is seen from outside: by its bytes, its listener's counters and the
descriptors of the process.
"""

import asyncio
import gc
import logging
import os
import socket
import weakref
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from dlog.wire.apis import ApiKey
from dlogd.net.disk_reader import DiskReader
from dlogd.net.reply_queue import WAITING_BYTES_MAX, ReplyQueue
from dlogd.server import listener as listener_module
from tests.fakes.front import (
    Front,
    fetch_frame,
    produce_frame,
    request_frame,
    response_of,
    run_on,
    until,
)
from tests.fakes.logs import batch_of

Run = Callable[[Callable[[], Awaitable[None]]], None]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    return lambda scenario: run_on(request.param, scenario())


def test_a_read_that_fills_the_buffer_and_then_finds_nothing_loses_nothing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvloop reads again after a full buffer: it asks for a buffer, and then nothing is there."""
    monkeypatch.setattr(listener_module, "RECEIVE_BYTES", 8192)

    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            one, other = await front.connect(), await front.connect()
            frame = request_frame(7, bytes(1000))
            data = frame * 9
            await one.send(data[:8192])
            for _ in range(8192 // len(frame)):
                await one.receive()
            await other.send(request_frame(2, b"\xff" * 5000))
            await other.receive()
            await one.send(data[8192:])
            for _ in range(9 - 8192 // len(frame)):
                assert (await one.receive())[:4] == (7).to_bytes(4, "big")

    run(scenario)


def test_nothing_is_taken_after_the_end_and_one_line_is_logged(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            client = await front.connect()
            bad = bytearray(batch_of(b"x"))
            bad[-1] ^= 1
            good = batch_of(b"y")
            frames = [produce_frame("t", bad, acks=0)] * 3 + [produce_frame("t", good, acks=0)] * 3
            await client.send(*frames)
            assert await client.is_closed_by_peer()
            await until(lambda: not front.listener.connection_count)
            assert front.partition("t").log.log_end_offset == 0

    with caplog.at_level(logging.INFO):
        run(scenario)
    lines = [line for line in caplog.messages if "peer=" in line]
    assert len(lines) == 1 and "acks=0" in lines[0], lines


def test_garbage_behind_a_good_request_closes_after_its_answer_once(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            client = await front.connect()
            await client.send(request_frame(5), (-7 & 0xFFFFFFFF).to_bytes(4, "big") * 10)
            assert (await client.receive())[:4] == (5).to_bytes(4, "big")
            assert await client.is_closed_by_peer()
            await until(lambda: not front.listener.connection_count)
            assert front.telemetry.server.connections_broken_total == 1

    run(scenario)
    assert len([line for line in caplog.messages if "peer=" in line]) == 1


def parts_alive() -> int:
    return sum(isinstance(each, ReplyQueue | DiskReader) for each in gc.get_objects())


def test_a_closed_connection_gives_everything_back_at_once(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            warm = await front.connect()
            await warm.send(request_frame())
            await warm.receive()
            before = len(os.listdir("/proc/self/fd"))
            gc.collect()
            gc.disable()
            alive = parts_alive()  # of the warm client, and of what other tests have left
            clients = [await front.connect() for _ in range(20)]
            for number, client in enumerate(clients):
                await client.send(fetch_frame([("t", 0)], max_wait_ms=60_000))
                if number % 2:
                    await client.send((1 << 20).to_bytes(4, "big") + bytes(100_000))
            await until(lambda: len(front.fetch.parked) == 20)
            await until(lambda: front.listener.limits.frames.used_bytes)
            dead = [weakref.ref(each) for each in front.listener._connections]
            for client in clients:
                client.close()
            await until(lambda: front.listener.connection_count == 1)
            assert not front.fetch.parked
            await until(lambda: not front.partition("t").fetches)
            assert front.listener.limits.frames.used_bytes == 0
            assert front.listener.limits.frames.charged_bytes == 0
            assert front.telemetry.server.parked_fetches == 0
            assert front.telemetry.server.inflight_bytes == 0
            assert front.telemetry.server.paused_connections == 0
            del client, clients
            await until(lambda: len(os.listdir("/proc/self/fd")) <= before)
            await until(lambda: sum(each() is not None for each in dead) <= 1)
            # Those of the others would wait for a full collection.
            assert parts_alive() == alive

    try:
        run(scenario)
    finally:
        gc.enable()


def test_what_a_lost_client_wanted_changed_is_not_gone_on_with(run: Run, tmp_path: Path) -> None:
    """It may have asked another node since. What only reads, or deletes records, goes on."""

    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            ended: dict[int, str] = {}
            release = asyncio.Event()

            async def later(header: Any) -> bytes:
                try:
                    await release.wait()
                    ended[header.api_key] = "answered"
                except asyncio.CancelledError:
                    ended[header.api_key] = "cancelled"
                    raise
                return response_of(header, b"")

            front.dispatcher.answer = later
            lost, kept = await front.connect(), await front.connect()
            keys = (ApiKey.CREATE_TOPICS, ApiKey.ALTER_CONFIGS, ApiKey.DELETE_RECORDS)
            await lost.send(*(request_frame(1, api_key=key) for key in keys))
            await kept.send(request_frame(1, api_key=ApiKey.DELETE_TOPICS))
            await until(lambda: len(front.dispatcher.requests) == 4)
            lost.close()
            await until(lambda: len(ended) == 2)
            release.set()
            await kept.receive()
            await until(lambda: len(ended) == 4)
            assert ended == {
                ApiKey.CREATE_TOPICS: "cancelled",
                ApiKey.ALTER_CONFIGS: "cancelled",
                ApiKey.DELETE_RECORDS: "answered",
                ApiKey.DELETE_TOPICS: "answered",
            }

    run(scenario)


def test_answers_that_wait_behind_an_earlier_one_are_bounded(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            front.dispatcher.answer = lambda header: response_of(header, bytes(300_000))
            client = await front.connect()
            await client.send(fetch_frame([("t", 0)], max_wait_ms=60_000))
            await client.send(*[request_frame(number) for number in range(500)])
            await asyncio.sleep(0.1)
            assert len(front.dispatcher.requests) <= 2 + WAITING_BYTES_MAX // 300_000
            assert front.telemetry.server.paused_connections == 1
            await (await front.connect()).send(produce_frame("t", batch_of(b"x")))
            assert (await client.fetched())["t"][0] == 0
            for number in range(500):
                assert (await client.receive())[:4] == number.to_bytes(4, "big")
            await until(lambda: front.telemetry.server.paused_connections == 0)

    run(scenario)


@pytest.mark.parametrize("api", ["PRODUCE", "FETCH"])
def test_refusals_of_many_partitions_that_wait_are_bounded_too(
    run: Run, tmp_path: Path, api: str
) -> None:
    numbers = range(5000)
    if api == "PRODUCE":
        frame = produce_frame("gone", b"", partitions=numbers)
    else:
        frame = fetch_frame([("gone", 0)], partitions=numbers)

    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            client = await front.connect()
            await client.send(fetch_frame([("t", 0)], max_wait_ms=60_000))
            sending = asyncio.ensure_future(client.send(*[frame] * 40))
            await until(lambda: front.telemetry.server.paused_connections == 1)
            assert front.telemetry.api(api).requests <= 10
            await (await front.connect()).send(produce_frame("t", batch_of(b"x")))
            assert (await client.fetched())["t"][0] == 0
            for _ in range(40):
                assert len(await client.receive()) > WAITING_BYTES_MAX // 10
            await sending
            await until(lambda: front.telemetry.server.paused_connections == 0)

    run(scenario)


IDLE_S = 5.0
"""Longer than a loaded machine keeps a reader waiting."""


def test_a_reader_that_makes_progress_is_not_idle(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path, idle_timeout_s=IDLE_S) as front:
            front.dispatcher.answer = lambda header: response_of(header, bytes(16 << 20))
            slow, stuck = await front.connect(), await front.connect()
            for client in (slow, stuck):
                sock = client.writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
                await client.send(request_frame())
            left = 8 + (16 << 20)
            loop = asyncio.get_running_loop()
            end_s = loop.time() + 1.2 * IDLE_S
            while loop.time() < end_s:
                left -= len(await slow.reader.read(1 << 16))
                await asyncio.sleep(IDLE_S / 50)
            while left:
                left -= len(await slow.reader.read(1 << 20))
            assert await stuck.is_closed_by_peer()

    run(scenario)


def test_stop_answers_who_waits_and_does_not_wait_for_who_does_not_read(
    run: Run, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            front.dispatcher.answer = lambda header: response_of(header, bytes(16 << 20))
            waiting, stuck = await front.connect(), await front.connect()
            await waiting.send(fetch_frame([("t", 0)], max_wait_ms=60_000))
            await stuck.send(request_frame())
            await until(lambda: front.fetch.parked)
            front.fetch.stop()
            started = asyncio.get_running_loop().time()
            await front.listener.stop(0.5)
            assert asyncio.get_running_loop().time() - started < 15
            assert await waiting.fetched() == {"t": (0, b"")}
            assert await stuck.is_closed_by_peer()
            await until(lambda: not front.listener.connection_count)

    run(scenario)


def test_who_has_half_closed_is_closed(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            client = await front.connect()
            await client.send(request_frame(4), fetch_frame([("t", 0)], max_wait_ms=60_000))
            assert (await client.receive())[:4] == (4).to_bytes(4, "big")
            client.writer.write_eof()
            assert await client.is_closed_by_peer()
            await until(lambda: not front.listener.connection_count)
            assert not front.fetch.parked

    run(scenario)


def test_a_bug_in_a_waiting_fetch_costs_its_connection_alone(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            broken, whole, producer = [await front.connect() for _ in range(3)]
            await broken.send(fetch_frame([("t", 0)], max_wait_ms=60_000))
            await until(lambda: len(front.fetch.parked) == 1)
            (work,) = front.fetch.parked
            work._request = None  # type: ignore[assignment]
            await whole.send(fetch_frame([("t", 0)], max_wait_ms=60_000))
            await until(lambda: len(front.fetch.parked) == 2)
            await producer.send(produce_frame("t", batch_of(b"x")))
            assert (await producer.produced())[0][1][0][1] == 0
            assert (await whole.fetched())["t"][1] != b""
            assert await broken.is_closed_by_peer()

    run(scenario)
    assert front_errors(caplog) == 1


def front_errors(caplog: pytest.LogCaptureFixture) -> int:
    return sum("unexpected error" in line for line in caplog.messages)


def test_memory_is_given_back_when_a_crowd_has_left(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that sent nothing, so that no memory of frames has fallen."""

    async def scenario() -> None:
        given = asyncio.Event()
        monkeypatch.setattr(listener_module.allocator, "give_back", given.set)
        monkeypatch.setattr(listener_module, "CROWD_MIN", 8)
        async with Front.open(tmp_path, idle_timeout_s=0.6) as front:
            crowd = [await front.connect() for _ in range(8)]
            await until(lambda: front.listener.connection_count == 8)
            front.listener._close_idle()
            assert not given.is_set()
            for each in crowd:
                each.close()
            await asyncio.wait_for(given.wait(), 5)

    run(scenario)
