"""An engine whose reads are answered when the test says so, and a segment to be read."""

from collections.abc import Callable
from typing import Any

from dlogd.net.reply_slot import RangePiece


class Bytes:
    """A read buffer that its engine counts until it is released."""

    def __init__(self, data: bytes, engine: "LateEngine") -> None:
        self.view = memoryview(data)
        self.engine = engine
        engine.buffers_out += 1

    def release(self) -> None:
        """Give the buffer back."""
        self.engine.buffers_out -= 1


class LateEngine:
    """Reads answered when the test says so."""

    read_length_max = read_length_best = 1000

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.buffers_out = 0

    def read(self, file: Any, position: int, length: int, done: Any) -> None:
        """Keep the answer until the test asks for it."""
        self.waiting.append(lambda: done(Bytes(file[position : position + length], self)))


class FakeSegment:
    """A segment whose bytes are in memory from a position on."""

    def __init__(self, data: bytes, in_memory_from: int) -> None:
        self.file: Any = data
        self.in_memory_from = in_memory_from
        self.acquired = 0
        self.cut_count = 0
        self.read_errors: list[OSError] = []
        self.on_read_error: Any = self.read_errors.append

    def memory_view(self, position: int, length_max: int) -> memoryview | None:
        """Return bytes of the memory; None where they are on the disk."""
        if position < self.in_memory_from:
            return None
        return memoryview(self.file)[position : position + min(length_max, 700)]

    def acquire(self) -> None:
        """Count a user."""
        self.acquired += 1

    def release(self) -> None:
        """Forget a user."""
        self.acquired -= 1

    def piece(self, position: int, length: int, readable_end: int | None = None) -> RangePiece:
        """Return a range to be sent; it is a user."""
        self.acquired += 1
        return RangePiece(self, position, length, readable_end)
