"""Frame reader: cuts one connection's bytes into frames, without a copy where possible.

Pure buffer logic: no socket, no loop. The transport reads into `buffer()`; `received` and
`next_frame` then yield (buffer, start, end) of each whole frame, without its length prefix. All
connections share one receive buffer per process, because it only holds bytes between a read and the
parse that follows at once. What is left of a cut frame is kept: small rests are put before the next
read; of a large frame, once much of it is there, the socket reads straight into memory of its own.
Each byte that is kept between two reads is charged to `dlogd.net.frame_memory`, which bounds the
bytes over all connections and for each address.
"""

from struct import Struct

from dlog.errors import ProtocolError
from dlogd.net import foreign_protocols
from dlogd.net.frame_memory import FrameMemory, Holder

RECEIVE_BYTES = 256 * 1024
SMALL_FRAME_BYTES = 64 * 1024
"""A rest up to this size is put before the next read; below RECEIVE_BYTES."""
NEW_READ_BYTES = 4 * 1024
"""What a connection that has not completed a frame yet reads at a time, and so what it keeps when
its address has no more memory. From this size on, its first frame has memory of its own."""
TIGHT_READ_BYTES = 8 * 1024
"""What all other connections read at a time while memory is tight."""

_length = Struct(">i").unpack_from


class FrameReader(Holder):
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

    def __init__(
        self,
        shared: bytearray,
        memory: FrameMemory,
        frame_bytes_max: int,
        address: str | None = None,
    ) -> None:
        """`address`: whose share of the memory is used; None: of a node that has proven itself."""
        share = memory.whole if address is None else memory.join(address)
        super().__init__(share, is_new=address is not None)
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
        """Whether a frame waits for memory: stop reading until `retry` succeeds."""

    @property
    def is_mid_frame(self) -> bool:
        """Whether the peer owes the rest of a frame."""
        return bool(self._rest) or self._frame is not None

    @property
    def begun_bytes(self) -> int:
        """How many bytes of an unfinished frame have come."""
        return len(self._rest) if self._frame is None else self._frame_filled

    @property
    def holds_memory(self) -> bool:
        """Whether a large frame has memory of its own."""
        return self._frame is not None

    def buffer(self) -> memoryview:
        """Return where the next read goes.

        Nothing changes until `received`: a read may find nothing, and other connections use the
        shared buffer before this one is asked again.
        """
        if self._frame is not None:
            return memoryview(self._frame)[self._frame_filled : self._frame_size]
        rest = self._rest
        kept = len(rest)
        if kept:
            self._shared[:kept] = rest
        if self.is_new:
            return memoryview(self._shared)[kept : kept + NEW_READ_BYTES]
        if self._memory.is_tight:
            return memoryview(self._shared)[kept : kept + TIGHT_READ_BYTES]
        return memoryview(self._shared)[kept:]

    def received(self, count: int) -> None:
        """Account for `count` bytes that were read into `buffer()`."""
        frame = self._frame
        if frame is None:
            self._source = self._shared
            self._next = 0
            self._end = len(self._rest) + count
            self._rest = b""
            if self.kept_bytes:
                self._memory.charge(self, 0)
            return
        self._frame_filled += count
        if self._frame_filled == self._frame_size:
            self._source = frame
            self._next = 0
            self._end = self._frame_size
        elif self._frame_filled >= self.kept_bytes or self._frame_filled == len(frame):
            self.is_starved = not self._grow(frame)

    def _grow(self, frame: bytearray) -> bool:
        # Memory follows what has arrived, never what a length field promises.
        memory, came = self._memory, self._frame_filled
        charge = memory.charge_of(self, self._frame_size, came)
        if not memory.may(self, charge):
            return False
        if came == len(frame):
            bigger = memory.buffer_of(self, charge, came)
            bigger[:came] = frame
            self._frame = bigger
            memory.put_by(self, frame)
        memory.charge(self, charge)
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
                foreign_protocols.check(source[start : start + foreign_protocols.HEAD_BYTES])
                raise ProtocolError(
                    f"A frame of {size} bytes is outside 8..{self._size_max} (frame.bytes.max)"
                )
            if available >= 4 + size:
                if self.is_new:
                    self._memory.on_completed(self)
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
            if self.kept_bytes and self._frame is None:
                self._memory.charge(self, 0)
            return
        rest = memoryview(source)[start:end]
        if not self._begin_large(rest):
            self._rest = bytes(rest)
            self._memory.charge(self, len(rest))

    def _begin_large(self, rest: memoryview) -> bool:
        """Give the frame that begins with `rest` memory of its own, when it is worth it."""
        memory, came = self._memory, len(rest)
        if came < SMALL_FRAME_BYTES and not (self.is_new and came >= NEW_READ_BYTES):
            self.is_starved = not memory.may(self, came)
            return False
        size = _length(rest, 0)[0] + 4
        charge = memory.charge_of(self, size, came)
        self.is_starved = not memory.may(self, charge)
        if self.is_starved:
            return False
        frame = memory.buffer_of(self, charge, came)
        frame[:came] = rest
        self._frame = frame
        self._frame_filled = came
        self._frame_size = size
        memory.charge(self, charge)
        return True

    def _drop_frame(self, frame: bytearray) -> None:
        self._frame = None
        self._source = self._shared
        self._next = self._end = 0
        self._memory.put_by(self, frame)
        self._memory.charge(self, 0)

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
            self._memory.charge(self, self._end)
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
            self._memory.charge(self, self._end)

    def let_go(self) -> None:
        """Forget the frame handed out last; nothing follows it."""
        if self._frame is None:
            self._source = self._shared
            self._next = self._end = 0
            self._memory.charge(self, 0)

    def close(self) -> None:
        """Give memory back."""
        frame, self._frame = self._frame, None
        self._rest = b""
        self._source = self._shared
        self._next = self._end = 0
        if frame is not None:
            self._memory.put_by(self, frame)
        self._memory.charge(self, 0)
        if self.share is not self._memory.whole:
            self._memory.leave(self.share)
