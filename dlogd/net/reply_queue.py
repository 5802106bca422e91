"""Replies of one connection, in the order of its requests.

A request opens a `ReplySlot`; whoever answers it fills the slot, at any time; replies leave in
order. A reply is a list of pieces: bytes, and ranges of segments that are streamed from tail memory
or from disk while the peer takes them, so that a fetch of any size costs at most one read buffer.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable

from dlogd.net.disk_reader import DiskReader, HeldReads
from dlogd.net.reply_slot import Piece, RangePiece, ReplySlot, Source, release_pieces
from dlogd.net.send_turns import SLICE_BYTES, TURN_BYTES_MIN
from dlogd.net.socket_writer import Buffers, SocketWriter
from dlogd.net.unread_answers import LARGE_BYTES
from dlogd.storage.io.io_engine import Engine

GATHER_COUNT_MAX = 64
JOIN_BYTES_MAX = 16 * 1024
"""So little waits for the read that follows it, and leaves with what that brings."""
WAITING_BYTES_MAX = 1024 * 1024
"""Answers that wait behind an earlier one; beyond it no further request is taken."""


class ReplyQueue:
    """Ordered replies and the pump that sends them.

    Invariant: nothing is sent while the first range in `_out` waits for its bytes.
    """

    __slots__ = (
        "_blocked",
        "_closed",
        "_held",
        "_in_line",
        "_loading",
        "_on_error",
        "_on_progress",
        "_out",
        "_out_bytes",
        "_outlet",
        "_slots",
        "_waiting_bytes",
        "address",
        "bytes_sent",
    )

    def __init__(
        self,
        engine: Engine,
        held: HeldReads,
        on_error: Callable[[BaseException], None],
        on_progress: Callable[[], None],
    ) -> None:
        self._held = held
        self._on_error = on_error
        self._on_progress = on_progress
        self._outlet: SocketWriter | None = None
        self._slots: deque[ReplySlot] = deque()
        self._out: deque[Piece] = deque()
        self._out_bytes = 0  # of `_out`, ranges apart
        self._loading = DiskReader(engine, held, self._out, self._on_loaded, self._on_read_error)
        self._blocked = False
        self._closed = False
        self._waiting_bytes = 0
        self._in_line = False
        self.address = ""
        self.bytes_sent = 0

    def attach(self, outlet: SocketWriter, address: str = "") -> None:
        """Say where bytes leave, and whose they are; once, before the first reply."""
        self._outlet = outlet
        self.address = address

    def __len__(self) -> int:
        """Return how many replies are owed or not yet sent."""
        return len(self._slots) + len(self._out)

    @property
    def is_owing(self) -> bool:
        """Whether a request still waits for its answer."""
        return bool(self._slots)

    @property
    def is_sending(self) -> bool:
        """Whether an answer has not left completely."""
        return bool(self._out)

    def is_sending_of(self, segments: Collection[Source]) -> bool:
        """Whether bytes of some of these segments have not left completely."""
        return any(isinstance(each, RangePiece) and each.segment in segments for each in self._out)

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

    def open(self) -> ReplySlot:
        """Reserve the next place in the order."""
        slot = ReplySlot(self)
        self._slots.append(slot)
        return slot

    def reserve(self, slot: ReplySlot) -> None:
        """Give `slot`, made by the caller, the next place in the order."""
        self._slots.append(slot)

    def reply(self, data: bytes) -> None:
        """Answer a request at once; the slot is implied."""
        if self._slots or self._out:
            self.settle(self.open(), data)
        elif self._closed:
            pass
        elif len(data) < SLICE_BYTES:
            self._send_small(data)
        else:
            self._out.append(data)
            self._out_bytes += len(data)
            self.pump()

    def settle(self, slot: ReplySlot, data: bytes) -> None:
        """Fill `slot` with an answer that may be large; it leaves now or in its turn."""
        slot.fill((data,))
        self.count((data,))
        self.drain()

    def count(self, pieces: Iterable[Piece]) -> None:
        """Count an answer that may be large, before `drain`, as one that waits for its turn."""
        size = _bytes_of(pieces)
        self._waiting_bytes += size
        if size >= LARGE_BYTES and self._held.unread is not None:
            self._held.unread.note(self)

    @property
    def kept_bytes(self) -> int:
        """What answers take in memory that have not left."""
        return 0 if self._closed else self._waiting_bytes + self._out_bytes

    def give_up(self) -> None:
        """End the connection: its answers are not read, and the memory is needed."""
        self._on_error(ConnectionResetError("its answers were not read"))

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
        if not self._blocked and not self._loading.is_reading:
            self.pump()
        self._on_progress()

    def _collect(self) -> None:
        """Move every reply whose turn it is to what is sent."""
        slots = self._slots
        small: list[bytes] = []
        while slots and (pieces := slots[0].pieces) is not None:
            slots.popleft()
            if self._waiting_bytes:
                self._waiting_bytes = max(0, self._waiting_bytes - _bytes_of(pieces))
            if len(pieces) == 1 and type(pieces[0]) is bytes:
                small.append(pieces[0])
                continue
            if small:
                self._push(small)
                small = []
            self._out.extend(pieces)
            self._out_bytes += _bytes_of(pieces)
        if small:
            self._push(small)
        if not slots:
            self._waiting_bytes = 0

    def _push(self, small: list[bytes]) -> None:
        joined = small[0] if len(small) == 1 else b"".join(small)
        self._out.append(joined)
        self._out_bytes += len(joined)

    def on_writable(self) -> None:
        """The outlet has room again."""
        self._blocked = False
        self._loading.on_unblocked()
        self.pump()
        self._on_progress()

    @property
    def _may_send(self) -> bool:
        return not (self._blocked or self._closed or self._loading.is_reading)

    def pump(self) -> None:
        """Send as much as the peer takes now."""
        while self._out and self._may_send:
            buffers, size = self._gather()
            if not buffers:
                return
            if size >= TURN_BYTES_MIN and self._held.pacer is not None:
                if not self._in_line:
                    self._in_line = True
                    self._held.pacer.ask(self)
                return
            if not self._send(buffers, size):
                return

    def on_turn(self) -> None:
        """Send one slice of a large reply, then let others have their turn."""
        self._in_line = False
        if self._out and self._may_send:
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
            self._loading.on_blocked()
        return sent == size

    def _send_only(self, data: bytes) -> None:
        """Send the only reply that is owed, by the shortest way."""
        self._slots.popleft()
        self._waiting_bytes = 0
        if self._send_small(data):
            self._on_progress()

    def _send_small(self, data: bytes) -> bool:
        """Send what nothing is before; return whether it was tried."""
        self._out.append(data)
        if self._blocked or self._loading.is_reading or self._outlet is None:
            self._out_bytes += len(data)
            return False
        try:
            sent = self._outlet.send((data,))
        except OSError as error:
            self._on_error(error)
            return False
        self.bytes_sent += sent
        if sent == len(data):
            self._out.popleft()
        else:
            self._out[0] = memoryview(data)[sent:]
            self._out_bytes += len(data) - sent
            self._blocked = True
        return True

    def _gather(self) -> tuple[Buffers, int]:
        """Return what is to be sent next, and its size; nothing when it is being read first."""
        buffers: list[bytes | memoryview] = []
        size = 0
        for piece in self._out:
            view = self._loading.view(piece) if isinstance(piece, RangePiece) else piece
            if view is None:
                # What was read and is not among these is of no use: its segment was cut since.
                if not buffers or (size < JOIN_BYTES_MAX and not self._loading.is_loaded):
                    assert isinstance(piece, RangePiece)
                    self._loading.start(piece)
                    return (), 0
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
                self._loading.on_taken(piece)
                if piece.length:
                    return
                out.popleft()
                piece.segment.release()
            elif sent >= len(piece):
                sent -= len(piece)
                self._out_bytes -= len(piece)
                out.popleft()
            else:
                if sent:
                    out[0] = memoryview(piece)[sent:]
                    self._out_bytes -= sent
                return

    def _on_loaded(self) -> None:
        self.pump()
        self._on_progress()

    def _on_read_error(self, error: BaseException) -> None:
        self._on_error(error)

    def close(self) -> None:
        """Drop everything that was not sent; slots may still be filled, to no effect."""
        if self._closed:
            return
        self._closed = True
        self._loading.close()
        if self._held.unread is not None:
            self._held.unread.forget(self)
        if self._outlet is not None:
            self._outlet.close()
            self._outlet = None
        # Without these there is no cycle: a closed connection needs no garbage collector.
        self._on_error, self._on_progress = _ignore_error, _ignore_progress
        for slot in list(self._slots):
            if slot.pieces is None:
                slot.on_closed()
        release_pieces(self._out)
        self._out.clear()
        for slot in self._slots:
            if slot.pieces is not None:
                release_pieces(slot.pieces)
        self._slots.clear()


def _bytes_of(pieces: Iterable[Piece]) -> int:
    """Return what an answer takes in memory."""
    return sum(len(piece) for piece in pieces if not isinstance(piece, RangePiece))


def _ignore_error(_: BaseException) -> None:
    """Nobody is there any more."""


def _ignore_progress() -> None:
    """Nobody is there any more."""
