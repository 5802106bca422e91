"""Line of those that wait for memory, first come, first served."""

from collections import deque
from collections.abc import Callable


class MemoryWaiters:
    """Callbacks with what each needs. Owner: the loop's thread.

    They are called by `call_soon` when that is given, else from within `wake`.
    """

    __slots__ = ("_call_soon", "_is_available", "_scheduled", "calling", "waiting")

    def __init__(
        self,
        is_available: Callable[[int, int], bool],
        call_soon: Callable[[Callable[[], None]], object] | None,
    ) -> None:
        self.waiting: deque[tuple[int, int, Callable[[], None]]] = deque()
        self.calling = False
        self._is_available = is_available
        self._call_soon = call_soon
        self._scheduled = False

    def add(self, size_class: int, need_bytes: int, callback: Callable[[], None]) -> None:
        """Let `callback` wait for its turn, which may be now."""
        self.waiting.append((size_class, need_bytes, callback))
        if self._is_available(size_class, need_bytes):
            self.wake()

    def wake(self) -> None:
        """Something may have become available."""
        if self._scheduled or self.calling:
            return
        if self._call_soon is None:
            self._call_those_next()
        else:
            self._scheduled = True
            self._call_soon(self._call_those_next)

    @property
    def _is_next(self) -> bool:
        return bool(self.waiting) and self._is_available(*self.waiting[0][:2])

    def _call_those_next(self) -> None:
        """Call those whose turn it is; one that still finds nothing joins the line again."""
        self._scheduled = False
        self.calling = True
        count = len(self.waiting)
        try:
            while count and self._is_next:
                count -= 1
                self.waiting.popleft()[2]()
        finally:
            self.calling = False
            # After an exception, which the loop reports, the others still have their turn; without
            # one they wait for memory, and asking again at once would hold up who brings it.
            if count and self._is_next and self._call_soon is not None:
                self.wake()
