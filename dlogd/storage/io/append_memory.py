"""Append memory of a node, or the share of one data directory.

Which tails could give memory back is known here; what they hold is theirs
(`dlogd.storage.segment.tail_buffer`). No I/O; owner: the event loop's thread.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from dlogd.storage.io.buffer_pool import LARGE, SMALL, BufferPool, Chunk
from dlogd.storage.io.io_engine import ALIGNMENT
from dlogd.storage.io.memory_quota import MemoryQuota

BLOCK_POOL_BYTES = 32 << 20
"""Address space for last blocks in flight; resident are only as many as ever were at once."""

_CLEAN_RELEASED_AT_ONCE = 32


class CleanTail(Protocol):
    """A tail whose bytes are all flushed."""

    def make_evictable(self) -> None:
        """Let the pool reclaim the last chunk."""


class AppendMemory:
    """The append memory of a node, or a directory's share of it: the pool, and which tails could
    give something back.

    A tail whose bytes are all flushed is *clean*. It keeps its last chunk, so that the next append
    costs nothing, until somebody needs memory: then clean chunks become evictable, oldest first.
    """

    def __init__(
        self, pool: BufferPool | MemoryQuota, block_pool_bytes: int = BLOCK_POOL_BYTES
    ) -> None:
        self.pool = pool
        self._share = pool if isinstance(pool, MemoryQuota) else None
        self._sharers: Sequence[AppendMemory] = (self,)
        self.unwritable: set[object] = set()
        """Parts of logs that wait for space or descriptors: nothing comes back from them."""
        self._block_pool_bytes = block_pool_bytes
        self._clean: dict[CleanTail, None] = {}
        self._parked = 0
        # The last, partly filled block of a flush is written from a copy: the disk must never see
        # bytes that change while they are on their way (checksumming RAID and file systems), and
        # what follows the end must be zeros, by which recovery knows a sector that was not written.
        self._block_pool = BufferPool(
            block_pool_bytes, small_bytes=ALIGNMENT, large_bytes=16 * ALIGNMENT
        )
        self._free_blocks: list[memoryview] = []
        self._block_waiters: deque[Callable[[], None]] = deque()

    def shares(self, count: int) -> "Sequence[AppendMemory]":
        """Return this memory in `count` shares; the only one of one directory is all of it."""
        pool = self.pool
        if count == 1 or isinstance(pool, MemoryQuota):
            return (self,) * count
        sharers = [
            AppendMemory(MemoryQuota(pool, pool.total_bytes // count), self._block_pool_bytes)
            for _ in range(count)
        ]
        for each in sharers:
            each._sharers = sharers
        return sharers

    @property
    def may_hang(self) -> bool:
        """Whether what is taken may stay so for long, while others have memory or give it back.

        One of several disks may hang; and a full disk waits for what somebody deletes.
        """
        return self._share is not None or bool(self.unwritable)

    def take_block(self) -> memoryview | None:
        """Return an aligned block for a last block in flight; None when all are in use."""
        if self._free_blocks:
            return self._free_blocks.pop()
        chunk = self._block_pool.take(SMALL)
        return None if chunk is None else chunk.view

    def give_block_back(self, block: memoryview) -> None:
        """Take back what `take_block` gave."""
        self._free_blocks.append(block)
        if self._block_waiters:
            self._block_waiters.popleft()()

    def when_block(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when `take_block` may succeed; each log waits at most once."""
        self._block_waiters.append(callback)

    def may_take(self, need: int, own_bytes: int = 0) -> bool:
        """Return whether the share has room for `need` bytes; `own_bytes` as in `MemoryQuota`."""
        share = self._share
        if share is None or share.may_take(need, own_bytes):
            return True
        self._release_clean(len(self._clean))
        return share.may_take(need, own_bytes)

    def take_chunks(self, need: int, *, large: bool, own_bytes: int = 0) -> list[Chunk] | None:
        """Take chunks of `need` bytes or more in all, or nothing and None."""
        if not self.may_take(need, own_bytes):
            return None
        chunks: list[Chunk] = []
        small_bytes = self.pool.small_bytes
        while need > 0:
            chunk = self._take(LARGE) if large or need > small_bytes else None
            if chunk is None:
                chunk = self._take(SMALL)
            if chunk is None:
                for taken in chunks:
                    self.pool.give_back(taken)
                return None
            chunks.append(chunk)
            need -= chunk.size
        return chunks

    def _take(self, size_class: int) -> Chunk | None:
        chunk = self.pool.take(size_class)
        while chunk is None and self._clean and not self._parked:
            self._release_clean(_CLEAN_RELEASED_AT_ONCE)
            chunk = self.pool.take(size_class)
        return chunk

    def _release_clean(self, count: int) -> None:
        for tail in list(self._clean)[:count]:
            del self._clean[tail]
            tail.make_evictable()

    def when_available(self, callback: Callable[[], None], need: int) -> None:
        """Call `callback` once, in its turn, when chunks of `need` bytes in all can be taken."""
        # A batch may begin and end within a block; memory is given out in small chunks at least.
        need += 2 * ALIGNMENT
        need += -need % self.pool.small_bytes
        share = self._share
        if share is not None and not share.may_take(need):
            parked: Sequence[AppendMemory] = (self,)
        else:
            parked, share = self._sharers, None  # the pool is short
        for each in parked:
            each._release_clean(len(each._clean))
            each._parked += 1

        def on_available() -> None:
            for each in parked:
                each._parked -= 1
            callback()

        if share is not None:
            share.when_within(on_available, need)
        else:
            self.pool.when_available(on_available, SMALL, min(need, self.pool.total_bytes))

    def give_up(self) -> None:
        """Let nobody wait for the share of a disk that hangs: its logs have failed and say so."""
        if self._share is not None:
            self._share.open_up()

    def note_clean(self, tail: CleanTail) -> None:
        """All bytes of `tail` are flushed."""
        if self._parked:
            tail.make_evictable()
        else:
            self._clean[tail] = None

    def note_used(self, tail: CleanTail) -> None:
        """`tail` is not clean any more."""
        self._clean.pop(tail, None)
