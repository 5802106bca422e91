"""Window of a session: frames that the follower has not confirmed.

Pure. Part of `dlogd.replication.leader.follower_session`. Bounded by bytes, because the follower
must hold them, and by frames, because also those without records take memory here while it takes
nothing.
"""

from collections import deque

from dlog.errors import ProtocolError

WINDOW_BYTES = 8 << 20
DISK_FRAMES_MAX = 2
"""Frames that are read from a disk and not taken yet."""
FRAMES_MAX = 10_000


class SendWindow:
    """Invariant: `taken` and the frames under way are all that were ever sent."""

    __slots__ = ("_bytes", "_disk_frames", "_frames", "taken")

    def __init__(self) -> None:
        self.taken = 0
        self._frames: deque[tuple[int, bool]] = deque()  # bytes, whether read from a disk
        self._bytes = 0
        self._disk_frames = 0

    @property
    def is_open(self) -> bool:
        """Whether another frame may be sent."""
        return self._bytes < WINDOW_BYTES and len(self._frames) < FRAMES_MAX

    @property
    def may_read(self) -> bool:
        """Whether it may be one that is read from a disk."""
        return self._disk_frames < DISK_FRAMES_MAX

    def on_sent(self, size: int, *, is_disk: bool) -> None:
        """Note a frame that leaves."""
        self._frames.append((size, is_disk))
        self._bytes += size
        self._disk_frames += is_disk

    def on_taken(self, taken: int) -> None:
        """The follower has taken so many frames in all; raise ProtocolError for nonsense."""
        if not self.taken <= taken <= self.taken + len(self._frames):
            raise ProtocolError(f"it has taken {taken} frames")
        for _ in range(taken - self.taken):
            size, is_disk = self._frames.popleft()
            self._bytes -= size
            self._disk_frames -= is_disk
        self.taken = taken
