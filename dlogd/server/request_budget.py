"""Budget of one connection: requests whose answers are being made.

All APIs but Produce and Fetch. Their answers may take a thousand times the memory of the requests,
and are worked on until they are done, whoever waits for them; so few are made at a time. Kafka
takes one request of a connection at a time. Here it is more than one, so that a change of the
metadata that waits for other nodes holds nobody up.
"""

from dlogd.net.frame_memory import FrameMemory
from dlogd.telemetry.metrics import ServerMetrics

ANSWERS_MAX = 4
"""Answers of one connection that are made at a time."""


class RequestBudget:
    """The account of one connection. Owner: the event loop's thread.

    The bytes of requests count, over all connections, together with frames that are being received;
    they are given back when the connection is owed nothing more.
    """

    __slots__ = ("_bytes", "_count", "_frames", "_metrics")

    def __init__(self, frames: FrameMemory, metrics: ServerMetrics) -> None:
        self._frames = frames
        self._metrics = metrics
        self._count = 0
        self._bytes = 0

    @property
    def is_enough(self) -> bool:
        """Whether the connection may send no more of any kind for now.

        Beyond inflight.bytes.max, if it has such requests, or with ANSWERS_MAX of them.
        """
        return self._bytes > 0 and (self._count >= ANSWERS_MAX or self._frames.is_over)

    def begin(self, size: int) -> None:
        """Count a request of `size` bytes."""
        self._count += 1
        self.charge(max(1, size))

    def end(self) -> None:
        """Count an answer that is made; it may still wait for those before it."""
        self._count -= 1

    def release(self) -> None:
        """Give the bytes back; nothing is owed any more."""
        if self._bytes:
            self.charge(-self._bytes)

    def charge(self, size: int) -> None:
        """Count the bytes of a request that waits, whoever answers it."""
        self._bytes += size
        self._frames.charged_bytes += size
        self._metrics.inflight_bytes += size
