"""Reader of a connection's ranges from disk: one read that is sent, one read ahead.

Read memory is scarce and peers may be slow. A buffer whose peer takes nothing now is kept only as
one of the few that blocked last: a quick peer goes on with it, a slow one loses it to others, and
later reads as little as it took. A few quick peers have the next bytes read while they take the
last: those of the answer, and what follows it once a peer is seen to read on.
Owner: the event loop's thread.
"""

from collections.abc import Callable, Iterable

from dlogd.net.reply_slot import Piece, RangePiece, Source
from dlogd.net.send_turns import SendTurns
from dlogd.net.unread_answers import UnreadAnswers
from dlogd.storage.io.io_engine import ALIGNMENT, Engine, ReadBuffer

SIP_BYTES = 64 * 1024 - ALIGNMENT
"""The least that is read for a slow peer: even unaligned it fits into a small buffer."""
AHEAD_SHARE = 2
"""As one in so many of those that may hold a buffer, so many may have one more, read ahead."""
AHEAD_IDLE_CALLS = 8
"""Who has not asked while all others asked so often loses what was read ahead for it."""


class HeldReads:
    """What all connections share: buffers of blocked peers and ahead, turns, unread answers."""

    __slots__ = ("_ahead", "_calls", "_held", "ahead_count_max", "count_max", "pacer", "unread")

    def __init__(
        self, count_max: int, pacer: SendTurns | None = None, unread: UnreadAnswers | None = None
    ) -> None:
        self.count_max = count_max
        self.ahead_count_max = -(-count_max // AHEAD_SHARE)
        self.pacer = pacer
        self.unread = unread
        """Bounds answers that are not read; None: peers read theirs."""
        self._held: dict[DiskReader, None] = {}  # the one that blocked first comes first
        self._ahead: dict[DiskReader, int] = {}  # when it asked last, counted in `_calls`; in order
        self._calls = 0

    @property
    def count_now(self) -> int:
        """How many buffers wait for their peers."""
        return len(self._held)

    @property
    def ahead_count_now(self) -> int:
        """How many connections may have bytes that were read ahead."""
        return len(self._ahead)

    def keep(self, loading: "DiskReader") -> None:
        """Let `loading` keep its buffer while its peer is blocked, as long as few others are."""
        held = self._held
        held[loading] = None
        if len(held) > self.count_max:
            oldest = next(iter(held))
            del held[oldest]
            oldest.let_go()

    def forget(self, loading: "DiskReader") -> None:
        """The peer of `loading` takes bytes again, or the buffer is gone."""
        self._held.pop(loading, None)

    def may_read_ahead(self, loading: "DiskReader") -> bool:
        """Say whether `loading` may hold more than the one buffer that it sends from."""
        ahead = self._ahead
        self._calls += 1
        if ahead.pop(loading, None) is None and len(ahead) >= self.ahead_count_max:
            oldest = next(iter(ahead), None)
            if oldest is None:
                return False
            if self._calls - ahead[oldest] < AHEAD_IDLE_CALLS * self.ahead_count_max:
                return False
            oldest.drop_ahead()
        ahead[loading] = self._calls
        return True

    def end_ahead(self, loading: "DiskReader") -> None:
        """Nothing is read ahead for `loading` any more."""
        self._ahead.pop(loading, None)


class Span:
    """Bytes [position, end) of a segment, which it holds acquired: being read, or read.

    `is_ahead`: nobody sends from them yet. A segment that was cut since holds other bytes there.
    """

    __slots__ = ("_cut_count", "buffer", "end", "is_ahead", "is_dropped", "position", "segment")

    def __init__(self, segment: Source, position: int, length: int, is_ahead: bool) -> None:
        segment.acquire()
        self.segment = segment
        self._cut_count = segment.cut_count
        self.position = position
        self.end = position + length
        self.is_ahead = is_ahead
        self.is_dropped = False
        self.buffer: ReadBuffer | None = None

    def holds(self, segment: Source, position: int) -> bool:
        """Say whether the byte at `position` is among these."""
        return (
            self.segment is segment
            and self.position <= position < self.end
            and self._cut_count == segment.cut_count
        )

    def drop(self) -> None:
        """Give the memory and the segment back, now or when the read has ended."""
        buffer, self.buffer = self.buffer, None
        if buffer is not None:
            buffer.release()
            self.segment.release()
        self.is_dropped = True


class DiskReader:
    """The read buffers of one connection.

    Invariant: at most two spans, in the order in which they are sent, of which only the last can
    still be read; `is_reading`: nothing can be sent before it is there.
    """

    __slots__ = (
        "_engine",
        "_held",
        "_is_sequential",
        "_last_end",
        "_last_segment",
        "_length_max",
        "_on_error",
        "_on_loaded",
        "_pieces",
        "_spans",
        "is_reading",
    )

    def __init__(
        self,
        engine: Engine,
        held: HeldReads,
        pieces: Iterable[Piece],
        on_loaded: Callable[[], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        """`pieces`: what is to be sent, in its order.

        `on_loaded`: bytes are there; `on_error`: they will not be. One for each `start`, unless
        closed.
        """
        self._engine = engine
        self._held = held
        self._pieces = pieces
        self._on_loaded = on_loaded
        self._on_error = on_error
        self._spans: list[Span] = []
        self._length_max = 1 << 30
        self._last_segment: Source | None = None
        self._last_end = -1
        self._is_sequential = False
        self.is_reading = False

    @property
    def is_loaded(self) -> bool:
        """Whether there are bytes that are being sent and were not yet taken."""
        return any(span.buffer is not None and not span.is_ahead for span in self._spans)

    def view(self, piece: RangePiece) -> memoryview | None:
        """Return the next bytes of `piece`; None when they must be read."""
        for span in self._spans:
            if span.buffer is not None and span.holds(piece.segment, piece.position):
                span.is_ahead = False
                start = piece.position - span.position
                return span.buffer.view[start : start + piece.length]
        return piece.segment.memory_view(piece.position, piece.length)

    def start(self, piece: RangePiece) -> None:
        """Read the next bytes of `piece`, unless that has begun; none are being sent."""
        self.is_reading = True
        for span in self._spans[-1:]:
            if span.holds(piece.segment, piece.position):
                assert span.buffer is None
                span.is_ahead = False
                if len(self._spans) > 1:
                    self._spans.pop(0).drop()
                return
        self._drop_all()
        self._is_sequential = (
            piece.segment is self._last_segment and piece.position == self._last_end
        )
        end = piece.position + piece.length
        if self._is_sequential and self._may_read_ahead:
            end = piece.readable_end_now
        self._read(piece.segment, piece.position, end, is_ahead=False)

    def _read(self, segment: Source, position: int, end: int, *, is_ahead: bool) -> None:
        file = segment.file
        if file is None:
            if not is_ahead:
                self.is_reading = False
                self._on_error(OSError("A segment that is read from has no file"))
            return
        engine = self._engine
        length = min(end - position, self._length_max, engine.read_length_best)
        span = Span(segment, position, length, is_ahead)
        self._spans.append(span)
        engine.read(file, position, length, lambda result: self._on_read(span, result))

    def _on_read(self, span: Span, result: ReadBuffer | OSError) -> None:
        if isinstance(result, OSError):
            span.segment.on_read_error(result)
            self._on_unread(span, result)
        elif span.is_dropped:
            result.release()
            span.segment.release()
        elif len(result.view) == 0:
            result.release()
            self._on_unread(
                span, OSError("A segment ended before the range that a fetch was promised")
            )
        else:
            span.buffer = result
            span.end = span.position + len(result.view)
            if not span.is_ahead:
                self.is_reading = False
                self._read_ahead()
                self._on_loaded()

    def _on_unread(self, span: Span, error: OSError) -> None:
        """A read has failed: what was read ahead in vain is read again when it is needed."""
        span.segment.release()
        if span.is_dropped:
            return
        span.is_dropped = True
        self._spans.remove(span)
        if not span.is_ahead:
            self.is_reading = False
            self._on_error(error)

    @property
    def _may_read_ahead(self) -> bool:
        is_quick = self._length_max >= self._engine.read_length_best
        return is_quick and self._held.may_read_ahead(self)

    def _read_ahead(self) -> None:
        """Read what is sent next, so that it is there when the peer has taken what is."""
        spans = self._spans
        if len(spans) > 1 or (spans and spans[0].buffer is None):
            return
        last: RangePiece | None = None
        for piece in self._pieces:
            if isinstance(piece, RangePiece):
                last = piece
                position = piece.position
                if spans and spans[0].holds(piece.segment, position):
                    position = spans[0].end
                if position < piece.position + piece.length:
                    break
        if last is None or last.segment.memory_view(position, 1) is not None:
            return
        end = last.readable_end_now if self._is_sequential else last.position + last.length
        if position < end and self._may_read_ahead:
            self._read(last.segment, position, end, is_ahead=True)

    def on_taken(self, piece: RangePiece) -> None:
        """The peer has taken bytes of `piece`, whose position has moved: let go of what is used."""
        if not piece.length:
            self._last_segment, self._last_end = piece.segment, piece.position
        if not self._spans:
            return
        span = self._spans[0]
        if span.buffer is None or span.segment is not piece.segment:
            return
        if piece.position >= span.end:
            self._length_max = min(self._length_max * 2, 1 << 30)
            self._spans.pop(0).drop()
            self._read_ahead()
        elif not piece.length and span.position <= piece.position:
            span.is_ahead = True
            if not (self._is_sequential and self._may_read_ahead):
                self._spans.pop(0).drop()
        if not self._spans:
            self._held.end_ahead(self)

    def on_blocked(self) -> None:
        """The peer takes nothing now."""
        if self.is_loaded:
            self._held.keep(self)

    def on_unblocked(self) -> None:
        """The peer takes bytes again."""
        self._held.forget(self)

    def let_go(self) -> None:
        """Give a buffer back before it is used up; the next read is as long as the peer needs."""
        for piece in self._pieces:
            if isinstance(piece, RangePiece):
                for span in self._spans[:1]:
                    if span.holds(piece.segment, piece.position):
                        self._length_max = max(SIP_BYTES, piece.position - span.position)
                break
        self._drop_all()

    def drop_ahead(self) -> None:
        """Give back what nobody sends from: others may have it."""
        kept = [span for span in self._spans if not span.is_ahead]
        for span in self._spans:
            if span.is_ahead:
                span.drop()
        self._spans = kept
        self._held.end_ahead(self)

    def _drop_all(self) -> None:
        for span in self._spans:
            span.drop()
        self._spans.clear()
        self._held.end_ahead(self)

    def close(self) -> None:
        """Give the buffers back, those that are being read when that has ended."""
        self._held.forget(self)
        self._drop_all()
        self.is_reading = False
        # Both are methods of the owner: without them there is no cycle.
        self._on_loaded, self._on_error = _ignore_loaded, _ignore_error


def _ignore_loaded() -> None:
    """Nobody is there any more."""


def _ignore_error(_: BaseException) -> None:
    """Nobody is there any more."""
