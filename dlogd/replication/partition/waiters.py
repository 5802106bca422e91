"""Protocols of those that wait for the progress of a partition."""

from typing import Protocol

from dlog.errors import WireError
from dlogd.replication.partition.leader_state import FollowerProgress


class Drainable(Protocol):
    """Something with replies that may leave; drained once per event, however many were filled."""

    def drain(self) -> None:
        """Send every reply whose turn it is."""


class AckWaiter(Protocol):
    """A produce request that waits until its batches are as safe as was promised."""

    def on_acked(self, index: int, error: WireError | None, now_us: int) -> Drainable | None:
        """Settle part `index` of the request; return whose replies may leave."""


class FetchWaiter(Protocol):
    """A fetch request that waits for records."""

    def on_data(self, number: int) -> None:
        """Of the partition that it waits for by `number` there is enough, or it has failed.

        Said once: a waiter that wants more adds itself again. Must not raise: others wait.
        """


class Subscriber(Protocol):
    """A follower that is fed with what a leader appends. None of these may raise."""

    @property
    def progress(self) -> FollowerProgress:
        """How far it is."""

    def on_append(self) -> None:
        """There is more to send."""

    def on_watermark(self) -> None:
        """The high watermark has moved."""

    def on_end(self, error: WireError) -> None:
        """Nothing more comes from this leader epoch."""


class Reporter(Protocol):
    """Tells a leader how far this follower is."""

    def on_promised(self) -> None:
        """The log's promise has moved, or the log has failed."""
