"""What a node of a simulated cluster may leave open when it stops, and what it may not."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.simulation.fleet.data_plan import NO_DATA
from tests.simulation.fleet.plan import draw
from tests.simulation.fleet.run import _FleetRun
from tests.simulation.loop import NS, SimLoop


@pytest.fixture
def run() -> Iterator[Any]:
    made = _FleetRun(replace(draw(1), data=NO_DATA), None)
    yield made
    made.loop.kill()


def flush_in_thread(run: Any, host: Any, factor: float) -> float:
    """Let the metadata's thread flush on a disk so many times as slow; return its seconds."""
    home, thread = SimLoop(run.world, "home"), SimLoop(run.world, "thread")
    home.threads.append(thread)
    host.loop = home
    host.machine.disk_of("/data0/meta/raft.log").latency.factor = factor
    running = asyncio.events._get_running_loop()
    asyncio.events._set_running_loop(thread)
    try:
        host._on_disk("sync", "/data0/meta/raft.log", 0, 0)
    finally:
        asyncio.events._set_running_loop(running)
        host.loop = None
    return thread.stall_ns / NS


def test_a_flush_that_takes_the_time_of_a_stop_is_an_excuse(run: Any) -> None:
    host = run.hosts[0]
    assert not host._may_hang()
    assert flush_in_thread(run, host, 100_000) > host.config.shutdown.timeout_ms / 1000
    assert host._may_hang()


def test_a_disk_that_is_as_fast_as_ever_is_none(run: Any) -> None:
    host = run.hosts[0]
    assert flush_in_thread(run, host, 1.0) < host.config.shutdown.timeout_ms / 1000
    assert not host._may_hang()


def test_a_stop_that_was_paused_is_one_too(run: Any) -> None:
    host = run.hosts[0]
    loop = host.loop = SimLoop(run.world, "paused")
    host.state = "stopping"
    length_ns = 2 * host.config.shutdown.timeout_ms * 1_000_000
    host.pause(length_ns)
    ends_ns = run.world.now_ns + length_ns
    run.world.run(lambda: loop.parked is None, limit_ns=ends_ns + NS)
    assert run.world.now_ns == ends_ns
    assert host._may_hang()
    host.loop = None
