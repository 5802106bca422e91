"""Cutting one connection's byte stream into frames, without a copy where none is needed.

Pure buffer logic: no socket, no loop. The transport reads into `buffer()`; `received` and
`next_frame` then yield (buffer, start, end) of each whole frame, without its length prefix. All
connections share one receive buffer per process, because it only holds bytes between a read and the
parse that follows at once. What is left of a cut frame is kept: small rests are put before
the next read; of a large frame, once much of it is there, the socket reads straight into memory of
its own, which is bounded over all connections.
"""

from collections.abc import Callable
from struct import Struct

from dlog.errors import ProtocolError
from dlogd import foreign

RECEIVE_BYTES = 256 * 1024
SMALL_FRAME_BYTES = 64 * 1024
"""A rest up to this size costs no memory of the bounded kind; below RECEIVE_BYTES."""
POOLED_FRAME_BYTES = 2 * 1024 * 1024
POOLED_FRAME_COUNT_MAX = 8

_length = Struct(">i").unpack_from

Retry = Callable[[], bool]
"""Tries again to get memory; False when there is still none."""


class FrameMemory:
    """Memory of large frames that are being received, bounded over all connections.

    Invariant: used_bytes <= bytes_max, but for one frame at a time: the only one, or one that is
    growing. It may go on, so that frames that hold memory and want more never wait for each other.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self.charged_bytes = 0
        """Of requests that were read and wait for their answer (`Connection.charge`)."""
        self._free: list[bytearray] = []
        self._beyond: Intake | None = None  # whose frame may go beyond the bound
        # In order of arrival. Who holds memory already comes first: it gives back the most.
        self._growing: dict[Retry, None] = {}
        self._beginning: dict[Retry, None] = {}

    @property
    def is_over(self) -> bool:
        """Whether requests take more than they may."""
        return self.used_bytes + self.charged_bytes > self.bytes_max

    def take(self) -> bytearray | None:
        """Return POOLED_FRAME_BYTES for a frame's beginning, or None at the bound."""
        if self.used_bytes and self.used_bytes + POOLED_FRAME_BYTES > self.bytes_max:
            return None
        memory = self._free.pop() if self._free else bytearray(POOLED_FRAME_BYTES)
        self.used_bytes += POOLED_FRAME_BYTES
        return memory

    def grow(self, memory: bytearray, size: int, owner: "Intake") -> bytearray | None:
        """Return memory of `size` with the same content in place of `memory`; None at the bound."""
        extra = size - len(memory)
        if self.used_bytes + extra > self.bytes_max:
            if self._beyond is not None and self._beyond is not owner:
                return None
            self._beyond = owner
        bigger = bytearray(size)
        bigger[: len(memory)] = memory
        self.used_bytes += extra
        self._put_by(memory)
        return bigger

    def give_back(self, memory: bytearray, owner: "Intake") -> None:
        """Take `memory` back and wake who waits for some."""
        self.used_bytes -= len(memory)
        self._put_by(memory)
        if self._beyond is owner:
            self._beyond = None
        for line in (self._growing, self._beginning):
            for retry in list(line):
                if not retry():
                    break
                line.pop(retry, None)

    def _put_by(self, memory: bytearray) -> None:
        if len(memory) == POOLED_FRAME_BYTES and len(self._free) < POOLED_FRAME_COUNT_MAX:
            self._free.append(memory)

    def when_available(self, retry: Retry, *, grows: bool) -> None:
        """Call `retry` in its turn after each `give_back` until it returns True."""
        (self._growing if grows else self._beginning)[retry] = None

    def forget(self, retry: Retry) -> None:
        """Do not call `retry` any more."""
        self._growing.pop(retry, None)
        self._beginning.pop(retry, None)


