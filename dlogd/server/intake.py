"""Cutting one connection's byte stream into frames, without a copy where none is needed.

Pure buffer logic: no socket, no loop. The transport reads into `buffer()`; `received` and
`next_frame` then yield (buffer, start, end) of each whole frame, without its length prefix. All
connections share one receive buffer per process, because it only holds bytes between a read and the
parse that follows at once. What is left of a cut frame is kept: small rests are put before
the next read, a large frame gets memory of its own and the socket reads straight into it.
"""

from collections.abc import Callable
from struct import Struct

from dlog.errors import ProtocolError

RECEIVE_BYTES = 256 * 1024
SMALL_FRAME_BYTES = 64 * 1024
POOLED_FRAME_BYTES = 2 * 1024 * 1024
POOLED_FRAME_COUNT_MAX = 8

_length = Struct(">i").unpack_from


class FrameMemory:
    """Memory of large frames that are being received, bounded over all connections.

    Invariant: used_bytes <= bytes_max, unless a single frame alone is larger (it may go on, so that
    no frame that the limits allow is stuck for ever).
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self._free: list[bytearray] = []
        self._waiters: list[Callable[[], None]] = []

    def take(self, size: int) -> bytearray | None:
        """Return at least `size` bytes, or None when the bound is reached."""
        if self.used_bytes and self.used_bytes + size > self.bytes_max:
            return None
        if size <= POOLED_FRAME_BYTES:
            memory = self._free.pop() if self._free else bytearray(POOLED_FRAME_BYTES)
        else:
            memory = bytearray(size)
        self.used_bytes += len(memory)
        return memory

    def give_back(self, memory: bytearray) -> None:
        """Take `memory` back and wake who waits for some."""
        self.used_bytes -= len(memory)
        if len(memory) == POOLED_FRAME_BYTES and len(self._free) < POOLED_FRAME_COUNT_MAX:
            self._free.append(memory)
        waiters, self._waiters = self._waiters, []
        for wake in waiters:
            wake()

    def when_available(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, at the next `give_back`."""
        self._waiters.append(wake)


class Intake:
    """The receiving half of one connection.

    Life: `buffer`, a read, `received(n)`, then `next_frame` until it returns None; a consumer that
    cannot go on calls `hold`, and later `next_frame` again. `close` gives memory back.
    """

    __slots__ = (
        "_end",
        "_frame",
        "_frame_filled",
        "_frame_size",
        "_memory",
        "_next",
        "_rest",
        "_shared",
        "_size_max",
        "_source",
        "_start",
    )

    def __init__(self, shared: bytearray, memory: FrameMemory, frame_bytes_max: int) -> None:
        self._shared = shared
        self._memory = memory
        self._size_max = frame_bytes_max
        self._rest = b""  # a small cut frame, put before the next read
        self._frame: bytearray | None = None  # memory of a large cut frame, prefix included
        self._frame_filled = 0
        self._frame_size = 0
        self._source: bytearray = shared
        self._start = 0  # of the frame handed out last, length prefix included
        self._next = 0
        self._end = 0

    @property
    def is_mid_frame(self) -> bool:
        """Whether the peer owes the rest of a frame."""
        return bool(self._rest) or self._frame is not None

    def buffer(self) -> memoryview:
        """Return where the next read goes; valid until `received`."""
        if self._frame is not None:
            return memoryview(self._frame)[self._frame_filled : self._frame_size]
        rest = self._rest
        kept = len(rest)
        self._source = self._shared
        self._next = 0
        self._end = kept
        if kept:
            self._shared[:kept] = rest
            self._rest = b""
        return memoryview(self._shared)[kept:]

    def received(self, count: int) -> None:
        """Account for `count` bytes that were read into `buffer()`."""
        frame = self._frame
        if frame is None:
            self._end += count
            return
        self._frame_filled += count
        if self._frame_filled == self._frame_size:
            self._frame_complete(frame)
        elif self._frame_filled == len(frame):
            self._grow(frame)

    def _frame_complete(self, frame: bytearray) -> None:
        self._source = frame
        self._next = 0
        self._end = self._frame_size

    def _grow(self, frame: bytearray) -> None:
        # Memory follows what has arrived, never what a length field promises.
        size = min(self._frame_size, 2 * len(frame))
        bigger = bytearray(size)
        bigger[: len(frame)] = frame
        self._memory.used_bytes += size
        self._frame = bigger
        self._memory.give_back(frame)

    def next_frame(self) -> tuple[bytearray, int, int] | None:
        """Return the next whole frame, or None when more bytes are needed.

        Raises ProtocolError for a length that is negative, too small for a header or over the
        limit. The frame is valid until `next_frame`, `buffer` or `close` is called.
        """
        source = self._source
        start = self._next
        available = self._end - start
        if available >= 4:
            size = _length(source, start)[0]
            if not 8 <= size <= self._size_max:
                raise ProtocolError(
                    f"A frame of {size} bytes is outside 8..{self._size_max} (frame.bytes.max)"
                )
            if available >= 4 + size:
                self._start = start
                self._next = end = start + 4 + size
                return source, start + 4, end
        self._keep_rest()
        return None

    def _keep_rest(self) -> None:
        source, start, end = self._source, self._next, self._end
        if source is self._frame:
            # A large frame was consumed whole: nothing follows it in its own memory.
            self._frame = None
            self._source = self._shared
            self._next = self._end = 0
            self._memory.give_back(source)
            return
        self._source = self._shared
        self._next = self._end = 0
        available = end - start
        if available == 0:
            return
        if available >= 4:
            size: int = _length(source, start)[0] + 4
            if size > SMALL_FRAME_BYTES:
                memory = self._memory.take(min(size, max(available, POOLED_FRAME_BYTES)))
                if memory is not None:
                    memory[:available] = memoryview(source)[start:end]
                    self._frame = memory
                    self._frame_filled = available
                    self._frame_size = size
                    return
        self._rest = bytes(memoryview(source)[start:end])

    @property
    def is_starved(self) -> bool:
        """Whether a large frame waits for memory: stop reading until some is given back."""
        return len(self._rest) >= SMALL_FRAME_BYTES

    def retry(self) -> None:
        """Try again to find memory for the large frame that waits."""
        rest = bytearray(self._rest)
        self._rest = b""
        self._source, self._next, self._end = rest, 0, len(rest)
        self._keep_rest()

    def hold(self) -> tuple[bytearray, int, int]:
        """Keep the frame handed out last, and what follows, beyond the shared buffer's next use.

        Returns the frame's new place.
        """
        if self._source is self._shared:
            self._source = bytearray(memoryview(self._shared)[self._start : self._end])
            self._next -= self._start
            self._end -= self._start
            self._start = 0
        return self._source, self._start + 4, self._next

    def park(self) -> None:
        """Keep what follows the frame handed out last beyond the shared buffer's next use."""
        if self._source is self._shared and self._next < self._end:
            self._source = bytearray(memoryview(self._shared)[self._next : self._end])
            self._end -= self._next
            self._next = 0

    def close(self) -> None:
        """Give memory back."""
        frame, self._frame = self._frame, None
        self._rest = b""
        if frame is not None:
            self._source = self._shared
            self._memory.give_back(frame)
