"""Pooled memory for the reads of an engine: widening to aligned blocks, waiting for a buffer.

Holds no system call and no thread: `dlogd.storage.aio` and `dlogd.storage.threads` carry the reads
out. Memory is bounded; a read that finds none waits its turn.
"""

from collections.abc import Callable

from dlogd.storage.buffers import LARGE, SMALL, BufferPool, Chunk
from dlogd.storage.engine import ALIGNMENT, ReadDone
from dlogd.storage.files import File

READ_SMALL_BYTES = 64 * 1024
READ_LARGE_BYTES = 1024 * 1024
READ_MEMORY_BYTES = 32 * 1024 * 1024

_EMPTY = memoryview(b"")


class PooledRead:
    """One read, from its start until the reader has released the bytes (`ReadBuffer`).

    The aligned span [start, start + span) goes into `target`; `view` is what was asked for.
    """

    __slots__ = ("_chunk", "_pool", "done", "file", "length", "position", "span", "start", "view")

    def __init__(
        self, pool: BufferPool, file: File, position: int, length: int, done: ReadDone
    ) -> None:
        self._pool = pool
        self._chunk: Chunk | None = None
        self.file = file
        self.position = position
        self.length = length
        self.done = done
        self.start = position - position % ALIGNMENT
        self.span = -(-(position + length) // ALIGNMENT) * ALIGNMENT - self.start
        self.view = _EMPTY

    @property
    def address(self) -> int:
        """Address of the memory that the span goes to."""
        assert self._chunk is not None
        return self._chunk.address

    @property
    def target(self) -> memoryview:
        """The memory that the span goes to."""
        assert self._chunk is not None
        return self._chunk.view[: self.span]

    def succeed(self, count: int) -> None:
        """Hand the bytes over; `count` of the span were read before the end of the file."""
        assert self._chunk is not None
        skipped = self.position - self.start
        self.view = self._chunk.view[skipped : max(skipped, min(skipped + self.length, count))]
        self.done(self)

    def fail(self, error: OSError) -> None:
        """Give the memory back and report `error`."""
        self.release()
        self.done(error)

    def release(self) -> None:
        """Give the memory back; a second call raises RuntimeError."""
        chunk = self._chunk
        if chunk is None:
            raise RuntimeError(f"Read of {self.file.path} was released twice")
        self._chunk = None
        self.view = _EMPTY
        self._pool.give_back(chunk)

    def take_memory(self) -> bool:
        """Take a buffer from the pool; False when there is none now."""
        self._chunk = self._pool.take(self.size_class)
        return self._chunk is not None

    @property
    def size_class(self) -> int:
        """The pool's class that the span fits into."""
        return SMALL if self.span <= self._pool.small_bytes else LARGE


class ReadPool:
    """The read memory of one engine. Owner: the event loop's thread."""

    def __init__(
        self,
        memory_bytes: int,
        call_soon: Callable[[Callable[[], None]], object],
        *,
        small_bytes: int = READ_SMALL_BYTES,
        large_bytes: int = READ_LARGE_BYTES,
    ) -> None:
        self._pool = BufferPool(
            memory_bytes,
            small_bytes=small_bytes,
            large_bytes=large_bytes,
            call_soon=call_soon,
            huge_pages=True,
        )
        # An unaligned read of this length still fits into one large buffer.
        self.length_max = large_bytes - ALIGNMENT

    @property
    def taken_bytes(self) -> int:
        """Memory of reads in flight and of bytes not yet released."""
        return self._pool.usage().taken_bytes

    def start(
        self,
        file: File,
        position: int,
        length: int,
        done: ReadDone,
        submit: Callable[[PooledRead], None],
    ) -> None:
        """Call `submit` with the read once it has its memory, at once when there is some."""
        if position < 0 or not 0 < length <= self.length_max:
            raise ValueError(f"Cannot read {length} bytes at {position} of {file.path}")
        read = PooledRead(self._pool, file, position, length, done)
        self._try(read, submit)

    def _try(self, read: PooledRead, submit: Callable[[PooledRead], None]) -> None:
        if read.take_memory():
            submit(read)
        else:
            self._pool.when_available(lambda: self._try(read, submit), read.size_class)

    def close(self) -> None:
        """Forget the waiting reads and the memory."""
        self._pool.close()
