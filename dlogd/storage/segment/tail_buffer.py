"""Tail buffer of a segment: batches are copied in, flushed and read from here.

A tail is a row of chunks from the pool, each covering a block-aligned range of the file. What is
not flushed yet is always in memory; what is flushed stays readable until the pool wants the chunk
back. No I/O; owner: the event loop's thread.
"""

import struct
from bisect import bisect_left, bisect_right
from collections import deque

from dlog.batch.header import BATCH_STRUCT, HEADER_BYTES
from dlogd.storage.io.append_memory import AppendMemory
from dlogd.storage.io.buffer_pool import Chunk
from dlogd.storage.io.io_engine import ALIGNMENT

_BLOCK_MASK = ~(ALIGNMENT - 1)
_ZEROS = memoryview(bytes(ALIGNMENT))
# Base offset, length and leader epoch: the first 16 bytes of a batch.
_HEAD = struct.Struct(">qii")
_pack_head = _HEAD.pack_into


class _Span:
    """One chunk of a tail: bytes [start, end) of the segment."""

    __slots__ = ("chunk", "end", "on_evict", "start", "view")

    def __init__(self, chunk: Chunk, start: int, tail: "TailBuffer") -> None:
        self.chunk = chunk
        self.view = chunk.view
        self.start = start
        self.end = start + chunk.size

        def on_evict(_: Chunk) -> None:
            tail.forget(self)

        self.on_evict = on_evict


