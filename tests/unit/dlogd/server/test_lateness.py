"""Frames that come too slowly, and those that wait for memory, on real sockets."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from dlogd.server import listener as listener_module
from dlogd.server import slow_senders
from tests.fakes.front import Front, request_frame, run_on, until

Run = Callable[[Callable[[], Awaitable[None]]], None]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    return lambda scenario: run_on(request.param, scenario())


def test_who_waits_for_frame_memory_is_not_blamed_and_goes_on(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_senders, "FRAME_GRACE_S", 0.3)
    monkeypatch.setattr(slow_senders, "STARVED_GRACE_S", 60.0)
    monkeypatch.setattr(listener_module, "FRAME_GRACE_S", 0.3)

    async def scenario() -> None:
        async with Front.open(tmp_path, inflight_bytes_max=256 << 10) as front:
            frame = request_frame(3, bytes(400_000))
            holder, starved = await front.connect(), await front.connect()
            for client in (holder, starved):  # its first frame would have to come in time
                await client.send(request_frame(9))
                assert (await client.receive())[:4] == (9).to_bytes(4, "big")
            await holder.send(frame[:300_000])
            await until(lambda: front.listener.limits.frames.used_bytes > 300_000)
            await starved.send(frame[:300_000])
            await until(lambda: front.telemetry.server.paused_connections == 1)
            for start in range(300_000, 380_000, 8_000):
                await asyncio.sleep(0.05)
                await holder.send(frame[start : start + 8_000])
            await holder.send(frame[380_000:])
            assert (await holder.receive())[:4] == (3).to_bytes(4, "big")
            await starved.send(frame[300_000:])
            assert (await starved.receive())[:4] == (3).to_bytes(4, "big")
            assert front.telemetry.server.connections_late_total == 0

    run(scenario)


def test_a_first_frame_does_not_wait_for_memory_for_ever(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crowd of strangers would wait for each other, one after the other."""
    monkeypatch.setattr(slow_senders, "FRAME_GRACE_S", 0.3)
    monkeypatch.setattr(slow_senders, "STARVED_GRACE_S", 60.0)
    monkeypatch.setattr(listener_module, "FRAME_GRACE_S", 0.3)

    async def scenario() -> None:
        async with Front.open(tmp_path, inflight_bytes_max=256 << 10) as front:
            frame = request_frame(3, bytes(400_000))
            crowd = [await front.connect() for _ in range(5)]
            for client in crowd:
                await client.send(frame[:60_000])
            for client in crowd:
                assert await client.is_closed_by_peer()
            assert front.telemetry.server.connections_late_total == 5

    run(scenario)


def test_first_frames_do_not_wait_for_one_that_goes_on(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One stranger holds the memory of its address, and is not late."""
    monkeypatch.setattr(slow_senders, "FRAME_GRACE_S", 0.3)
    monkeypatch.setattr(slow_senders, "STARVED_GRACE_S", 60.0)
    monkeypatch.setattr(slow_senders, "FRAME_BYTES_PER_S_MIN", 1)
    monkeypatch.setattr(listener_module, "FRAME_GRACE_S", 0.3)

    async def scenario() -> None:
        async with Front.open(tmp_path, inflight_bytes_max=256 << 10) as front:
            frame = request_frame(3, bytes(400_000))
            holder = await front.connect()
            await holder.send(frame[:60_000])
            await until(lambda: front.listener.limits.frames.used_bytes)
            crowd = [await front.connect() for _ in range(4)]
            for client in crowd:
                await client.send(frame[:60_000])
            for client in crowd:
                assert await client.is_closed_by_peer()
            assert front.telemetry.server.connections_late_total == 4
            await holder.send(frame[60_000:])
            assert (await holder.receive())[:4] == (3).to_bytes(4, "big")

    run(scenario)


@pytest.mark.parametrize("begun", [100, 100_000])
def test_who_leaves_a_frame_unfinished_is_closed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: int
) -> None:
    monkeypatch.setattr(slow_senders, "FRAME_GRACE_S", 0.1)
    monkeypatch.setattr(listener_module, "FRAME_GRACE_S", 0.1)

    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            client = await front.connect()
            await client.send(request_frame(3, bytes(400_000))[:begun])
            assert await client.is_closed_by_peer()
            await until(lambda: not front.listener.limits.frames.used_bytes)

    run(scenario)


@pytest.mark.parametrize("begun", [100, 60_000, 100_000])
def test_a_frame_that_drips_is_given_up_whatever_the_pause_between_its_bytes(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: int
) -> None:
    monkeypatch.setattr(slow_senders, "FRAME_GRACE_S", 0.3)
    monkeypatch.setattr(listener_module, "FRAME_GRACE_S", 0.3)

    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            client = await front.connect()
            await client.send(request_frame(3, bytes(400_000))[:begun])
            with pytest.raises((ConnectionError, RuntimeError)):  # uvloop: its handle is closed
                for _ in range(300):
                    await client.send(b"\0")
                    await asyncio.sleep(0.02)
            assert front.telemetry.server.connections_late_total == 1

    run(scenario)


def test_a_slow_but_honest_frame_has_its_time(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice the least rate, over more time than the grace, with pauses."""
    monkeypatch.setattr(slow_senders, "FRAME_GRACE_S", 0.3)
    monkeypatch.setattr(listener_module, "FRAME_GRACE_S", 0.3)

    async def scenario() -> None:
        async with Front.open(tmp_path) as front:
            client = await front.connect()
            frame = request_frame(3, bytes(200_000))
            for start in range(0, len(frame), 16 << 10):
                await client.send(frame[start : start + (16 << 10)])
                await asyncio.sleep(0.125)
            assert (await client.receive())[:4] == (3).to_bytes(4, "big")
            assert front.telemetry.server.connections_late_total == 0

    run(scenario)


def test_the_slowest_holder_gives_way_to_who_starves(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(slow_senders, "STARVED_GRACE_S", 0.2)

    async def scenario() -> None:
        async with Front.open(tmp_path, inflight_bytes_max=1 << 20) as front:
            frame = request_frame(3, bytes(400_000))
            slow = [await front.connect() for _ in range(4)]
            for client in slow:
                await client.send(frame[:50_000])
            honest = await front.connect()
            await honest.send(request_frame(9))
            assert (await honest.receive())[:4] == (9).to_bytes(4, "big")
            await honest.send(frame)
            assert (await honest.receive())[:4] == (3).to_bytes(4, "big")
            assert 1 <= front.telemetry.server.connections_late_total <= 4

    with caplog.at_level(logging.WARNING):
        run(scenario)
    lines = [each.getMessage() for each in caplog.records if "too slowly" in each.getMessage()]
    assert len(lines) == 1 and "address=127.0.0.1 count=1" in lines[0]
