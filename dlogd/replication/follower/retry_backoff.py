"""Backoff before a partition that failed is followed again.

Part of `dlogd.replication.follower.subscriptions`. Owner: the event loop's thread.
"""

import asyncio
from collections.abc import Callable

from dlog.errors import RecordTooLargeError
from dlogd.replication.follower.followed_partition import REST_S_MAX, FollowedPartition
from dlogd.storage.io.append_memory import AppendMemory

TOO_LARGE_REST_S_MAX = 300.0
"""What does not fit into memory is sent again and again in vain, until its leader drops it."""
FULL_REST_S_MAX = 30.0
"""So seldom the leader is asked while a disk or its memory takes nothing: it may have deletions to
tell of."""


class RetryBackoff:
    """The partitions of one leader; `on_rested` is called when a rest is over."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_rested: Callable[[FollowedPartition], None]
    ) -> None:
        self.hanging: set[AppendMemory] = set()
        """Append memory of which nothing came back for long."""
        self._loop = loop
        self._on_rested = on_rested

    def rest(self, following: FollowedPartition) -> None:
        """Rest for a moment; the longer, the more of them there were in a row."""

        def go_on() -> None:
            following.timer = None
            if self._hangs(following):
                self._rest_while_full(following, lambda: self._hangs(following))
            else:
                self._on_rested(following)

        following.timer = self._loop.call_later(following.next_rest_s(), go_on)

    def _hangs(self, following: FollowedPartition) -> bool:
        """Whether it could not take anything."""
        memory = following.partition.log.services.memory
        return memory in self.hanging and following.can_follow

    def rest_after_append(self, following: FollowedPartition) -> None:
        """Rest because the log did not take what came, for the error that is noted."""
        plog = following.partition.log
        if isinstance(following.error, RecordTooLargeError):
            rest_s = following.next_rest_s(REST_S_MAX, TOO_LARGE_REST_S_MAX)
            self._rest_while(lambda: True, following, self._loop.time() + rest_s)
        elif plog.refuses_appends:
            self._rest_while_full(following, lambda: plog.refuses_appends)
        else:
            self.rest(following)

    def _rest_while_full(
        self, following: FollowedPartition, is_in_vain: Callable[[], bool]
    ) -> None:
        """Rest as long as that is so, but now and then let the leader tell of deletions."""
        rest_s = following.next_rest_s(REST_S_MAX, FULL_REST_S_MAX)
        self._rest_while(is_in_vain, following, self._loop.time() + rest_s)

    def _rest_while(
        self, is_in_vain: Callable[[], bool], following: FollowedPartition, end_s: float
    ) -> None:
        """Rest as long as that is so, but not beyond `end_s` of the loop's clock."""

        def go_on() -> None:
            following.timer = None
            if following.is_current and is_in_vain() and self._loop.time() < end_s:
                self._rest_while(is_in_vain, following, end_s)
            else:
                self._on_rested(following)

        next_s = min(end_s, self._loop.time() + REST_S_MAX)
        following.timer = self._loop.call_at(next_s, go_on)