class TailBuffer:
    """The bytes of one segment that are in memory.

    Invariant: [flushed, end) is in memory, and with it the block that holds `flushed`.
    Invariant: spans are disjoint, ascending, and start at block boundaries of the file.
    """

    __slots__ = (
        "_clean",
        "_evictable",
        "_flushed",
        "_limit",
        "_memory",
        "_prefix",
        "_read_end",
        "_spans",
        "_start",
        "_starts",
        "_taken",
        "_view",
        "end",
    )

    def __init__(self, memory: AppendMemory, end: int = 0, prefix: bytes = b"") -> None:
        """Begin with nothing in memory but `prefix`, the bytes of the last partial block."""
        self._memory = memory
        self._spans: list[_Span] = []
        self._starts: list[int] = []
        self._taken: deque[_Span] = deque()
        self._evictable: _Span | None = None
        self._clean = False
        self.reset(end, prefix)

    def reset(self, end: int, prefix: bytes) -> None:
        """Forget all chunks; the segment now ends at `end`. Nothing may be in flight."""
        assert len(prefix) == end % ALIGNMENT, "the bytes of the last partial block are needed"
        for span in self._spans:
            self._memory.pool.give_back(span.chunk)
        self._spans.clear()
        self._starts.clear()
        self._taken.clear()
        if self._clean:
            self._memory.note_used(self)
        self._clean = False
        self._evictable = None
        self._prefix = prefix
        self._view: memoryview | None = None
        self._start = 0
        # End of the chunk that is appended to; 0: there is none, or it may be evicted at any time.
        self._limit = 0
        self._flushed = end
        self.end = self._read_end = end

    def forget_all(self) -> None:
        """Give all memory back for good; the end stays, but nothing can be appended properly."""
        self.reset(self.end, bytes(self.end % ALIGNMENT))

    def forget_from(self, position: int) -> None:
        """Do as `forget_all` with the chunks behind `position`; those before it are in flight."""
        while self._spans and self._spans[-1].start >= position:
            span = self._spans.pop()
            self._starts.pop()
            if self._taken and self._taken[-1] is span:
                self._taken.pop()
            self._memory.pool.give_back(span.chunk)
        self._view, self._start, self._limit = None, 0, 0

    @property
    def memory_bytes(self) -> int:
        """Chunk memory that this tail holds, evictable or not."""
        return sum(span.chunk.size for span in self._spans)

    @property
    def kept_bytes(self) -> int:
        """Size of the last chunk when all is flushed: the next append needs it, too."""
        span = self._evictable or (self._taken[-1] if self._clean else None)
        return 0 if span is None else span.chunk.size

    # -- appending

    def append(
        self, batch: memoryview, batch_bytes: int, base_offset: int, leader_epoch: int
    ) -> bool:
        """Copy a batch to the end and patch the copy; False when there is no memory now."""
        end = self.end
        stop = end + batch_bytes
        if stop > self._limit:
            return self._append_slowly(batch, batch_bytes, base_offset, leader_epoch)
        if self._clean:
            self._clean = False
            self._memory.note_used(self)
        view = self._view
        assert view is not None
        at = end - self._start
        view[at : at + batch_bytes] = batch
        _pack_head(view, at, base_offset, batch_bytes - 12, leader_epoch)
        self.end = stop
        return True

    def _append_slowly(
        self, batch: memoryview, batch_bytes: int, base_offset: int, leader_epoch: int
    ) -> bool:
        end = self.end
        stop = end + batch_bytes
        if self._evictable is not None:
            if not self._memory.may_take(batch_bytes):
                return False
            self._retain()
            if stop <= self._limit:
                return self.append(batch, batch_bytes, base_offset, leader_epoch)
        if self._clean:
            # Before memory is looked for: that may reclaim the chunks of clean tails.
            self._clean = False
            self._memory.note_used(self)
        start = self._limit or end & _BLOCK_MASK
        is_busy = stop - self._flushed > self._memory.pool.small_bytes // 2
        own = self._taken[-1].chunk.size if self._taken and self._flushed == end else 0
        chunks = self._memory.take_chunks(stop - start, large=is_busy, own_bytes=own)
        if chunks is None:
            self._maybe_clean()
            return False
        if not self._limit:
            chunks[0].view[: len(self._prefix)] = self._prefix
            self._prefix = b""
        for chunk in chunks:
            span = _Span(chunk, start, self)
            self._spans.append(span)
            self._starts.append(start)
            self._taken.append(span)
            start = span.end
        self._view, self._start, self._limit = span.view, span.start, span.end
        self._write(end, batch)
        self._write(end, memoryview(_HEAD.pack(base_offset, batch_bytes - 12, leader_epoch)))
        self.end = stop
        return True

    def _write(self, position: int, data: memoryview) -> None:
        """Write over one or more spans."""
        at = bisect_right(self._starts, position) - 1
        while data:
            span = self._spans[at]
            inside = position - span.start
            piece = data[: span.end - position]
            span.view[inside : inside + len(piece)] = piece
            position += len(piece)
            data = data[len(piece) :]
            at += 1

    def _retain(self) -> None:
        """Take the last chunk back from the cache."""
        span = self._evictable
        assert span is not None
        self._evictable = None
        self._memory.pool.retain(span.chunk)
        self._taken.append(span)
        self._view, self._start, self._limit = span.view, span.start, span.end

    # -- flushing

    def buffers(self, start: int, end: int) -> list[memoryview]:
        """Return [start, end) as pieces of chunks; all of it must be in memory."""
        if start >= self._start and self._limit:
            assert self._view is not None
            return [self._view[start - self._start : end - self._start]]
        at = bisect_right(self._starts, start) - 1
        pieces = []
        while start < end:
            span = self._spans[at]
            assert span.start <= start < span.end, "what is to be flushed is in memory"
            stop = min(end, span.end)
            pieces.append(span.view[start - span.start : stop - span.start])
            start = stop
            at += 1
        return pieces

    def fill_block(self, block: memoryview, end: int) -> None:
        """Copy the block that `end` lies in, with zeros from `end` on."""
        start = end & _BLOCK_MASK
        length = end - start
        block[:length] = self.buffers(start, end)[0]
        block[length:] = _ZEROS[length:]

    def on_flushed(self, position: int) -> None:
        """Everything below `position` is in the file: full chunks become a cache."""
        self._flushed = position
        taken = self._taken
        pool = self._memory.pool
        while taken and taken[0].end <= position:
            span = taken.popleft()
            pool.cache(span.chunk, span.on_evict)
            if not taken:
                self._view, self._start, self._limit = None, 0, 0
        if position == self.end:
            self._maybe_clean()

    def _maybe_clean(self) -> None:
        if self._taken and self._flushed == self.end:
            self._clean = True
            self._memory.note_clean(self)

    def make_evictable(self) -> None:
        """Let the pool reclaim the last chunk, which is flushed but not full."""
        self._clean = False
        span = self._taken.popleft()
        assert not self._taken and self._flushed == self.end
        self._evictable = span
        self._view, self._start, self._limit = None, 0, 0
        self._memory.pool.cache(span.chunk, span.on_evict)

    def forget(self, span: _Span) -> None:
        """The pool takes the chunk of `span` away."""
        if span is self._evictable:
            self._evictable = None
            start = self.end & _BLOCK_MASK
            self._prefix = bytes(span.view[start - span.start : self.end - span.start])
        at = bisect_left(self._starts, span.start)
        del self._spans[at], self._starts[at]

    # -- reading

    def memory_view(self, position: int, length_max: int) -> memoryview | None:
        """Return bytes at `position` without a copy, at most to the end of their chunk."""
        at = bisect_right(self._starts, position) - 1
        if at < 0:
            return None
        span = self._spans[at]
        stop = min(span.end, self.end, position + length_max)
        if stop <= position:
            return None
        self._memory.pool.touch(span.chunk)
        return span.view[position - span.start : stop - span.start]

    def holds(self, position: int) -> bool:
        """Return whether the byte at `position` is in memory."""
        at = bisect_right(self._starts, position) - 1
        return at >= 0 and position < self._spans[at].end

    def copy(self, position: int, length: int) -> bytes | None:
        """Return [position, position + length), or None when not all of it is in memory."""
        parts = []
        while length > 0:
            view = self.memory_view(position, length)
            if view is None:
                return None
            parts.append(view)
            position += len(view)
            length -= len(view)
        return b"".join(parts)

    def batch_fields(self, position: int) -> tuple[int, ...] | None:
        """Return the head of the batch at `position`, or None when it was not appended to memory.

        What was read from the file, the block that the segment ended in, may have rotted there: a
        head in it may lead anywhere, and nobody would look whether its batch is good.
        """
        if position < self._read_end:
            return None
        at = bisect_right(self._starts, position) - 1
        if at < 0 or position + HEADER_BYTES > self.end:
            return None
        span = self._spans[at]
        if position + HEADER_BYTES <= span.end:
            return BATCH_STRUCT.unpack_from(span.view, position - span.start)
        head = self.copy(position, HEADER_BYTES)
        return None if head is None else BATCH_STRUCT.unpack(head)
