"""Replies of one connection, in the order of its requests.

A request opens a `Slot`; whoever answers it fills the slot, at any time; replies leave in order.
A reply is a list of pieces: bytes, and ranges of segments that are streamed from tail memory or
from disk while the peer takes them, so that a fetch of any size costs at most one read buffer.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from dlogd.server.outlet import Buffers, Outlet
from dlogd.storage.engine import Engine, ReadBuffer
from dlogd.storage.files import File

log = logging.getLogger(__name__)

GATHER_COUNT_MAX = 64
GATHER_BYTES_MAX = 1024 * 1024


class Source(Protocol):
    """A segment as the stream sees it."""

    @property
    def file(self) -> File | None:
        """The file that holds what memory does not; there as long as the segment is acquired."""

    def memory_view(self, position: int, length_max: int) -> memoryview | None:
        """Return bytes at `position` from tail memory, valid until control returns to the loop."""

    def release(self) -> None:
        """Undo one `acquire`."""


class RangePiece:
    """Bytes [position, position + length) of an acquired segment, still to be sent."""

    __slots__ = ("length", "position", "segment")

    def __init__(self, segment: Source, position: int, length: int) -> None:
        self.segment = segment
        self.position = position
        self.length = length


Piece = bytes | memoryview | RangePiece


class Slot:
    """The place of one reply; filled once. `None` until then; no pieces answer nothing."""

    __slots__ = ("pieces", "replies")

    def __init__(self, replies: "Replies") -> None:
        self.replies = replies
        self.pieces: Sequence[Piece] | None = None

    def fill(self, pieces: Sequence[Piece]) -> "Replies":
        """Set the reply; return the owner, whose `drain` sends it when its turn has come."""
        if self.replies.is_closed:
            _release(pieces)
        else:
            self.pieces = pieces
        return self.replies


class HeldReads:
    """How many read buffers connections may keep while their peer is slow; shared by all."""

    __slots__ = ("count_max", "count_now")

    def __init__(self, count_max: int) -> None:
        self.count_max = count_max
        self.count_now = 0


class Replies:
    """Ordered replies and the pump that sends them.

    Invariant: `_loaded` holds bytes of the first piece of `_out`, from its position on.
    """

    __slots__ = (
        "_blocked",
        "_closed",
        "_engine",
        "_held",
        "_holding",
        "_loaded",
        "_loaded_position",
        "_on_error",
        "_on_progress",
        "_out",
        "_outlet",
        "_reading",
        "_slots",
        "bytes_sent",
    )

    def __init__(
        self,
        engine: Engine,
        held: HeldReads,
        on_error: Callable[[BaseException], None],
        on_progress: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._held = held
        self._on_error = on_error
        self._on_progress = on_progress
        self._outlet: Outlet | None = None
        self._slots: deque[Slot] = deque()
        self._out: deque[Piece] = deque()
        self._loaded: ReadBuffer | None = None
        self._loaded_position = 0
        self._holding = False
        self._reading = False
        self._blocked = False
        self._closed = False
        self.bytes_sent = 0

    def attach(self, outlet: Outlet) -> None:
        """Say where bytes leave; once, before the first reply."""
        self._outlet = outlet

    def __len__(self) -> int:
        """Return how many replies are owed or not yet sent."""
        return len(self._slots) + len(self._out)

    @property
    def is_owing(self) -> bool:
        """Whether a request still waits for its answer."""
        return bool(self._slots)

    @property
    def is_backed_up(self) -> bool:
        """Whether the peer does not take what is ready for it."""
        return bool(self._out)

    @property
    def is_closed(self) -> bool:
        """Whether the connection has ended."""
        return self._closed

    def open(self) -> Slot:
        """Reserve the next place in the order."""
        slot = Slot(self)
        self._slots.append(slot)
        return slot

    def reserve(self, slot: Slot) -> None:
        """Give `slot`, made by the caller, the next place in the order."""
        self._slots.append(slot)

    def reply(self, data: bytes) -> None:
        """Answer a request at once; the slot is implied."""
        if self._slots or self._out:
            self.open().fill((data,)).drain()
        elif not self._closed:
            self._out.append(data)
            self.pump()

    def drain(self) -> None:
        """Send every reply whose turn it is. Call after filling slots."""
        slots = self._slots
        if not slots or slots[0].pieces is None:
            return
        small: list[bytes] = []
        while slots and (pieces := slots[0].pieces) is not None:
            slots.popleft()
            if len(pieces) == 1 and type(pieces[0]) is bytes:
                small.append(pieces[0])
                continue
            if small:
                self._out.append(b"".join(small))
                small = []
            self._out.extend(pieces)
        if small:
            self._out.append(small[0] if len(small) == 1 else b"".join(small))
        if not self._blocked and not self._reading:
            self.pump()
        self._on_progress()

    def on_writable(self) -> None:
        """The outlet has room again."""
        self._blocked = False
        self.pump()
        self._on_progress()

    def pump(self) -> None:
        """Send as much as the peer takes now."""
        out = self._out
        while out and not self._blocked and not self._reading and not self._closed:
            buffers, size = self._gather()
            if not buffers:
                self._start_read()
                return
            assert self._outlet is not None
            try:
                sent = self._outlet.send(buffers)
            except OSError as error:
                self._on_error(error)
                return
            self.bytes_sent += sent
            self._consume(sent)
            if sent < size:
                self._blocked = True
                self._let_go()

    def _gather(self) -> tuple[Buffers, int]:
        buffers: Buffers = []
        size = 0
        for piece in self._out:
            if isinstance(piece, RangePiece):
                view = self._view(piece)
                if view is None:
                    break
                buffers.append(view)
                size += len(view)
                if len(view) < piece.length:
                    break
            else:
                buffers.append(piece)
                size += len(piece)
            if size >= GATHER_BYTES_MAX or len(buffers) >= GATHER_COUNT_MAX:
                break
        return buffers, size

    def _view(self, piece: RangePiece) -> memoryview | None:
        if piece is self._out[0] and self._loaded is not None:
            start = piece.position - self._loaded_position
            return self._loaded.view[start : start + piece.length]
        return piece.segment.memory_view(piece.position, piece.length)

    def _consume(self, sent: int) -> None:
        out = self._out
        while out:
            piece = out[0]
            if isinstance(piece, RangePiece):
                if sent == 0:
                    return
                step = min(sent, piece.length)
                piece.position += step
                piece.length -= step
                sent -= step
                self._drop_if_used(piece)
                if piece.length:
                    return
                out.popleft()
                piece.segment.release()
            elif sent >= len(piece):
                sent -= len(piece)
                out.popleft()
            else:
                if sent:
                    out[0] = memoryview(piece)[sent:]
                return

    def _drop_if_used(self, piece: RangePiece) -> None:
        loaded = self._loaded
        if loaded is not None and (
            piece.length == 0 or piece.position >= self._loaded_position + len(loaded.view)
        ):
            self._release_loaded()

    def _let_go(self) -> None:
        # A slow peer keeps its read buffer only while few do; others read again when it is due.
        if self._loaded is None or self._holding:
            return
        if self._held.count_now < self._held.count_max:
            self._held.count_now += 1
            self._holding = True
        else:
            self._release_loaded()

    def _release_loaded(self) -> None:
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            loaded.release()
        if self._holding:
            self._holding = False
            self._held.count_now -= 1

    def _start_read(self) -> None:
        piece = self._out[0]
        assert isinstance(piece, RangePiece)
        file = piece.segment.file
        if file is None:
            self._on_error(OSError("A segment that is read from has no file"))
            return
        self._reading = True
        length = min(piece.length, self._engine.read_length_max)
        self._engine.read(file, piece.position, length, self._on_read)

    def _on_read(self, result: ReadBuffer | OSError) -> None:
        self._reading = False
        if isinstance(result, OSError):
            if not self._closed:
                self._on_error(result)
            self._finish_close()
            return
        if self._closed:
            result.release()
            self._finish_close()
            return
        if len(result.view) == 0:
            result.release()
            self._on_error(OSError("A segment ended before the range that a fetch was promised"))
            return
        piece = self._out[0]
        assert isinstance(piece, RangePiece)
        self._loaded = result
        self._loaded_position = piece.position
        self.pump()
        self._on_progress()

    def close(self) -> None:
        """Drop everything that was not sent; slots may still be filled, to no effect."""
        if self._closed:
            return
        self._closed = True
        self._release_loaded()
        if self._outlet is not None:
            self._outlet.close()
        if not self._reading:
            self._finish_close()

    def _finish_close(self) -> None:
        if self._closed:
            _release(self._out)
            self._out.clear()
            for slot in self._slots:
                if slot.pieces is not None:
                    _release(slot.pieces)
            self._slots.clear()


def _release(pieces: Sequence[Piece] | deque[Piece]) -> None:
    for piece in pieces:
        if isinstance(piece, RangePiece):
            piece.segment.release()
