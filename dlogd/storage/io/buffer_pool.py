"""Pool of page-aligned chunks in two sizes, bounded, from one anonymous mapping.

The arena is divided into slabs of the large size; a slab serves one LARGE chunk or is split into
SMALL ones. Chunks whose bytes are already on disk may stay readable in the cache: they are
reclaimed in least-recently-used order when memory is needed. Pages become resident when they are
first written, never before. No I/O; used by the append tails of logs and by the engines' reads.
"""

import ctypes
import mmap
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from dlogd.storage.io.memory_waiters import MemoryWaiters

SMALL = 0
LARGE = 1

SMALL_BYTES = 16 * 1024
LARGE_BYTES = 512 * 1024

_FREE, _TAKEN, _CACHED = 0, 1, 2


def anonymous_memory(size_bytes: int, *, huge_pages: bool = False) -> memoryview:
    """Return page-aligned memory of zeros that becomes resident only as it is written.

    With `huge_pages` in pieces of 2 MiB where the system can: a read of 1 MiB then pins one page
    instead of 256.
    """
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError, AttributeError):
        # One touched page must not make a whole huge page resident, unless that is wanted.
        memory.madvise(mmap.MADV_HUGEPAGE if huge_pages else mmap.MADV_NOHUGEPAGE)
    return memoryview(memory)


class Chunk:
    """A piece of the arena. Owner: whoever took it, until it is given back or evicted."""

    __slots__ = ("address", "number", "on_evict", "size", "slab", "stamp", "state", "view")

    def __init__(self, number: int, slab: "_Slab", view: memoryview, address: int) -> None:
        self.number = number
        self.slab = slab
        self.view = view
        self.address = address
        self.size = len(view)
        self.state = _FREE
        self.stamp = 0
        self.on_evict: Callable[[Chunk], None] | None = None

    @property
    def is_taken(self) -> bool:
        """Whether it is neither free nor cached."""
        return self.state == _TAKEN

    def __repr__(self) -> str:
        return f"Chunk({self.number}, {self.size} bytes)"


class _Slab:
    """One large piece of the arena, whole or split.

    Invariant: a split slab has `taken` + cached + len(free) == number of its small chunks.
    """

    __slots__ = ("free", "index", "large", "smalls", "split", "stamp", "taken")

    def __init__(self, index: int) -> None:
        self.index = index
        self.split = False
        self.large: Chunk | None = None
        self.smalls: list[Chunk] = []
        self.free: list[Chunk] = []
        self.taken = 0
        self.stamp = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolUsage:
    """Where the pool's memory is, and what happened to it so far."""

    total_bytes: int
    taken_bytes: int
    cached_bytes: int
    waiting: int
    evictions_total: int
    refusals_total: int

    @property
    def free_bytes(self) -> int:
        """Bytes neither taken nor cached."""
        return self.total_bytes - self.taken_bytes - self.cached_bytes


