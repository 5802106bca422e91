"""Pending acknowledgements: requests that wait for the log, or for all replicas in sync.

Owner: the event loop's thread; part of `dlogd.replication.partition.partition`. The time at which
the lease of this node ends is looked at with each acknowledgement.
"""

import asyncio
from collections.abc import Callable

from dlog.errors import (
    NotEnoughReplicasAfterAppendError,
    RequestTimedOutError,
    WireError,
)
from dlogd.replication.partition.ack_queue import AckQueue
from dlogd.replication.partition.leader_state import LeaderState
from dlogd.replication.partition.lease import Lease, end_error
from dlogd.replication.partition.waiters import AckWaiter
from dlogd.runtime.clock import Clock


def late_error(
    leader: LeaderState | None, promised_offset: int, end_offset: int
) -> WireError | None:
    """Return the error of a request whose time is over; None while its own log is waited for."""
    if end_offset > promised_offset:
        return None
    if leader is not None and leader.isr_count < leader.min_isr:
        return NotEnoughReplicasAfterAppendError(
            f"The batch was appended; since then only {leader.isr_count} are in sync,"
            f" min.insync.replicas is {leader.min_isr}"
        )
    return RequestTimedOutError("The batch was appended but not yet acknowledged in time")


class PendingAcks:
    """The two kinds of waiting."""

    __slots__ = ("_clock", "all", "lease", "own")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        lease: Lease,
        late: Callable[[int], WireError | None],
    ) -> None:
        """`late(end_offset)` is the error of a request whose time is over, None: not yet."""
        self._clock = clock
        self.lease = lease
        self.own = AckQueue(loop, self._judge, late)
        """For what this log has promised."""
        self.all = AckQueue(loop, self._judge, late)
        """For the high watermark."""

    def __len__(self) -> int:
        return len(self.own) + len(self.all)

    def acknowledge(self, waiter: AckWaiter, index: int) -> None:
        """Call `waiter.on_acked` for what is safe already; its owner drains."""
        error, now_us = self._judge(None)
        waiter.on_acked(index, error, now_us)

    def fail(self, error: WireError) -> None:
        """Nobody knows what becomes of what is waited for."""
        self.own.fail(error)
        self.all.fail(error)

    def _judge(self, error: WireError | None) -> tuple[WireError | None, int]:
        now_us = self._clock.now_us()
        return error or end_error(self.lease, now_us), now_us
