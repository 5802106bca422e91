"""When a partition that could not be followed is tried again: no failure without a rest (rule L4).

Part of `dlogd.replication.taking`. Owner: the event loop's thread.
"""

import asyncio
from collections.abc import Callable

from dlogd.replication.following import REST_S_MAX, Following
from dlogd.storage.append_memory import AppendMemory

FULL_REST_S_MAX = 30.0
"""So seldom the leader is asked while a disk takes nothing: it may have deletions to tell of."""


class Resting:
    """The partitions of one leader; `subscribe` is called when a rest is over."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, subscribe: Callable[[Following], None]
    ) -> None:
        self.hanging: set[AppendMemory] = set()
        """Append memory of which nothing came back for long."""
        self._loop = loop
        self._subscribe = subscribe

    def rest(self, following: Following) -> None:
        """Rest for a moment; the longer, the more of them there were in a row."""
        if following.is_ended or following.timer is not None:
            return

        def go_on() -> None:
            following.timer = None
            hangs = following.partition.log.services.memory in self.hanging
            if hangs and following.can_follow:  # it could not take anything
                self.rest(following)
            elif following.is_current:
                self._subscribe(following)

        following.timer = self._loop.call_later(following.next_rest_s(), go_on)

    def rest_after_append(self, following: Following) -> None:
        """Rest because the log did not take what came."""
        if following.partition.log.refuses_appends:
            rest_s = following.next_rest_s(REST_S_MAX, FULL_REST_S_MAX)
            self._rest_until(following, self._loop.time() + rest_s)
        else:
            self.rest(following)

    def _rest_until(self, following: Following, end_s: float) -> None:
        """Rest until then, by the loop's clock, or until its log takes records again."""
        if following.is_ended or following.timer is not None:
            return

        def go_on() -> None:
            following.timer = None
            if not following.is_current:
                return
            if following.partition.log.refuses_appends and self._loop.time() < end_s:
                self._rest_until(following, end_s)
            else:
                self._subscribe(following)

        next_s = min(end_s, self._loop.time() + REST_S_MAX)
        following.timer = self._loop.call_at(next_s, go_on)
