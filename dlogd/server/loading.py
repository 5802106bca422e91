"""What a connection sends from disk: at most one read buffer, kept while its peer takes the bytes.

Read memory is scarce and peers may be slow. A buffer whose peer takes nothing now is kept only as
one of the few that blocked last: a quick peer goes on with it, a slow one loses it to others, and
later reads as little as it took. Owner: the event loop's thread.
"""

from collections.abc import Callable

from dlogd.server.pacing import Pacer
from dlogd.server.slots import RangePiece
from dlogd.storage.engine import ALIGNMENT, Engine, ReadBuffer

SIP_BYTES = 64 * 1024 - ALIGNMENT
"""The least that is read for a slow peer: even unaligned it fits into a small buffer."""


class HeldReads:
    """What all connections share: read buffers of blocked peers, turns for large sends."""

    __slots__ = ("_held", "count_max", "pacer")

    def __init__(self, count_max: int, pacer: Pacer | None = None) -> None:
        self.count_max = count_max
        self.pacer = pacer
        self._held: dict[Loading, None] = {}  # the one that blocked first comes first

    @property
    def count_now(self) -> int:
        """How many buffers wait for their peers."""
        return len(self._held)

    def keep(self, loading: "Loading") -> None:
        """Let `loading` keep its buffer while its peer is blocked, as long as few others are."""
        held = self._held
        held[loading] = None
        if len(held) > self.count_max:
            oldest = next(iter(held))
            del held[oldest]
            oldest.let_go()

    def forget(self, loading: "Loading") -> None:
        """The peer of `loading` takes bytes again, or the buffer is gone."""
        self._held.pop(loading, None)


class Loading:
    """The read buffer of one connection.

    Invariant: a buffer holds bytes of `_piece`, from `_position` on; `is_reading` or a buffer or
    neither, never both.
    """

    __slots__ = (
        "_buffer",
        "_engine",
        "_held",
        "_length_max",
        "_on_error",
        "_on_loaded",
        "_piece",
        "_position",
        "is_reading",
    )

    def __init__(
        self,
        engine: Engine,
        held: HeldReads,
        on_loaded: Callable[[], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        """`on_loaded`: bytes are there; `on_error`: they will not be. One for each `start`."""
        self._engine = engine
        self._held = held
        self._on_loaded = on_loaded
        self._on_error = on_error
        self._buffer: ReadBuffer | None = None
        self._piece: RangePiece | None = None
        self._position = 0
        self._length_max = 1 << 30
        self.is_reading = False

    @property
    def is_loaded(self) -> bool:
        """Whether there are bytes that were read and not yet taken."""
        return self._buffer is not None

    def view(self, piece: RangePiece) -> memoryview | None:
        """Return the next bytes of `piece`; None when they must be read."""
        if piece is self._piece and self._buffer is not None:
            start = piece.position - self._position
            return self._buffer.view[start : start + piece.length]
        return piece.segment.memory_view(piece.position, piece.length)

    def start(self, piece: RangePiece) -> None:
        """Read the next bytes of `piece`."""
        file = piece.segment.file
        if file is None:
            self._on_error(OSError("A segment that is read from has no file"))
            return
        assert self._buffer is None
        self.is_reading = True
        self._piece = piece
        self._position = piece.position
        length = min(piece.length, self._length_max, self._engine.read_length_best)
        self._engine.read(file, piece.position, length, self._on_read)

    def _on_read(self, result: ReadBuffer | OSError) -> None:
        self.is_reading = False
        if isinstance(result, OSError):
            assert self._piece is not None
            self._piece.segment.on_read_error(result)
            self._on_error(result)
        elif len(result.view) == 0:
            result.release()
            self._on_error(OSError("A segment ended before the range that a fetch was promised"))
        else:
            self._buffer = result
            self._on_loaded()

    def on_taken(self, piece: RangePiece) -> None:
        """The peer has taken bytes of `piece`, whose position has moved: let go of what is used."""
        buffer = self._buffer
        if buffer is None or piece is not self._piece:
            return
        if not piece.length or piece.position >= self._position + len(buffer.view):
            self._length_max = min(self._length_max * 2, 1 << 30)
            self._release()

    def on_blocked(self) -> None:
        """The peer takes nothing now."""
        if self._buffer is not None:
            self._held.keep(self)

    def on_unblocked(self) -> None:
        """The peer takes bytes again."""
        self._held.forget(self)

    def let_go(self) -> None:
        """Give a buffer back before it is used up; the next read is as long as the peer needs."""
        if self._buffer is not None and self._piece is not None:
            self._length_max = max(SIP_BYTES, self._piece.position - self._position)
        self._release()

    def _release(self) -> None:
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            buffer.release()

    def close(self) -> None:
        """Give the buffer back; a read that is under way still ends."""
        self._held.forget(self)
        self._release()
