"""DATA frame that cannot be taken yet: for want of append memory, or until its log begins there.

Moved by `dlogd.replication.follower.frame_applier`. Nothing more is read from its connection
meanwhile. Of several directories one may hang, and a full disk takes nothing until something is
deleted, which has to be heard: so the partition gives up its turn after a while.
"""

import asyncio
from collections.abc import Callable

from dlogd.replication.follower.followed_partition import FollowedPartition
from dlogd.replication.follower.frame_cursor import FrameCursor
from dlogd.storage.io.append_memory import AppendMemory


class HeldFrame:
    """The frame of `cursor`, held for `following`. Life: until `end`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        cursor: FrameCursor,
        following: FollowedPartition,
        on_hang: Callable[[], None],
    ) -> None:
        """`on_hang` is called when append memory hangs that others can do without."""
        self.cursor = cursor
        self.following = following
        self._loop = loop
        self._on_hang = on_hang
        self._timer = loop.call_later(following.hold_s, self._look)

    @property
    def memory(self) -> AppendMemory:
        """What the records go into."""
        return self.following.partition.log.services.memory

    def end(self) -> None:
        """Its partition goes on, gives up, or the connection has ended. Idempotent."""
        self._timer.cancel()

    def _look(self) -> None:
        if self.memory.may_hang:
            self._on_hang()
        else:  # only a slow disk, so far
            self._timer = self._loop.call_later(self.following.hold_s, self._look)
