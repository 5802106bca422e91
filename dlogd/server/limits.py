"""Bounds that all connections of a listener share, and what its sweep has seen of each of them."""

from dlogd.intake import FrameMemory
from dlogd.server.foreign_clients import ForeignClients
from dlogd.server.loading import HeldReads


class ConnectionLimits:
    """Bounds of one connection and memory that all connections share."""

    def __init__(
        self,
        *,
        frame_bytes_max: int,
        inflight_requests_max: int,
        receive: bytearray,
        frames: FrameMemory,
        held: HeldReads,
    ) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.inflight_requests_max = inflight_requests_max
        self.receive = receive
        self.frames = frames
        self.held = held
        self.foreign = ForeignClients()


class Seen:
    """What the sweep for idle connections has seen of one; times by `Clock.now_us`."""

    __slots__ = ("received_bytes", "resumed_us", "sent_bytes", "sent_us", "slow_since_us")

    def __init__(self, now_us: int) -> None:
        self.received_bytes = 0
        self.sent_bytes = 0
        self.sent_us = now_us
        self.resumed_us = now_us
        self.slow_since_us = 0
        """Since when a large frame has come too slowly; 0: it has not."""
