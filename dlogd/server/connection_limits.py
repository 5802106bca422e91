"""Limits that the connections of a listener share, and findings of its sweep."""

from dlogd.net.disk_reader import HeldReads
from dlogd.net.foreign_clients import ForeignClients
from dlogd.net.frame_memory import FrameMemory


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
    """What sweeps have seen of a connection; times by `Clock.now_us`."""

    __slots__ = ("begun_us", "first_us", "paused_us", "received_bytes", "sent_bytes", "sent_us")

    def __init__(self, now_us: int) -> None:
        self.received_bytes = 0
        self.sent_bytes = 0
        self.sent_us = now_us
        self.begun_us = 0
        """When the unfinished frame began, later by the time in which nothing was read; 0: none."""
        self.first_us = 0
        """When the unfinished frame really began."""
        self.paused_us = now_us
        """Since when nothing is read."""
