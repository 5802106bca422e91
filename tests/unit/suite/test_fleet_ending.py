"""The end of a simulated cluster's run: it may take long, but it has to come further."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from tests.histories.history import LogKey
from tests.simulation.fleet.data_clients import DataConsumer
from tests.simulation.fleet.data_plan import NO_DATA, DataConsumerPlan
from tests.simulation.fleet.plan import draw
from tests.simulation.fleet.run import ENDING_NS, _FleetRun
from tests.simulation.loop import NS

KEY = LogKey(UUID(int=1), "slow", 0)
END = 10
TURN_MS = 20_000


class SlowConsumer(DataConsumer):
    """Reads a log of `END` records, and is at each of `positions` in turn."""

    positions: Iterator[int]

    async def catch_up(
        self, ends: dict[LogKey, int], on_progress: Callable[[LogKey, int], None]
    ) -> None:
        await super().catch_up({**ends, KEY: END}, on_progress)

    async def _begin(self, logs: Iterable[LogKey] = ()) -> bool:
        self._consumer = SimpleNamespace(position=lambda _: next(self.positions))  # type: ignore[assignment]
        return True

    async def _turn(self) -> None:
        await self._around.sleep_ms(TURN_MS)

    def _note_follower(self, key: LogKey) -> None:
        pass

    async def _end(self) -> None:
        pass


@pytest.fixture
def run() -> Iterator[Any]:
    made = _FleetRun(replace(draw(1), data=NO_DATA), None)
    made.world.at(0, made._look)  # so that time goes on where nobody does anything
    yield made
    made.loop.kill()


def end_data(run: Any, positions: Iterable[int]) -> list[str]:
    """Let one consumer read to the end; return what is wrong."""
    plan = DataConsumerPlan("c0", 20, 1, restart_share=0.0, end_share=0.0)
    consumer = SlowConsumer(run.data, plan)
    consumer.positions = iter(positions)
    run.consumers = [consumer]
    run._end_data()
    found: list[str] = run.registry.violations
    return found


def test_a_long_log_may_take_longer_than_a_stuck_one(run: Any) -> None:
    assert end_data(run, range(1, END + 1)) == []
    assert run.world.now_ns >= END * TURN_MS * NS // 1000 > 3 * ENDING_NS


def test_who_does_not_come_further_is_stuck(run: Any) -> None:
    (found,) = end_data(run, itertools.chain(range(5), itertools.repeat(5)))
    assert found.startswith("liveness")


def test_who_reads_the_same_again_and_again_is_stuck(run: Any) -> None:
    (found,) = end_data(run, itertools.cycle(range(5)))
    assert found.startswith("liveness")
