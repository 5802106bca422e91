"""Quota of append memory for one directory, so that a hung disk cannot use all of it.

Shares bound what is taken, which is what is not flushed yet; what may be evicted counts for nobody.
One batch may go beyond, or a small share would refuse what the whole pool has room for. No I/O;
owner: the event loop's thread; used by `dlogd.storage.segment.tail_buffer`.
"""

from collections.abc import Callable

from dlogd.storage.io.buffer_pool import SMALL, BufferPool, Chunk
from dlogd.storage.io.memory_waiters import MemoryWaiters

_UNBOUNDED = 1 << 62


class MemoryQuota:
    """The chunks of one directory, out of a pool that it shares with others.

    Does as `BufferPool`, and counts. Who waits for the share waits behind its own directory only.
    """

    def __init__(self, pool: BufferPool, share_bytes: int) -> None:
        self.small_bytes = pool.small_bytes
        self.total_bytes = pool.total_bytes
        self.share_bytes = share_bytes
        self.taken_bytes = 0
        self.touch = pool.touch
        self.usage = pool.usage
        self._pool = pool
        self._line = MemoryWaiters(lambda _, need: self._has_room(need), pool.call_soon)

    def may_take(self, need: int, own_bytes: int = 0) -> bool:
        """Return whether chunks of `need` bytes are within the share; those who wait go first.

        `own_bytes`: of what is taken, so much is who asks', and flushed. It makes nobody wait for
        himself.
        """
        line = self._line
        return (line.calling or not line.waiting) and self._has_room(need, own_bytes)

    def _has_room(self, need: int, own_bytes: int = 0) -> bool:
        return self.taken_bytes <= own_bytes or self.taken_bytes + need <= self.share_bytes

    def take(self, size_class: int) -> Chunk | None:
        """Take a chunk of the pool; ask `may_take` before."""
        chunk = self._pool.take(size_class)
        if chunk is not None:
            self.taken_bytes += chunk.size
        return chunk

    def give_back(self, chunk: Chunk) -> None:
        """Free a taken or cached chunk."""
        if chunk.is_taken:
            self._count_off(chunk)
        self._pool.give_back(chunk)

    def cache(self, chunk: Chunk, on_evict: Callable[[Chunk], None]) -> None:
        """Let the pool reclaim `chunk` when it needs memory."""
        self._pool.cache(chunk, on_evict)
        self._count_off(chunk)

    def retain(self, chunk: Chunk) -> None:
        """Take a cached chunk back into use."""
        self._pool.retain(chunk)
        self.taken_bytes += chunk.size

    def _count_off(self, chunk: Chunk) -> None:
        self.taken_bytes -= chunk.size
        if self._line.waiting:
            self._line.wake()

    def open_up(self) -> None:
        """Call all who wait: the disk hangs, so nothing comes back, and no log of it takes more."""
        self.share_bytes = _UNBOUNDED
        self._line.wake()

    def when_within(self, callback: Callable[[], None], need: int) -> None:
        """Call `callback` once, in its turn, when `need` bytes are within the share."""
        self._line.add(SMALL, need, callback)

    def when_available(self, callback: Callable[[], None], size_class: int, need: int) -> None:
        """Call `callback` once, in its turn, when the pool has `need` bytes."""
        self._pool.when_available(callback, size_class, need)
