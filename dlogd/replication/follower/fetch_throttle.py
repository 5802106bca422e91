"""Throttle of a fetcher: which partitions wait before they ask for more (KIP-73).

Part of `dlogd.replication.follower.subscriptions`. A leader answers a subscription, or a report,
with a frame of the partition; so neither is sent before it may be paid for, and only as many are
under way as the allowance has whole frames, one at least. Who is in the ISR, or has all that is
committed and may be soon, is counted and never waits. Whether a partition has to wait is asked
again while it does: its topic, the rate or the ISR may have changed. Owner: the event loop's
thread.
"""

import asyncio
from collections.abc import Callable

from dlog.types import NodeId
from dlogd.replication.follower.followed_partition import FollowedPartition
from dlogd.replication.placement_diff import Key
from dlogd.replication.protocol import FRAME_BYTES
from dlogd.replication.rate_limiter import RateLimiter
from dlogd.runtime.clock import Clock

PATIENCE_S = 1.0
"""A leader that answers later, as one whose disk hangs, does not hold up the other partitions."""
LOOK_S = 1.0
"""How often all that wait are asked whether they have to."""


class FetchThrottle:
    """One leader's part; all of a node's share `limiter`. Invariant: who waits was not let go."""

    def __init__(
        self,
        limiter: RateLimiter,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        node_id: NodeId,
        is_in_sync: Callable[[Key], bool],
        go_on: Callable[[FollowedPartition], None],
    ) -> None:
        """`go_on` is called for who waited, in its turn: in the order in which they came."""
        self._limiter = limiter
        self._loop = loop
        self._clock = clock
        self._node_id = node_id
        self._is_in_sync = is_in_sync
        self._go_on = go_on
        self._waiting: dict[FollowedPartition, None] = {}
        self._asked: dict[FollowedPartition, float] = {}  # let go, and not answered yet: since when
        self._timer: asyncio.TimerHandle | None = None
        self._looked_s = 0.0

    def may_ask(self, following: FollowedPartition) -> bool:
        """Return whether the leader may be asked for more now; else it waits, or does already."""
        if following in self._asked or not self._has_to_wait(following):
            return True
        if following in self._waiting:
            return False
        if not self._waiting and not self._wait_us():
            self._asked[following] = self._loop.time()
            return True
        self._waiting[following] = None
        self._set_timer()
        return False

    def on_row(self, following: FollowedPartition, high_watermark: int, size: int) -> None:
        """Count a row that has come and was not taken yet; `size` bytes of records."""
        if not (self._asked or self._limiter.is_limited):
            return
        is_asked = False
        if size or following.partition.log.log_end_offset >= high_watermark:  # else more comes
            is_asked = self._asked.pop(following, None) is not None
        if self._is_throttled(following):
            count = self._limiter.pay
            if self._is_in_sync(following.key):
                count = self._limiter.count
            count(size, self._clock.now_us())
        if is_asked:
            self._let_go()

    def forget(self, following: FollowedPartition) -> None:
        """It is not subscribed any more."""
        self._waiting.pop(following, None)
        if self._asked.pop(following, None) is not None:
            self._let_go()

    def clear(self) -> None:
        """The connection has ended."""
        self._waiting.clear()
        self._asked.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _is_throttled(self, following: FollowedPartition) -> bool:
        throttled = following.partition.settings.follower_throttled
        return self._limiter.is_limited and throttled.holds(following.key[1], self._node_id)

    def _has_to_wait(self, following: FollowedPartition) -> bool:
        return (
            following.is_current
            and self._is_throttled(following)
            and not self._is_in_sync(following.key)
        )

    def _wait_us(self) -> int:
        """Return 0 when another one may be let go, else the time in us until that may be so."""
        now_s = self._loop.time()
        while self._asked:
            oldest, since_s = next(iter(self._asked.items()))
            if now_s - since_s < PATIENCE_S:
                break
            del self._asked[oldest]
        return self._limiter.may_begin(len(self._asked) * FRAME_BYTES, self._clock.now_us())

    def _let_go(self) -> None:
        """Let those go on whose turn it is."""
        while self._waiting and not self._wait_us():
            following = next(iter(self._waiting))
            del self._waiting[following]
            self._asked[following] = self._loop.time()
            self._go_on(following)
        self._set_timer()

    def _set_timer(self) -> None:
        if self._waiting and self._timer is None:
            self._timer = self._loop.call_later(self._wait_us() / 1e6, self._look)

    def _look(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            for following in [each for each in self._waiting if not self._has_to_wait(each)]:
                del self._waiting[following]
                self._go_on(following)
        self._let_go()
