"""Manager of fetchers: one for each leader that this node follows.

Owner: the event loop's thread; made by `dlogd.node.replication_setup`, told by `Roles`.
"""

import asyncio
import math
from collections.abc import Coroutine
from typing import Any

from dlog.types import NO_NODE, LeaderEpoch, NodeId
from dlogd.replication.follower.fetch_services import FetchServices
from dlogd.replication.follower.followed_partition import FollowedPartition
from dlogd.replication.follower.leader_fetcher import LeaderFetcher
from dlogd.replication.partition.partition import Partition
from dlogd.replication.placement_diff import Key

DOUBT_S = 0.5
"""How long a leader that has hung up is in doubt: by then it is deposed, or is connected to."""


class FetcherManager:
    """One fetcher for each leader that was ever followed."""

    def __init__(self, services: FetchServices) -> None:
        self.fetchers: dict[NodeId, LeaderFetcher] = {}
        self._services = services
        self._current: dict[Key, FollowedPartition] = {}
        self._left = asyncio.Event()

    def follow(
        self, key: Key, partition: Partition, leader_id: NodeId, leader_epoch: LeaderEpoch
    ) -> None:
        """Follow a leader in an epoch; NO_NODE: there is none, or it is this node."""
        known = self._current.get(key)
        if known is not None:
            same = (known.partition, known.leader_id, known.leader_epoch)
            if same == (partition, leader_id, leader_epoch):
                return
            self.leave(key)
        if leader_id == NO_NODE or partition.is_ended:
            return
        fetcher = self._fetcher(leader_id)
        following = FollowedPartition(key, partition, leader_id, leader_epoch, fetcher)
        self._current[key] = following
        fetcher.add(following)

    def leave(self, key: Key) -> None:
        """Follow nobody for a partition."""
        following = self._current.pop(key, None)
        if following is not None:
            following.fetcher.remove(following)
            self._left.set()

    def on_cut(self, following: FollowedPartition) -> None:
        """A log has been cut; who follows by now begins with what is left."""
        current = self._current.get(following.key)
        if current is not None and current is not following:
            current.fetcher.subscribe(current)

    def nudge(self) -> None:
        """Nodes have changed: look at once for those that could not be reached."""
        for fetcher in self.fetchers.values():
            fetcher.nudge()

    def current(self, key: Key) -> FollowedPartition | None:
        """Return whom a partition follows."""
        return self._current.get(key)

    def until_settled(self) -> Coroutine[Any, Any, None] | None:
        """Return what to wait for before others are told who leads; None: nothing is in doubt.

        A process that was killed hangs up at once, and a moment later others lead. A client that
        hears in between of the old leader believes it, and some ask again only a second later.
        """
        return self._settle() if self._doubt_s() > 0 else None

    async def _settle(self) -> None:
        while (left_s := self._doubt_s()) > 0:
            self._left.clear()
            try:
                async with asyncio.timeout(left_s):
                    await self._left.wait()
            except TimeoutError:
                pass

    def _doubt_s(self) -> float:
        """Return for how long from now on a leader that is followed is in doubt."""
        fetchers = self.fetchers.values()
        lost_s = max((each.lost_s for each in fetchers if each.followings), default=-math.inf)
        return lost_s + DOUBT_S - self._services.loop.time()

    def _fetcher(self, leader_id: NodeId) -> LeaderFetcher:
        fetcher = self.fetchers.get(leader_id)
        if fetcher is None:
            fetcher = self.fetchers[leader_id] = LeaderFetcher(leader_id, self._services)
            work = fetcher.run()
            self._services.tasks.spawn(f"follow node {leader_id}", work, is_vital=True)
        return fetcher
