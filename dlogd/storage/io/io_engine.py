"""Protocol of I/O engines: the asynchronous half of disk I/O.

Implemented by `dlogd.storage.io.aio_engine` (Linux AIO, completion by eventfd in the event loop),
by `dlogd.storage.io.thread_engine` (a thread pool) and, in tests, by a simulated disk. One engine
per process, with one below it for each data directory when there are several. Everything is called
on, and calls back on, the event loop's thread.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from dlogd.storage.io.files import File

T = TypeVar("T")

ALIGNMENT = 4096
"""Positions, lengths and memory of direct I/O are multiples of this (as of any DIOALIGN)."""

WriteDone = Callable[[OSError | None], None]


class ReadBuffer(Protocol):
    """Bytes that a read brought, in pooled memory; `release` exactly once, then never look."""

    @property
    def view(self) -> memoryview:
        """The bytes asked for; shorter only at the end of the file."""

    def release(self) -> None:
        """Give the memory back to the engine's pool."""


ReadDone = Callable[[ReadBuffer | OSError], None]


class Engine(Protocol):
    """Writes, reads and blocking work, off the event loop."""

    @property
    def name(self) -> str:
        """`aio`, `threads` or a test's own."""

    def write(
        self,
        file: File,
        position: int,
        buffers: Sequence[memoryview],
        *,
        durable: bool,
        done: WriteDone,
    ) -> None:
        """Write `buffers` one after the other from `position`; submitted with all other writes of
        this iteration of the loop.

        On a `direct` file, position and each buffer's address and length are multiples of
        ALIGNMENT. With `durable`, `done(None)` means on stable storage (RWF_DSYNC or fdatasync).
        The buffers must live, and their bytes that were acknowledged must not change, until `done`.
        A short write is an error, ENOSPC, never a success. After ENOSPC, EDQUOT or ENOMEM
        the same may be written again: a flush that failed, which must not be repeated, is EIO.
        """

    def defer(self, callback: Callable[[], None]) -> None:
        """Call `callback` once in the next iteration of the loop; its writes are submitted there.

        All that is deferred in one iteration is called in its order, then submitted together.
        """

    def read(self, file: File, position: int, length: int, done: ReadDone) -> None:
        """Read up to `length` bytes (at most `read_length_max`) into pooled memory.

        Position and length need no alignment. When the pool is empty the read waits its turn.
        """

    @property
    def read_length_max(self) -> int:
        """The largest `length` of one read, bytes."""

    @property
    def read_length_best(self) -> int:
        """What one of many reads should ask for now: less while writes go to the same disks."""

    def give_way(self) -> None:
        """Give the CPU to those who carry out writes, if any are in flight; called between pieces
        of long work.
        """

    async def run(self, work: Callable[[], T]) -> T:
        """Run blocking `work` where it does not hold up the loop; re-raise what it raises."""

    def for_directory(self, path: str) -> "Engine":
        """Return an engine for the files below `path`, with threads and operations of its own.

        A disk that hangs can use up those, and none of the others. Memory for reads is shared;
        reads that this engine is given go there, too. It is closed with this one.
        """

    def in_flight(self) -> Sequence[tuple[object, str]]:
        """Return the reads and writes that the system has been given and has not answered, each
        with the path of its file. Not for hot paths.
        """

    def close(self) -> None:
        """Release threads, contexts and memory; nothing may be in flight."""
