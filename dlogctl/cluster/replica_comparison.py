"""Comparison of the replicas of one partition, piece by piece, while it is in use.

Nodes are asked by callables that are given; what their answers mean is in
`dlogctl.cluster.digests`. A segment that retention deletes, or a replica that moves away, is no
finding: what a node could not tell is asked again, from what all of them have by then.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dlog.client.views import PartitionView
from dlogctl.cluster.digests import (
    Answer,
    Finding,
    common_range,
    compare,
    findings_of_heads,
    lags_of_heads,
)

LOOK_AGAIN_S = 0.5
TRIES_MAX = 4
"""How often in a row the same place is asked for."""
TROUBLES = ("failed", "unreachable")

Ask = Callable[[int, Mapping[str, Any]], Awaitable[Answer | Finding]]
"""Asks a node for a digest of the partition."""
State = Callable[[], Awaitable[PartitionView | None]]
"""Says where the partition's replicas are now; None: it is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scope:
    """What there is to compare. `high` is exclusive."""

    leader: int
    heads: Mapping[int, Answer]
    low: int
    high: int

    def others(self, offset: int, end: int) -> list[int]:
        """Return who besides the leader has all of a piece."""
        return [
            node
            for node, head in self.heads.items()
            if node != self.leader
            and int(head["log_start_offset"]) <= offset
            and end <= int(head["high_watermark"])
        ]


class Comparison:
    """One partition. `run` once."""

    def __init__(self, ask: Ask, state: State, tell: Callable[[int, int], None]) -> None:
        """`tell` hears how many offsets are compared, of how many."""
        self.compared = 0
        self.is_gone = False  # deleted before it was compared
        self._given_up: dict[int, None] = {}
        self._ask = ask
        self._state = state
        self._tell = tell

    async def run(self, first: int | None, end: int | None) -> list[Finding]:
        """Return what is wrong from `first` up to `end`, exclusive, as far as replicas have it."""
        found: list[Finding] = []
        offset, tries = first or 0, 0
        while True:
            standing, scope = await self._look()
            if scope is None:
                return found + standing
            end = scope.high if end is None else min(end, scope.high)
            offset = max(offset, scope.low)
            reached, pieces, troubles = await self._walk(scope, offset, end)
            found += pieces
            tries = 1 if reached > offset else tries + 1
            offset = reached
            if not troubles:
                return found + standing
            if tries >= TRIES_MAX:
                # The others go on without who cannot tell.
                found += troubles
                self._given_up.update(dict.fromkeys(each.node for each in troubles))
                tries = 0
            await asyncio.sleep(LOOK_AGAIN_S)

    async def end(self) -> int | None:
        """Return up to which offset, exclusive, a replica has the partition; None: nobody says."""
        state = await self._state()
        heads, _ = await self._ask_all(list(state.replicas) if state is not None else [], {})
        # The largest: a watermark reaches followers a moment later.
        marks = [int(each["high_watermark"]) for each in heads.values() if each["error"] is None]
        return max(marks, default=None)

    async def _look(self) -> tuple[list[Finding], _Scope | None]:
        """Return what is wrong with replicas as a whole, and what the others may be asked for."""
        state = await self._state()
        if state is None:
            self.is_gone = True
            return [], None
        asked = [node for node in state.replicas if node not in self._given_up]
        heads, found = await self._ask_all(asked, {})
        found += findings_of_heads(heads)
        working = {node: head for node, head in heads.items() if head["error"] is None}
        # Who is not in sync may have next to nothing yet: that hides nothing of the others.
        members = {node: head for node, head in working.items() if node in state.isr} or working
        low, high = common_range(members)
        found += lags_of_heads(working, members, high)
        if len(working) < 2 or low >= high:
            return found, None
        leader = state.leader if state.leader in members else next(iter(members))
        return found, _Scope(leader=leader, heads=working, low=low, high=high)

    async def _walk(
        self, scope: _Scope, offset: int, end: int
    ) -> tuple[int, list[Finding], list[Finding]]:
        """Compare up to `end`, or until somebody cannot tell.

        Returns how far that was, what differs up to there, and who could not tell.
        """
        found: list[Finding] = []
        first = offset
        while offset < end:
            following, pieces = await self._piece(scope, offset, end)
            troubles = [each for each in pieces if each.what in TROUBLES]
            if troubles or following is None:
                return offset, found, troubles
            found += pieces
            if following <= offset:
                break
            self.compared += following - offset
            offset = following
            if offset < end:
                self._tell(offset - first, end - first)
        return offset, found, []

    async def _piece(
        self, scope: _Scope, offset: int, end: int
    ) -> tuple[int | None, list[Finding]]:
        """Compare one piece, as long as the leader's node likes to read at once."""
        leader = scope.leader
        answers, found = await self._ask_all([leader], {"from": offset, "to": end})
        if leader not in answers or answers[leader].get("error") is not None:
            return None, found + compare(answers, leader)
        following = int(answers[leader]["next"])
        # Exactly so much, though they may have to read a little more to get there.
        query = {"from": offset, "to": following, "whole": 1}
        more, missing = await self._ask_all(scope.others(offset, following), query)
        return following, found + missing + compare(answers | more, leader)

    async def _ask_all(
        self, nodes: list[int], query: Mapping[str, Any]
    ) -> tuple[dict[int, Answer], list[Finding]]:
        asked = await asyncio.gather(*(self._ask(node, query) for node in nodes))
        answers = {node: each for node, each in zip(nodes, asked, strict=True)
                   if not isinstance(each, Finding)}  # fmt: skip
        return answers, [each for each in asked if isinstance(each, Finding)]
