"""How often the collector of cycles looks, with few connections and with many."""

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlogd.runtime import cycle_collector
from tests.fakes.front import Front, run_on, until


@pytest.fixture
def settled() -> Iterator[None]:
    """The thresholds of a daemon."""
    before = gc.get_threshold()
    gc.set_threshold(*cycle_collector.THRESHOLDS)
    yield
    gc.set_threshold(*before)


def test_a_crowd_is_looked_at_less_often(settled: None) -> None:
    for count, young in ((10_000, 200_000), (10, cycle_collector.THRESHOLDS[0])):
        cycle_collector.follow(count)
        assert gc.get_threshold() == (young, *cycle_collector.THRESHOLDS[1:])


def test_thresholds_of_others_stay() -> None:
    before = gc.get_threshold()
    cycle_collector.follow(10_000)
    assert gc.get_threshold() == before != cycle_collector.THRESHOLDS


def test_a_listener_says_how_many_there_are(
    settled: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cycle_collector, "OBJECTS_PER_CONNECTION", cycle_collector.THRESHOLDS[0])

    async def scenario() -> None:
        async with Front.open(tmp_path, idle_timeout_s=0.6) as front:
            for _ in range(3):
                await front.connect()
            await until(lambda: gc.get_threshold()[0] == 3 * cycle_collector.THRESHOLDS[0])
            await until(lambda: gc.get_threshold()[0] == cycle_collector.THRESHOLDS[0])

    run_on(asyncio.new_event_loop, scenario())
