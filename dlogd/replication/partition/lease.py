"""Lease as the data path needs it: until when the node may lead. Types only."""

from typing import Protocol


class Lease(Protocol):
    """Implemented by `dlogd.controller.own_lease`; a node alone has an endless one."""

    @property
    def valid_until_us(self) -> int:
        """When it ends (`Clock.now_us`), exclusive."""


class EndlessLease:
    """Of a node that is a cluster of its own: nobody could lead in its place."""

    valid_until_us = 1 << 62


ENDLESS = EndlessLease()