class Intake:
    """The receiving half of one connection.

    Life: `buffer`, a read, `received(n)`, then `next_frame` until it returns None; a consumer that
    cannot go on calls `hold` or `park`, and later `next_frame` again. `close` gives memory back.
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
        "has_more",
        "is_starved",
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
        self.has_more = False
        """Whether `next_frame` must be called again: something follows the frame handed out."""
        self.is_starved = False
        """Whether a large frame waits for memory: stop reading until `retry` succeeds."""

    @property
    def is_mid_frame(self) -> bool:
        """Whether the peer owes the rest of a frame."""
        return bool(self._rest) or self._frame is not None

    @property
    def holds_memory(self) -> bool:
        """Whether a large frame takes memory that others may wait for."""
        return self._frame is not None

    def buffer(self) -> memoryview:
        """Return where the next read goes.

        Nothing changes until `received`: a read may find nothing, and other connections use the
        shared buffer before this one is asked again.
        """
        if self._frame is not None:
            return memoryview(self._frame)[self._frame_filled : self._frame_size]
        rest = self._rest
        if not rest:
            return memoryview(self._shared)
        self._shared[: len(rest)] = rest
        return memoryview(self._shared)[len(rest) :]

    def received(self, count: int) -> None:
        """Account for `count` bytes that were read into `buffer()`."""
        frame = self._frame
        if frame is None:
            self._source = self._shared
            self._next = 0
            self._end = len(self._rest) + count
            self._rest = b""
            return
        self._frame_filled += count
        if self._frame_filled == self._frame_size:
            self._source = frame
            self._next = 0
            self._end = self._frame_size
        elif self._frame_filled == len(frame):
            self.is_starved = not self._grow(frame)

    def _grow(self, frame: bytearray) -> bool:
        # Memory follows what has arrived, never what a length field promises.
        bigger = self._memory.grow(frame, min(self._frame_size, 2 * len(frame)), self)
        if bigger is None:
            return False
        self._frame = bigger
        return True

    def next_frame(self) -> tuple[bytearray, int, int] | None:
        """Return the next whole frame, or None when more bytes are needed.

        Raises ProtocolError for a length that is negative, too small for a header or over the
        limit. The frame is valid until `next_frame`, `buffer`, `park` or `close` is called.
        """
        source = self._source
        start = self._next
        available = self._end - start
        if available >= 4:
            size = _length(source, start)[0]
            if not 8 <= size <= self._size_max:
                foreign.check(source[start : start + foreign.HEAD_BYTES])
                raise ProtocolError(
                    f"A frame of {size} bytes is outside 8..{self._size_max} (frame.bytes.max)"
                )
            if available >= 4 + size:
                self._start = start
                self._next = end = start + 4 + size
                self.has_more = end != self._end or source is self._frame
                return source, start + 4, end
        self._keep_rest()
        return None

    def _keep_rest(self) -> None:
        source, start, end = self._source, self._next, self._end
        if source is self._frame:
            # A large frame was consumed whole: nothing follows it in its own memory.
            self._drop_frame(source)
            return
        self._source = self._shared
        self._next = self._end = 0
        if start == end:
            return
        rest = memoryview(source)[start:end]
        if not self._begin_large(rest):
            self._rest = bytes(rest)

    def _begin_large(self, rest: memoryview) -> bool:
        """Give the frame that begins with `rest` memory of its own, when it is worth it."""
        if len(rest) < SMALL_FRAME_BYTES:
            return False
        memory = self._memory.take()
        self.is_starved = memory is None
        if memory is None:
            return False
        memory[: len(rest)] = rest
        self._frame = memory
        self._frame_filled = len(rest)
        self._frame_size = _length(rest, 0)[0] + 4
        return True

    def _drop_frame(self, frame: bytearray) -> None:
        self._frame = None
        self._source = self._shared
        self._next = self._end = 0
        self._memory.give_back(frame, self)

    def retry(self) -> bool:
        """Try again to get the memory that a large frame waits for; False when there is none."""
        if self._frame is not None:
            self.is_starved = not self._grow(self._frame)
        elif self._begin_large(memoryview(self._rest)):
            self._rest = b""
        return not self.is_starved

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
        if self._next == self._end:
            if self._source is self._frame:
                self._drop_frame(self._source)
        elif self._source is self._shared:
            self._source = bytearray(memoryview(self._shared)[self._next : self._end])
            self._end -= self._next
            self._next = 0

    def close(self) -> None:
        """Give memory back."""
        frame, self._frame = self._frame, None
        self._rest = b""
        self._source = self._shared
        self._next = self._end = 0
        if frame is not None:
            self._memory.give_back(frame, self)
