"""Throttled partitions that catch up with one leader: who waits before it takes more (KIP-73).

Part of `dlogd.replication.taking`. Who has all that is committed may be in sync: it is counted, and
never waits. Whether a partition is throttled is asked again and again while it waits: its topic or
the rate may have been changed meanwhile.
Owner: the event loop's thread.
"""

import asyncio
from collections.abc import Callable

from dlog.types import NodeId
from dlogd.clock import Clock
from dlogd.replication.following import NO_HANDLE, Following
from dlogd.replication.quota import RateLimiter


class Throttle:
    """One leader's part; all of a node's share `limiter`."""

    def __init__(
        self,
        limiter: RateLimiter,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        node_id: NodeId,
        report: Callable[[Following], None],
    ) -> None:
        self._limiter = limiter
        self._loop = loop
        self._clock = clock
        self._node_id = node_id
        self._report = report

    def holds_back(
        self, following: Following, base_offset: int, size: int, *, is_behind: bool
    ) -> bool:
        """Count what was taken; return whether the leader hears of it later, by `report`."""
        if not self._is_throttled(following):
            return False
        self._limiter.count(size, self._clock.now_us())
        if not is_behind:
            return False
        return self._wait(following, base_offset)

    def _is_throttled(self, following: Following) -> bool:
        throttled = following.partition.settings.follower_throttled
        return self._limiter.is_limited and throttled.holds(following.key[1], self._node_id)

    def _wait(self, following: Following, ceiling: int) -> bool:
        """Say nothing until what was taken is paid for; return whether that is later."""
        if not self._is_throttled(following):
            return False
        wait_us = self._limiter.may_send(0, self._clock.now_us())
        if not wait_us:
            return False

        def go_on() -> None:
            if following.handle == NO_HANDLE or following.ceiling is None:
                return
            if not self._wait(following, ceiling):
                following.ceiling = None
                self._report(following)

        following.ceiling = ceiling
        self._loop.call_later(wait_us / 1e6, go_on)
        return True
