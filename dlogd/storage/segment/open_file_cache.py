"""Cache of open files of closed segments: the most recently used ones.

A bound on descriptors over all logs of a node. Owner: the event loop's thread.
"""

from collections.abc import Callable

from dlogd.storage.segment.segment import Segment

OPEN_SEGMENTS_MAX = 512


class OpenFileCache:
    """An LRU of closed segments with open files; what readers hold is passed over."""

    def __init__(self, count_max: int = OPEN_SEGMENTS_MAX) -> None:
        self._count_max = count_max
        self._opened: dict[Segment, Callable[[], None]] = {}

    def __len__(self) -> int:
        return len(self._opened)

    def add(self, segment: Segment, close: Callable[[], None]) -> None:
        """Count a segment that was just opened; `close` is called when others push it out."""
        self._opened[segment] = close
        excess = len(self._opened) - self._count_max
        if excess <= 0:
            return
        for old in list(self._opened):
            if excess <= 0 or old is segment:
                return
            if not old.is_acquired:
                excess -= 1
                self._opened.pop(old)()

    def touch(self, segment: Segment) -> None:
        """Make `segment` the last to be pushed out, if it is counted."""
        close = self._opened.pop(segment, None)
        if close is not None:
            self._opened[segment] = close

    def discard(self, segment: Segment) -> None:
        """Forget `segment`: its owner closes it."""
        self._opened.pop(segment, None)
