"""Pool of read memory, and lanes that keep disks free for writes.

Holds no system call and no thread: `dlogd.storage.io.aio_engine` and
`dlogd.storage.io.thread_engine` carry the reads out. Memory is bounded; a read that finds none
waits its turn. A disk serves what it was given in about that order, so a durable write waits for
the reads before it: its 99th percentile was 0.4 ms alone, 3.0 ms behind 4 MiB of reads, 0.65 ms
behind 512 KiB (docs/decisions/0011). So each disk has a lane with bounded bytes in flight, fewer
while there are writes. Of several disks each may have so much of the memory in flight that one that
hangs leaves the others theirs. Owner: the event loop's thread.
"""

from collections import deque
from collections.abc import Callable

from dlogd.storage.io.buffer_pool import LARGE, SMALL, BufferPool, Chunk
from dlogd.storage.io.files import File
from dlogd.storage.io.io_engine import ALIGNMENT, ReadDone

READ_SMALL_BYTES = 64 * 1024
READ_LARGE_BYTES = 512 * 1024
READ_MEMORY_BYTES = 32 * 1024 * 1024

PEEK_BYTES = 16 * 1024
"""Reads up to this size look for a place; they are never held up by those that stream."""
IN_FLIGHT_BYTES = 2 * 1024 * 1024
"""What one disk is given to read at a time."""
IN_FLIGHT_BESIDE_WRITES_BYTES = 512 * 1024
BESIDE_WRITES_BYTES = 256 * 1024
"""What one read should ask for while there are writes."""
CALM_S = 0.1
"""So long after the last write reads may be large again."""

_EMPTY = memoryview(b"")


class PooledRead:
    """One read, from its start until the reader has released the bytes (`ReadBuffer`).

    The aligned span [start, start + span) goes into `target`; `view` is what was asked for.
    """

    __slots__ = (
        "_chunk",
        "_lane",
        "_pool",
        "done",
        "file",
        "length",
        "position",
        "span",
        "start",
        "view",
    )

    def __init__(
        self, pool: BufferPool, file: File, position: int, length: int, done: ReadDone
    ) -> None:
        self._pool = pool
        self._chunk: Chunk | None = None
        self._lane: Lane | None = None
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
        self._leave()
        self.done(self)

    def fail(self, error: OSError) -> None:
        """Give the memory back and report `error`."""
        self.release()
        self._leave()
        self.done(error)

    def enter(self, lane: "Lane") -> None:
        """Count as one of the reads that `lane` has in flight, until it has ended."""
        self._lane = lane
        lane.in_flight_bytes += self.span
        lane.memory_bytes += self.memory_bytes

    def _leave(self) -> None:
        lane, self._lane = self._lane, None
        if lane is not None:
            lane.in_flight_bytes -= self.span
            lane.memory_bytes -= self.memory_bytes
            if lane.waiting:
                lane.advance()

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

    @property
    def memory_bytes(self) -> int:
        """What it takes of the pool."""
        pool = self._pool
        return pool.small_bytes if self.size_class == SMALL else pool.large_bytes


class Lane:
    """The reads of one disk, in their order; its peeks have one of their own.

    Invariant: the first of `waiting` waits for one in flight to end, or (`starved`) for memory.
    """

    __slots__ = (
        "_is_of_peeks",
        "_pool",
        "in_flight_bytes",
        "memory_bytes",
        "starved",
        "waiting",
    )

    def __init__(self, pool: "ReadPool", *, is_of_peeks: bool) -> None:
        self._pool = pool
        self._is_of_peeks = is_of_peeks
        self.in_flight_bytes = 0
        self.memory_bytes = 0
        self.starved = False
        self.waiting: deque[tuple[PooledRead, Callable[[PooledRead], None]]] = deque()

    def advance(self) -> None:
        """Submit what may go now."""
        waiting = self.waiting
        while waiting and not self.starved:
            read, submit = waiting[0]
            if self.in_flight_bytes and self._is_full(read):
                return
            if not read.take_memory():
                self.starved = True
                self._pool.when_available(self._on_memory, read.size_class)
                return
            waiting.popleft()
            read.enter(self)
            submit(read)

    def _is_full(self, read: PooledRead) -> bool:
        pool = self._pool
        if self.memory_bytes + read.memory_bytes > pool.share_bytes:
            return True
        return not self._is_of_peeks and self.in_flight_bytes + read.span > pool.in_flight_bytes_max

    def _on_memory(self) -> None:
        self.starved = False
        self.advance()


