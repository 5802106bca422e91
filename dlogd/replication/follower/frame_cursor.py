"""Cursor in a DATA frame: how much of the frame has been appended.

Moved by `dlogd.replication.follower.frame_applier`. Nothing is copied: the records stay in the
frame's buffer.
"""


class FrameCursor:
    """How far a DATA frame is taken; `row_end` is where the present row's records end."""

    __slots__ = ("buffer", "index", "position", "row_end", "rows", "size", "start")

    def __init__(
        self, buffer: bytearray, start: int, end: int, rows: list[tuple[int, ...]], position: int
    ) -> None:
        self.buffer, self.start, self.size = buffer, start, end - start
        self.rows, self.index = rows, 0
        self.position = self.row_end = position

    def move(self, buffer: bytearray, start: int) -> None:
        """The frame lies elsewhere now."""
        shift = start - self.start
        self.buffer, self.start = buffer, start
        self.position += shift
        self.row_end += shift
