"""Lease: beyond its end this node leads nothing, answers no read and acknowledges nothing."""

from typing import Protocol

from dlog.errors import NotLeaderOrFollowerError


class Lease(Protocol):
    """Implemented by `dlogd.controller.own_lease`; a node alone has an endless one."""

    @property
    def valid_until_us(self) -> int:
        """When it ends (`Clock.now_us`), exclusive."""


class EndlessLease:
    """Of a node that is a cluster of its own: nobody could lead in its place."""

    valid_until_us = 1 << 62


ENDLESS = EndlessLease()


def is_valid(lease: Lease, now_us: int) -> bool:
    """Return whether this node may lead at a time: afterwards another one may lead already."""
    return now_us < lease.valid_until_us


def end_error(lease: Lease, now_us: int) -> NotLeaderOrFollowerError | None:
    """Return the error of what would be given out beyond the end, None before it."""
    if is_valid(lease, now_us):
        return None
    return NotLeaderOrFollowerError("The lease of this node has ended")