class ReadPool:
    """The read memory of one engine, and the lanes of its disks."""

    def __init__(
        self,
        memory_bytes: int,
        call_soon: Callable[[Callable[[], None]], object],
        now: Callable[[], float],
        *,
        small_bytes: int = READ_SMALL_BYTES,
        large_bytes: int = READ_LARGE_BYTES,
    ) -> None:
        """`now`: seconds, of the loop."""
        self._pool = BufferPool(
            memory_bytes,
            small_bytes=small_bytes,
            large_bytes=large_bytes,
            call_soon=call_soon,
            huge_pages=True,
        )
        self._now = now
        # By data directory, each of which has a disk of its own: as many as there are of them.
        self._lanes: dict[str, Lane] = {}
        self._peeks: dict[str, Lane] = {}  # only when there are several
        self._directory_count = 0
        self.share_bytes = 1 << 62
        """How much of the memory one lane may have in flight."""
        self._write_count_seen = 0
        self._calm_at = 0.0
        self.when_available = self._pool.when_available
        self.write_count = 0
        """Writes that the engine was given so far."""
        # An unaligned read of this length still fits into one large buffer.
        self.length_max = large_bytes - ALIGNMENT
        self._length_beside_writes = min(large_bytes, BESIDE_WRITES_BYTES) - ALIGNMENT

    def add_directory(self) -> None:
        """Count one of several directories; half of what each may have in flight is for peeks."""
        self._directory_count += 1
        self.share_bytes = self._pool.total_bytes // (2 * self._directory_count)

    @property
    def taken_bytes(self) -> int:
        """Memory of reads in flight and of bytes not yet released."""
        return self._pool.usage().taken_bytes

    @property
    def _is_calm(self) -> bool:
        now = self._now()
        if self.write_count != self._write_count_seen:
            self._write_count_seen = self.write_count
            self._calm_at = now + CALM_S
        return now >= self._calm_at

    @property
    def length_best(self) -> int:
        """What one of many reads should ask for now."""
        return self.length_max if self._is_calm else self._length_beside_writes

    @property
    def in_flight_bytes_max(self) -> int:
        """What one disk may be given at a time now."""
        return IN_FLIGHT_BYTES if self._is_calm else IN_FLIGHT_BESIDE_WRITES_BYTES

    def start(
        self,
        file: File,
        position: int,
        length: int,
        done: ReadDone,
        submit: Callable[[PooledRead], None],
    ) -> None:
        """Call `submit` with the read once it has its memory and its turn, at once if it can."""
        if position < 0 or not 0 < length <= self.length_max:
            raise ValueError(f"Cannot read {length} bytes at {position} of {file.path}")
        read = PooledRead(self._pool, file, position, length, done)
        is_peek, lanes = length <= PEEK_BYTES, self._lanes
        if is_peek:
            if not self._directory_count:
                self._try(read, submit)
                return
            lanes = self._peeks
        disk = file.path.rsplit("/", 2)[0]
        lane = lanes.get(disk)
        if lane is None:
            lane = lanes[disk] = Lane(self, is_of_peeks=is_peek)
        lane.waiting.append((read, submit))
        lane.advance()

    def _try(self, read: PooledRead, submit: Callable[[PooledRead], None]) -> None:
        if read.take_memory():
            submit(read)
        else:
            self._pool.when_available(lambda: self._try(read, submit), read.size_class)

    def close(self) -> None:
        """Forget the waiting reads and the memory."""
        for lane in (*self._lanes.values(), *self._peeks.values()):
            lane.waiting.clear()
        self._pool.close()
