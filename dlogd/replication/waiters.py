"""Who waits for a partition to make progress, as the partition sees them: three protocols."""

from typing import Protocol

from dlog.errors import WireError


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
        """Of the partition that it waits for by `number` there is more, or it has failed.

        Must not raise: others wait to be told.
        """