class BufferPool:
    """Chunks for one event loop's thread; all calls are made on it.

    Invariant: taken + cached + free bytes == total_bytes.
    Waiters are called in FIFO order; while one waits, `take` serves nobody else. They are called
    by `call_soon` when that is given, else from within the call that made memory available.
    """

    def __init__(
        self,
        total_bytes: int,
        *,
        small_bytes: int = SMALL_BYTES,
        large_bytes: int = LARGE_BYTES,
        call_soon: Callable[[Callable[[], None]], object] | None = None,
        huge_pages: bool = False,
    ) -> None:
        """`huge_pages`: for memory that large direct I/O uses again and again."""
        if small_bytes % mmap.PAGESIZE or large_bytes % small_bytes:
            raise ValueError(f"Sizes do not divide: {small_bytes}, {large_bytes}")
        slab_count = total_bytes // large_bytes
        if slab_count < 1:
            raise ValueError(f"A pool needs at least {large_bytes} bytes, got {total_bytes}")
        self.small_bytes = small_bytes
        self.large_bytes = large_bytes
        self.total_bytes = slab_count * large_bytes
        self._memory = anonymous_memory(self.total_bytes, huge_pages=huge_pages)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._smalls_per_slab = large_bytes // small_bytes
        # The lowest addresses are handed out first; what comes back is handed out next (warm).
        self._free_slabs = [_Slab(index) for index in reversed(range(slab_count))]
        self._current = _Slab(-1)  # the split slab that serves SMALL; this one is empty
        self._partial: OrderedDict[int, _Slab] = OrderedDict()  # other split slabs with free chunks
        self._cached: list[OrderedDict[int, Chunk]] = [OrderedDict(), OrderedDict()]  # by class
        # Split slabs without a taken chunk and with a cached one: a LARGE can be made of them.
        self._evictable_slabs: OrderedDict[int, _Slab] = OrderedDict()
        self._stamp = 0
        self.call_soon = call_soon
        self._line = MemoryWaiters(self._available, call_soon)
        self._taken_bytes = 0
        self._cached_bytes = 0
        self._evictions_total = 0
        self._refusals_total = 0

    def usage(self) -> PoolUsage:
        """Return the present figures."""
        return PoolUsage(
            total_bytes=self.total_bytes,
            taken_bytes=self._taken_bytes,
            cached_bytes=self._cached_bytes,
            waiting=len(self._line.waiting),
            evictions_total=self._evictions_total,
            refusals_total=self._refusals_total,
        )

    def take(self, size_class: int) -> Chunk | None:
        """Return a chunk with undefined bytes, evicting cached ones; None when there is none."""
        line = self._line
        if line.waiting and not line.calling:
            self._refusals_total += 1
            return None
        if size_class == SMALL:
            slab = self._current
            if not slab.free:
                found = self._find_small()
                if found is None:
                    self._refusals_total += 1
                    return None
                slab = found
            chunk = slab.free.pop()
            if not slab.taken:
                self._evictable_slabs.pop(slab.index, None)
            slab.taken += 1
        else:
            whole = self._find_large()
            if whole is None:
                self._refusals_total += 1
                return None
            chunk = whole
        chunk.state = _TAKEN
        self._taken_bytes += chunk.size
        return chunk

    def give_back(self, chunk: Chunk) -> None:
        """Free a taken or cached chunk; its view must not be used any more."""
        if chunk.state == _TAKEN:
            self._taken_bytes -= chunk.size
            if chunk.size == self.small_bytes:
                chunk.slab.taken -= 1
        elif chunk.state == _CACHED:
            self._forget(chunk)
        else:
            raise RuntimeError(f"{chunk} was given back twice")
        self._free(chunk)
        if self._line.waiting:
            self._line.wake()

    def cache(self, chunk: Chunk, on_evict: Callable[[Chunk], None]) -> None:
        """Let the pool reclaim `chunk` when it needs memory; `on_evict` then forgets the views.

        `on_evict` must not call the pool.
        """
        if chunk.state != _TAKEN:
            raise RuntimeError(f"{chunk} is not taken")
        chunk.state = _CACHED
        chunk.on_evict = on_evict
        self._stamp = chunk.stamp = self._stamp + 1
        self._taken_bytes -= chunk.size
        self._cached_bytes += chunk.size
        if chunk.size == self.small_bytes:
            self._cached[SMALL][chunk.number] = chunk
            slab = chunk.slab
            slab.taken -= 1
            if not slab.taken:
                self._mark_evictable(slab)
        else:
            self._cached[LARGE][chunk.number] = chunk
        if self._line.waiting:
            self._line.wake()

    def touch(self, chunk: Chunk) -> None:
        """Make a cached chunk the last one to be evicted; nothing for others."""
        if chunk.state == _CACHED:
            self._stamp = chunk.stamp = self._stamp + 1
            size_class = SMALL if chunk.size == self.small_bytes else LARGE
            self._cached[size_class].move_to_end(chunk.number)

    def retain(self, chunk: Chunk) -> None:
        """Take a cached chunk back into use, bytes unchanged: it is not evictable any more."""
        if chunk.state != _CACHED:
            raise RuntimeError(f"{chunk} is not cached")
        self._forget(chunk)
        if chunk.size == self.small_bytes:
            chunk.slab.taken += 1
            self._evictable_slabs.pop(chunk.slab.index, None)
        chunk.state = _TAKEN
        self._taken_bytes += chunk.size

    def when_available(
        self, callback: Callable[[], None], size_class: int = SMALL, need_bytes: int = 0
    ) -> None:
        """Call `callback` once, in its turn, when `take(size_class)` would succeed.

        With `need_bytes`, when there is also that much in all: a caller that needs many chunks must
        not be called for one of them. Each owner registers at most once at a time: that bounds the
        queue.
        """
        self._line.add(size_class, need_bytes, callback)

    def close(self) -> None:
        """Drop the pool's own references; views that are still out keep the arena alive."""
        self._line.waiting.clear()
        for cached in self._cached:
            cached.clear()
        for slab in [self._current, *self._free_slabs, *self._partial.values()]:
            slab.smalls.clear()
            slab.free.clear()
            slab.large = None
        self._free_slabs.clear()
        self._partial.clear()
        self._evictable_slabs.clear()

    # -- finding memory

    def _find_small(self) -> _Slab | None:
        """Make a split slab with a free chunk the current one."""
        while True:
            if self._partial:
                _, slab = self._partial.popitem()
            elif self._free_slabs:
                slab = self._free_slabs.pop()
                self._split(slab)
            elif self._evict_oldest():
                if not self._current.free:
                    continue
                slab = self._current
            else:
                return None
            self._current = slab
            return slab

    def _find_large(self) -> Chunk | None:
        current = self._current
        if not self._free_slabs and len(current.free) == self._smalls_per_slab:
            self._current = _Slab(-1)
            self._merge(current)
        if not self._free_slabs:
            self._evict_for_large()
        if not self._free_slabs:
            return None
        slab = self._free_slabs.pop()
        if slab.large is None:
            start = slab.index * self.large_bytes
            slab.large = self._chunk(slab.index * (self._smalls_per_slab + 1), slab, start, LARGE)
        return slab.large

    def _split(self, slab: _Slab) -> None:
        slab.split = True
        if not slab.smalls:
            start = slab.index * self.large_bytes
            first = slab.index * (self._smalls_per_slab + 1) + 1
            slab.smalls = [
                self._chunk(first + i, slab, start + i * self.small_bytes, SMALL)
                for i in range(self._smalls_per_slab)
            ]
        slab.free = slab.smalls[::-1]

    def _merge(self, slab: _Slab) -> None:
        """Turn a split slab whose chunks are all free into a free one."""
        slab.split = False
        slab.free = []
        self._evictable_slabs.pop(slab.index, None)
        self._free_slabs.append(slab)

    def _chunk(self, number: int, slab: _Slab, start: int, size_class: int) -> Chunk:
        size = self.small_bytes if size_class == SMALL else self.large_bytes
        return Chunk(number, slab, self._memory[start : start + size], self._address + start)

    def _free(self, chunk: Chunk) -> None:
        """Put a chunk that is counted nowhere any more where the next `take` finds it."""
        chunk.state = _FREE
        slab = chunk.slab
        if not slab.split:
            self._free_slabs.append(slab)
            return
        slab.free.append(chunk)
        if slab is self._current:
            if not slab.taken:
                self._mark_evictable(slab)
        elif len(slab.free) == self._smalls_per_slab:
            self._partial.pop(slab.index, None)
            self._merge(slab)
        else:
            if not slab.taken:
                self._mark_evictable(slab)
            self._partial[slab.index] = slab

    def _mark_evictable(self, slab: _Slab) -> None:
        if len(slab.free) == self._smalls_per_slab:
            self._evictable_slabs.pop(slab.index, None)
        elif slab.index not in self._evictable_slabs:
            slab.stamp = self._stamp
            self._evictable_slabs[slab.index] = slab

    # -- eviction

    def _forget(self, chunk: Chunk) -> None:
        """Take a chunk out of the cache; the caller gives it its next state."""
        size_class = SMALL if chunk.size == self.small_bytes else LARGE
        del self._cached[size_class][chunk.number]
        self._cached_bytes -= chunk.size
        chunk.on_evict = None

    def _evict(self, chunk: Chunk) -> None:
        on_evict = chunk.on_evict
        self._forget(chunk)
        self._evictions_total += 1
        if on_evict is not None:
            on_evict(chunk)
        self._free(chunk)

    def _evict_oldest(self) -> bool:
        """Evict the least recently used chunk; False when none is cached."""
        heads = [next(iter(cache.values())) for cache in self._cached if cache]
        if not heads:
            return False
        self._evict(min(heads, key=lambda chunk: chunk.stamp))
        return True

    def _evict_for_large(self) -> None:
        """Free one slab: the oldest cached LARGE, or all of a slab whose SMALLs are evictable."""
        large = next(iter(self._cached[LARGE].values()), None)
        slab = next(iter(self._evictable_slabs.values()), None)
        if slab is not None and (large is None or slab.stamp < large.stamp):
            for chunk in slab.smalls:
                if chunk.state == _CACHED:
                    self._evict(chunk)
            if slab is self._current:
                self._current = _Slab(-1)
                self._merge(slab)
        elif large is not None:
            self._evict(large)

    # -- waiting

    def _available(self, size_class: int, need_bytes: int) -> bool:
        if self.total_bytes - self._taken_bytes < need_bytes:
            return False
        if self._free_slabs or self._cached[LARGE] or self._evictable_slabs:
            return True
        if size_class == SMALL:
            return bool(self._current.free or self._partial or self._cached[SMALL])
        return len(self._current.free) == self._smalls_per_slab
