"""Replies of one connection, in the order of its requests.

A request opens a `Slot`; whoever answers it fills the slot, at any time; replies leave in order.
A reply is a list of pieces: bytes, and ranges of segments that are streamed from tail memory or
from disk while the peer takes them, so that a fetch of any size costs at most one read buffer.
"""

from collections import deque
from collections.abc import Callable

from dlogd.server.outlet import Buffers, Outlet
from dlogd.server.pacing import SLICE_BYTES, Pacer
from dlogd.server.slots import Piece, RangePiece, Slot, release_pieces
from dlogd.storage.engine import Engine, ReadBuffer

GATHER_COUNT_MAX = 64
WAITING_BYTES_MAX = 1024 * 1024
"""Answers that wait behind an earlier one; beyond it no further request is taken."""


class HeldReads:
    """What all connections share: read buffers kept while peers are slow, turns for large sends."""

    __slots__ = ("count_max", "count_now", "pacer")

    def __init__(self, count_max: int, pacer: Pacer | None = None) -> None:
        self.count_max = count_max
        self.count_now = 0
        self.pacer = pacer


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
        "_in_line",
        "_loaded",
        "_loaded_position",
        "_on_error",
        "_on_progress",
        "_out",
        "_outlet",
        "_reading",
        "_slots",
        "_waiting_bytes",
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
        self._waiting_bytes = 0
        self._in_line = False
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

    def is_full(self, count_max: int) -> bool:
        """Whether no further request may be taken: too many wait, or the peer takes no answers."""
        return (
            bool(self._out)
            or len(self._slots) >= count_max
            or self._waiting_bytes > WAITING_BYTES_MAX
        )

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
            self.settle(self.open(), data)
        elif not self._closed:
            self._out.append(data)
            self.pump()

    def settle(self, slot: Slot, data: bytes) -> None:
        """Fill `slot` with an answer that may be large; it leaves now or in its turn."""
        slot.fill((data,))
        self._waiting_bytes += len(data)
        self.drain()

    def drain(self) -> None:
        """Send every reply whose turn it is. Call after filling slots."""
        slots = self._slots
        if not slots or (pieces := slots[0].pieces) is None:
            return
        if len(slots) == 1 and not self._out and len(pieces) == 1:
            data = pieces[0]
            if type(data) is bytes and len(data) < SLICE_BYTES:
                self._send_only(data)
                return
        self._collect()
        if not self._blocked and not self._reading:
            self.pump()
        self._on_progress()

    def _collect(self) -> None:
        """Move every reply whose turn it is to what is sent."""
        slots = self._slots
        small: list[bytes] = []
        while slots and (pieces := slots[0].pieces) is not None:
            slots.popleft()
            if len(pieces) == 1 and type(pieces[0]) is bytes:
                small.append(pieces[0])
                if self._waiting_bytes:
                    self._waiting_bytes = max(0, self._waiting_bytes - len(pieces[0]))
                continue
            if small:
                self._out.append(b"".join(small))
                small = []
            self._out.extend(pieces)
        if small:
            self._out.append(small[0] if len(small) == 1 else b"".join(small))
        if not slots:
            self._waiting_bytes = 0

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
            if size >= SLICE_BYTES and self._held.pacer is not None:
                if not self._in_line:
                    self._in_line = True
                    self._held.pacer.ask(self)
                return
            if not self._send(buffers, size):
                return

    def on_turn(self) -> None:
        """Send one slice of a large reply, then let others have their turn."""
        self._in_line = False
        if self._out and not self._blocked and not self._reading and not self._closed:
            buffers, size = self._gather()
            if buffers and self._send(buffers, size):
                self.pump()
            self._on_progress()

    def _send(self, buffers: Buffers, size: int) -> bool:
        """Send, and forget what was taken; False when the peer takes no more now."""
        assert self._outlet is not None
        try:
            sent = self._outlet.send(buffers)
        except OSError as error:
            self._on_error(error)
            return False
        self.bytes_sent += sent
        self._consume(sent)
        if sent < size:
            self._blocked = True
            self._let_go()
        return sent == size

    def _send_only(self, data: bytes) -> None:
        """Send the only reply that is owed, by the shortest way."""
        self._slots.popleft()
        self._waiting_bytes = 0
        self._out.append(data)
        if self._blocked or self._reading or self._outlet is None:
            return
        try:
            sent = self._outlet.send((data,))
        except OSError as error:
            self._on_error(error)
            return
        self.bytes_sent += sent
        if sent == len(data):
            self._out.popleft()
        else:
            self._out[0] = memoryview(data)[sent:]
            self._blocked = True
        self._on_progress()

    def _gather(self) -> tuple[Buffers, int]:
        buffers: list[bytes | memoryview] = []
        size = 0
        for piece in self._out:
            view = self._view(piece) if isinstance(piece, RangePiece) else piece
            if view is None:
                break
            room = SLICE_BYTES - size
            if len(view) > room:
                buffers.append(memoryview(view)[:room])
                return buffers, SLICE_BYTES
            buffers.append(view)
            size += len(view)
            if isinstance(piece, RangePiece) and len(view) < piece.length:
                break
            if size == SLICE_BYTES or len(buffers) >= GATHER_COUNT_MAX:
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
        piece = self._out[0]
        assert isinstance(piece, RangePiece)
        if isinstance(result, OSError):
            piece.segment.on_read_error(result)
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
            self._outlet = None
        # Without these there is no cycle: a closed connection needs no garbage collector.
        self._on_error, self._on_progress = _ignore_error, _ignore_progress
        for slot in list(self._slots):
            if slot.pieces is None:
                slot.on_closed()
        if not self._reading:
            self._finish_close()

    def _finish_close(self) -> None:
        if self._closed:
            release_pieces(self._out)
            self._out.clear()
            for slot in self._slots:
                if slot.pieces is not None:
                    release_pieces(slot.pieces)
            self._slots.clear()


def _ignore_error(_: BaseException) -> None:
    """Nobody is there any more."""


def _ignore_progress() -> None:
    """Nobody is there any more."""
