"""Slow senders: connections that are closed because a frame takes too long.

A frame has a time that grows with the bytes that have come: FRAME_GRACE_S and one second for each
FRAME_BYTES_PER_S_MIN. Silence does not count, for a client may send one byte now and then for ever.
While some connection waits for memory, a frame has only STARVED_GRACE_S of grace: the slowest
holders are closed, as many as wait. Time in which this node did not read is not counted, except
for the first frame of a connection that waits for memory.
Owner: the event loop's thread; made by `dlogd.server.listener`.
"""

import asyncio
import logging
from collections.abc import Collection

from dlogd.net.connection_admission import RefusalLines
from dlogd.net.frame_memory import BEGIN_BYTES, FrameMemory
from dlogd.runtime.clock import Clock
from dlogd.server.connection import Connection
from dlogd.telemetry.metrics import ServerMetrics

log = logging.getLogger(__name__)

FRAME_GRACE_S = 10.0
STARVED_GRACE_S = 1.0
FRAME_BYTES_PER_S_MIN = 64 * 1024
STARVED_CHECK_S = 0.25
"""How often slow holders are looked for while a connection waits for memory."""


class SlowSenders:
    """The judge of one listener's connections. Life: `stop` once."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        metrics: ServerMetrics,
        frames: FrameMemory,
        connections: Collection[Connection],
    ) -> None:
        """`connections`: all that are open, as they come and go."""
        self._loop = loop
        self._clock = clock
        self._metrics = metrics
        self._frames = frames
        self._connections = connections
        self._check: asyncio.TimerHandle | None = None
        self._lines = RefusalLines()
        frames.on_starved = self._on_starved

    def is_late(self, connection: Connection, now_us: int, grace_s: float) -> bool:
        """Tell whether the client has used up the time of the frame that it owes."""
        age_us = connection.frame_age_us(now_us)
        if not age_us:
            return False
        return age_us > grace_s * 1e6 + connection.intake.begun_bytes * 1e6 / FRAME_BYTES_PER_S_MIN

    def close_if_late(self, connection: Connection, now_us: int) -> bool:
        """Close a connection whose frame has had its time; return whether it is closed."""
        is_late = self.is_late(connection, now_us, FRAME_GRACE_S)
        if not is_late and not self._waits_in_vain(connection, now_us):
            return False
        self._close(connection, now_us)
        return True

    @staticmethod
    def _waits_in_vain(connection: Connection, now_us: int) -> bool:
        """Tell whether a first frame has waited for memory for FRAME_GRACE_S.

        A crowd of strangers would wait for each other, one after the other, and stay.
        """
        intake, seen = connection.intake, connection.seen
        if not intake.is_new or not intake.is_starved:
            return False
        return now_us - seen.first_us > FRAME_GRACE_S * 1e6

    def _close(self, connection: Connection, now_us: int) -> None:
        self._metrics.connections_late_total += 1
        address, count = self._lines.count(connection.address, now_us)
        connection.abort(None)
        if count:
            log.warning(
                "Closed connections that sent a frame too slowly address=%s count=%d"
                " bytes_per_s_min=%d",
                address,
                count,
                FRAME_BYTES_PER_S_MIN,
            )

    def _on_starved(self) -> None:
        if self._check is None:
            self._check = self._loop.call_later(STARVED_CHECK_S, self._close_slowest)

    def _close_slowest(self) -> None:
        self._check = None
        wanted = {share: sum(map(len, share.waiting)) for share in self._frames.starved()}
        if not wanted:
            return
        now_us = self._clock.now_us()
        late = [
            each
            for each in self._connections
            if each.intake.kept_bytes and self.is_late(each, now_us, STARVED_GRACE_S)
        ]
        late.sort(key=lambda each: each.intake.begun_bytes / each.frame_age_us(now_us))
        if self._frames.used_bytes + BEGIN_BYTES > self._frames.bytes_max:
            # The pool is full: whoever holds some of it is in the way of all.
            late = late[: sum(wanted.values())]
            wanted = {each.intake.share: len(late) for each in late}
        for each in late:
            share = each.intake.share
            if wanted.get(share):
                wanted[share] -= 1
                self._close(each, now_us)
        self._on_starved()

    def stop(self) -> None:
        """Look for nobody any more."""
        if self._check is not None:
            self._check.cancel()
        self._frames.on_starved = None
