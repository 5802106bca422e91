"""Replicas are compared while the partition lives: what moves is no finding, what differs is."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from dlog.client.views import PartitionView
from dlogctl.cluster import replica_comparison
from dlogctl.cluster.digests import Answer, Finding
from dlogctl.cluster.replica_comparison import Comparison

STATE = PartitionView(
    partition=0, leader=1, leader_epoch=0, replicas=(1, 2, 3), isr=(1, 2, 3), offline=()
)
PIECE = 10


@dataclass
class Replica:
    """A node's answers: checksum 0 for every offset, unless another one is said."""

    start: int = 0
    mark: int = 100
    wrong: tuple[int, ...] = ()
    error: str | None = None
    answers: Callable[["Replica", int], Answer | None] = lambda _, __: None
    asked: list[int] = field(default_factory=list)

    def head(self) -> dict[str, Any]:
        return {
            "log_start_offset": self.start,
            "high_watermark": self.mark,
            "error": self.error,
        }

    def piece(self, node: int, first: int, end: int) -> Answer | Finding:
        self.asked.append(first)
        said = self.answers(self, first)
        if said is not None:
            return said
        if not self.start <= first <= end <= self.mark:
            return Finding(node=node, what="unreachable", reason="409")
        end = min(end, first + PIECE)
        rows = [
            {"first": n, "next": n + 1, "crc": int(n in self.wrong), "bytes": 1}
            for n in range(first, end)
        ]
        return {"error": None, "next": end, "ranges": rows, "damaged": []}


@dataclass
class World:
    replicas: dict[int, Replica] = field(default_factory=lambda: {n: Replica() for n in (1, 2, 3)})
    state: PartitionView | None = STATE
    compared: int = 0
    is_gone: bool = False

    async def ask(self, node: int, query: Mapping[str, Any]) -> Answer | Finding:
        replica = self.replicas.get(node)
        if replica is None:
            return Finding(node=node, what="unreachable", reason="down")
        if "from" not in query:
            return replica.head()
        return replica.piece(node, query["from"], query["to"])

    async def standing(self) -> PartitionView | None:
        return self.state

    def run(self, first: int | None = None, end: int | None = None) -> list[tuple[Any, ...]]:
        comparison = Comparison(self.ask, self.standing, lambda *_: None)
        found = asyncio.run(comparison.run(first, end))
        self.compared, self.is_gone = comparison.compared, comparison.is_gone
        return [(each.node, each.what, each.first_offset, each.next_offset) for each in found]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_comparison, "LOOK_AGAIN_S", 0.0)


def test_what_differs_is_found() -> None:
    world = World()
    assert world.run() == [] and world.compared == 100
    world.replicas[3].wrong = (17,)
    assert world.run() == [(3, "differs", 17, 18)] and world.compared == 100
    assert world.run(20, 35) == [] and world.compared == 15


def test_who_is_not_in_sync_hides_nothing_of_the_others() -> None:
    world = World(state=replace(STATE, isr=(1, 2)))
    world.replicas[3] = Replica(mark=25, wrong=(4,))
    world.replicas[2].wrong = (60,)
    assert world.run() == [
        (3, "differs", 4, 5),
        (2, "differs", 60, 61),
        (3, "behind", 25, 100),
    ]
    assert world.compared == 100


def test_what_retention_deletes_meanwhile_is_no_finding() -> None:
    world = World()

    def trim(_: Replica, first: int) -> Answer | None:
        if first == 30 and world.replicas[2].start == 0:
            for each in world.replicas.values():
                each.start = 42
            return {"error": "the segment has changed meanwhile"}
        return None

    world.replicas[2].answers = trim
    assert world.run() == [] and world.compared == 88
    for each in world.replicas.values():
        each.start = 0
    world.replicas[1].answers, world.replicas[2].answers = trim, Replica().answers
    world.replicas[3].wrong = (35, 50)
    assert world.run() == [(3, "differs", 50, 51)]


def test_what_stays_is_told() -> None:
    world = World()
    world.replicas[2].answers = lambda _, first: {"error": "broken"} if first == 20 else None
    world.replicas[3].wrong = (50,)
    found = world.run()  # whom to believe of two: the leader
    assert found == [(2, "failed", -1, -1), (3, "differs", 50, 51)] and world.compared == 100
    assert world.replicas[2].asked.count(20) == replica_comparison.TRIES_MAX
    world.replicas[3].wrong = ()
    world.replicas[2].error = "on fire"
    assert world.run() == [(2, "failed", -1, -1)] and world.compared == 100
    del world.replicas[2]
    assert world.run() == [(2, "unreachable", -1, -1)] and world.compared == 100


@pytest.mark.parametrize("state", [None, replace(STATE, replicas=(1, 3), isr=(1, 3))])
def test_who_has_no_replica_any_more_is_not_asked_again(state: PartitionView | None) -> None:
    world = World()

    def move(_: Replica, first: int) -> Answer | None:
        if first == 50:
            world.state = state
            del world.replicas[2]
            return {"error": "gone"}
        return None

    world.replicas[2].answers = move
    assert world.run() == []
    assert world.compared == (50 if state is None else 100)
    assert world.is_gone == (state is None)


def test_the_end_does_not_run_away() -> None:
    world = World()

    def grow(_: Replica, first: int) -> Answer | None:
        for each in world.replicas.values():
            each.mark += PIECE
        return {"error": "once"} if first == 70 and world.replicas[1].asked.count(70) == 1 else None

    world.replicas[1].answers = grow
    assert world.run() == [] and world.compared == 100


def test_where_a_partition_ends_is_what_most_is_known_of_it() -> None:
    world = World()
    world.replicas[2].mark = 120
    world.replicas[3] = Replica(mark=500, error="on fire")
    comparison = Comparison(world.ask, world.standing, lambda *_: None)
    assert asyncio.run(comparison.end()) == 120
    world.replicas.clear()
    assert asyncio.run(comparison.end()) is None
    world.state = None
    assert asyncio.run(comparison.end()) is None and not comparison.is_gone
