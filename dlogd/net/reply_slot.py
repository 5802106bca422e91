"""Slot of one reply in its connection's order, and the pieces of the reply.

A reply is bytes and ranges of segments; who sends it is `dlogd.net.reply_queue`, who fills it are
the handlers.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from dlogd.storage.io.files import File


class Source(Protocol):
    """A segment as the stream sees it."""

    on_read_error: Callable[[OSError], object]  # hears that the file could not be read
    cut_count: int  # how often bytes of it were cut off, where others may be since

    @property
    def file(self) -> File | None:
        """The file that holds what memory does not; there as long as the segment is acquired."""

    def memory_view(self, position: int, length_max: int) -> memoryview | None:
        """Return bytes at `position` from tail memory, valid until control returns to the loop."""

    def acquire(self) -> None:
        """Keep the file open until `release`."""

    def release(self) -> None:
        """Undo one `acquire`."""


class RangePiece:
    """Bytes [position, position + length) of an acquired segment, still to be sent.

    Those up to `readable_end` may be read, too: who asks for what follows will get them.
    """

    __slots__ = ("_cut_count", "_readable_end", "length", "position", "segment")

    def __init__(
        self, segment: Source, position: int, length: int, readable_end: int | None = None
    ) -> None:
        self.segment = segment
        self.position = position
        self.length = length
        self._readable_end = position if readable_end is None else readable_end
        self._cut_count = segment.cut_count

    @property
    def readable_end_now(self) -> int:
        """As far as bytes may be read: no further than these when others may be there since."""
        end = self.position + self.length
        return max(end, self._readable_end) if self._cut_count == self.segment.cut_count else end


Piece = bytes | memoryview | RangePiece


class Queue(Protocol):
    """The replies of one connection, as a slot sees them."""

    @property
    def is_closed(self) -> bool:
        """Whether the connection has ended."""

    def reserve(self, slot: "ReplySlot") -> None:
        """Give `slot`, made by the caller, the next place in the order."""

    def drain(self) -> None:
        """Send every reply whose turn it is."""


class ReplySlot:
    """The place of one reply; filled once. `None` until then; no pieces answer nothing."""

    __slots__ = ("pieces", "replies")

    def __init__(self, replies: Queue) -> None:
        self.replies = replies
        self.pieces: Sequence[Piece] | None = None

    def fill(self, pieces: Sequence[Piece]) -> Queue:
        """Set the reply; return the owner, whose `drain` sends it when its turn has come."""
        if self.replies.is_closed:
            release_pieces(pieces)
        else:
            self.pieces = pieces
        return self.replies

    def on_closed(self) -> None:
        """The connection has ended before the reply was there; nobody wants it any more."""


def release_pieces(pieces: Iterable[Piece]) -> None:
    """Let go of the segments that `pieces` hold."""
    for piece in pieces:
        if isinstance(piece, RangePiece):
            piece.segment.release()
