"""Rebalance: the moves that even out replicas and preferred leaders over nodes.

Pure and deterministic. Greedy, from the fullest node to the emptiest, one replica at a time, until
no two nodes differ by two: so no replica moves twice, and none without need. A move never puts two
replicas of a partition on one node, and never leaves a partition on fewer racks than before.
Preferred leaders are then evened out by order alone, which copies nothing.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from heapq import heapify, heappop, heappush
from itertools import chain

from dlogctl.cluster.partition_names import Partition

Replicas = dict[Partition, tuple[int, ...]]
Rank = tuple[int, int]
Racks = Mapping[int, str | None]
"""The rack of each node; a node without one is a rack of its own."""


class Rebalance:
    """One plan in the making. `takers` may hold more replicas; `only_to` of them shall."""

    def __init__(
        self,
        present: Mapping[Partition, tuple[int, ...]],
        racks: Racks,
        takers: Collection[int],
        only_to: Collection[int] = (),
    ) -> None:
        self._replicas: Replicas = dict(sorted(present.items()))
        self.present = dict(self._replicas)
        self._racks = racks
        self._takers = sorted(takers)
        self._receivers = sorted(set(only_to) & set(takers)) if only_to else self._takers
        self._held: dict[int, set[Partition]] = {each: set() for each in self._takers}
        self._heaps: dict[tuple[int, int], list[tuple[Rank, Partition]]] = {}
        for key, nodes in self._replicas.items():
            for node in nodes:
                if node in self._held:
                    self._held[node].add(key)

    def plan(self) -> Replicas:
        """Return the new replicas of each partition that changes, the preferred leader first."""
        while self._move_one():
            pass
        self._lead_evenly()
        return {key: each for key, each in self._replicas.items() if each != self.present[key]}

    def counts(self) -> dict[int, tuple[int, int]]:
        """Return how many replicas and preferred leaders each node has by now."""
        leads = self._leads()
        return {node: (len(held), leads[node]) for node, held in self._held.items()}

    # -- replicas

    def _pairs(self, sizes: Mapping[int, int]) -> Iterator[list[tuple[int, int]]]:
        """Yield who may give to whom, in groups of the same difference, the largest first."""
        groups: dict[int, list[tuple[int, int]]] = {}
        for giver in self._takers:
            for taker in self._receivers:
                if (difference := sizes[giver] - sizes[taker]) >= 2:
                    groups.setdefault(difference, []).append((giver, taker))
        for difference in sorted(groups, reverse=True):
            yield groups[difference]

    def _move_one(self) -> bool:
        for pairs in self._pairs({node: len(held) for node, held in self._held.items()}):
            found = [(*best, *pair) for pair in pairs if (best := self._best(*pair)) is not None]
            if found:
                _, key, giver, taker = min(found)
                self._replace(key, giver, taker)
                return True
        return False

    def _best(self, giver: int, taker: int) -> tuple[Rank, Partition] | None:
        """Return what may go from one node to another best, and how well; None: nothing may."""
        heap = self._heaps.get((giver, taker))
        if heap is None:
            heap = self._heaps[giver, taker] = []
            for key in self._held[giver] - self._held[taker]:
                if (rank := self._rank(key, giver, taker)) is not None:
                    heap.append((rank, key))
            heapify(heap)
        while heap:
            rank, key = heap[0]
            is_there = key in self._held[giver] and key not in self._held[taker]
            if is_there and rank == self._rank(key, giver, taker):
                return rank, key
            heappop(heap)  # it has changed since, and was put in again as it is now
        return None

    def _rank(self, key: Partition, giver: int, taker: int) -> Rank | None:
        """Return how well a replica may move, less is better; None: it must not."""
        present = self._replicas[key]
        after = tuple(taker if node == giver else node for node in present)
        gain = self._spread(after) - self._spread(present)
        if gain < 0:
            return None
        # A preferred leader stays where it can: its clients would have to follow.
        return -gain, int(present[0] == giver)

    def _spread(self, nodes: tuple[int, ...]) -> int:
        return len({self._racks.get(node) or f"node {node}" for node in nodes})

    def _replace(self, key: Partition, giver: int, taker: int) -> None:
        self._replicas[key] = tuple(
            taker if node == giver else node for node in self._replicas[key]
        )
        self._held[giver].discard(key)
        self._held[taker].add(key)
        for (giving, taking), heap in self._heaps.items():
            if key in self._held[giving] and key not in self._held[taking]:
                rank = self._rank(key, giving, taking)
                if rank is not None:
                    heappush(heap, (rank, key))

    # -- leaders

    def _leads(self) -> Counter[int]:
        return Counter(nodes[0] for nodes in self._replicas.values() if nodes)

    def _lead_evenly(self) -> None:
        leads = self._leads()
        while (found := self._next_leader(leads)) is not None:
            key, taker = found
            nodes = self._replicas[key]
            leads[nodes[0]] -= 1
            leads[taker] += 1
            self._replicas[key] = (taker, *(node for node in nodes if node != taker))

    def _next_leader(self, leads: Counter[int]) -> tuple[Partition, int] | None:
        """Return the partition that another one of its replicas shall lead, and which."""
        groups = self._pairs({node: leads[node] for node in self._takers})
        for giver, taker in chain.from_iterable(groups):
            both = self._held[giver] & self._held[taker]
            key = min((key for key in both if self._replicas[key][0] == giver), default=None)
            if key is not None:
                return key, taker
        return None
