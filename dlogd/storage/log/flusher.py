"""Flusher: appended batches to segment files; group commit, one write in flight per log.

A flush is started once per iteration of the loop and covers everything that waits; the next starts
when it has ended. What a flush promises is noted when it is submitted. Weak flush policies write
through the page cache, small pieces at once. Segments are completed in order: the first flush of a
new segment waits for the last one of the old. Owner: the event loop's thread.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from dlog.errors import KafkaStorageError
from dlog.types import Offset
from dlogd.storage.io.errnos import NO_SPACE, SHORTAGES
from dlogd.storage.io.io_engine import ALIGNMENT
from dlogd.storage.log.log_config import FLUSH_BYTES_MAX
from dlogd.storage.log.log_state import LogState
from dlogd.storage.segment.segment import Segment, SegmentState

log = logging.getLogger(__name__)

SYNCHRONOUS_BYTES_MAX = 64 * 1024
"""Buffered writes up to this size are done in the event loop: 5 us, less than a thread costs."""

FULL_DISK_RETRY_SECONDS = 1.0

_HOLD = "write"

_BLOCK_MASK = ~(ALIGNMENT - 1)


class Flusher:
    """The flushes of one log.

    `pending` has the segments that are not completely written, oldest first; the last is active.
    States: idle (nothing to write, or waiting for a file, space or `thaw`), scheduled (`busy`, not
    `in_flight`), in flight. After a failure of the log nothing is started any more.
    """

    __slots__ = (
        "_block",
        "_clock",
        "_defer",
        "_end",
        "_engine",
        "_frozen",
        "_memory",
        "_metrics",
        "_offset",
        "_on_written",
        "_quiet",
        "_retry",
        "_started_us",
        "_state",
        "busy",
        "in_flight",
        "on_complete",
        "on_progress",
        "pending",
    )

    def __init__(
        self,
        state: LogState,
        *,
        on_complete: Callable[[Segment], None],
        on_progress: Callable[[Segment, int], None],
    ) -> None:
        """`on_complete`: a rolled segment is written. `on_progress`: a segment was written to."""
        services = state.services
        self._state = state
        self._engine = services.engine
        self._memory = services.memory
        self._metrics = services.metrics
        self._clock = services.clock
        self._defer = services.engine.defer
        self._on_written = self.on_written
        self.on_complete = on_complete
        self.on_progress = on_progress
        self.pending: deque[Segment] = deque()
        self.busy = False
        self.in_flight = False
        self._frozen = False
        self._quiet: asyncio.Future[None] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._block: memoryview | None = None
        self._end = 0
        self._offset = 0
        self._started_us = 0

    def kick(self) -> None:
        """Let a flush start in the next iteration of the loop, unless one is under way."""
        if not self.busy:
            self.busy = True
            self._defer(self.run)

    def run(self) -> None:
        """Start the next write if there is something to write and it may start."""
        if self.in_flight:
            return
        self.busy = False
        state = self._state
        promised = state.promised_offset
        # Small weak writes are done at once; the last one promises for all of them.
        while self._start():
            promised = Offset(max(promised, self._offset))
        if promised > state.promised_offset and state.failed is None:
            state.advance(state.flushed_offset, promised)

    def _start(self) -> bool:
        """Start the next write; return whether it has ended already, so that more may wait."""
        if self._frozen or self._state.failed is not None:
            return False
        segment = self.pending[0]
        while len(self.pending) > 1 and segment.written_position == segment.tail.end:
            if segment.state is SegmentState.CREATING:
                return False
            self.pending.popleft()
            self.on_complete(segment)
            segment = self.pending[0]
        start = segment.written_position
        if start == segment.tail.end or not self._may_start(segment):
            return False
        if not self._choose_end(segment, start):
            return False
        if segment.durable:
            self._write_durably(segment, start)
            return False
        return self._write_buffered(segment, start)

    def _may_start(self, segment: Segment) -> bool:
        if segment.file is None:
            return False  # `run` is called when it has been made
        if not segment.durable:
            return True
        # A durable promise covers all that is older: a weakly flushed segment must be synced first.
        return self._state.flushed_offset >= segment.base_offset

    def _choose_end(self, segment: Segment, start: int) -> bool:
        """Note how far this write goes and what it promises; False when it has to wait."""
        end = segment.tail.end
        self._end, self._offset = end, self._state.end_offset_of(segment)
        limit = min(start + FLUSH_BYTES_MAX, segment.space.wait_position)
        if end <= limit:
            return True
        place = segment.index.boundary(start, limit)
        if place is not None:
            self._offset, self._end = place
        return self._end <= segment.space.wait_position

    def _write_durably(self, segment: Segment, start: int) -> None:
        file, end = segment.file, self._end
        assert file is not None
        tail = segment.tail
        if file.direct:
            start &= _BLOCK_MASK
            last = end & _BLOCK_MASK
            buffers = tail.buffers(start, last) if last > start else []
            if last != end:
                block = self._memory.take_block()
                if block is None:
                    self._memory.when_block(self.kick)
                    return
                tail.fill_block(block, end)
                buffers.append(block)
                self._block = block
        else:
            buffers = tail.buffers(start, end)
        self.busy = self.in_flight = True
        self._started_us = self._clock.now_us()
        self._engine.write(file, start, buffers, durable=True, done=self._on_written)

    def _write_buffered(self, segment: Segment, start: int) -> bool:
        """Write through the page cache; return whether that has ended well."""
        file, end = segment.file, self._end
        assert file is not None
        buffers = segment.tail.buffers(start, end)
        self._started_us = self._clock.now_us()
        if end - start > SYNCHRONOUS_BYTES_MAX and not file.direct:
            self.busy = self.in_flight = True
            self._engine.write(file, start, buffers, durable=False, done=self._on_written)
            return False
        try:
            for buffer in buffers:
                file.pwrite(buffer, start)
                start += len(buffer)
        except OSError as error:
            self._on_error(error)
            return False
        self.on_progress(segment, self._account(segment))
        return True

    def on_written(self, error: OSError | None) -> None:
        """A write by the engine has ended; may come after the log failed or was closed."""
        self.in_flight = self.busy = False
        if self._block is not None:
            self._memory.give_block_back(self._block)
            self._block = None
        state, segment = self._state, self.pending[0]
        if error is not None:
            self._on_error(error)
        elif state.failed is None and not state.given_up:
            self._advance(segment)
        if state.failed is not None or state.given_up:
            state.give_memory_back()
        if self._quiet is not None and not self.in_flight:
            quiet, self._quiet = self._quiet, None
            if not quiet.done():
                quiet.set_result(None)

    def _advance(self, segment: Segment) -> None:
        """Account for a write by the engine that ended well, and start the next."""
        state, end, offset = self._state, self._end, self._offset
        size = self._account(segment)
        if segment.durable:
            # Before the acknowledgement: what is below the mark is never taken for a torn tail.
            segment.index.mark(end)
        if segment.tail.end != end or len(self.pending) > 1:
            # First, so that the disk works while the acknowledgements go out.
            self.run()
        flushed = offset if segment.durable else state.flushed_offset
        if offset >= state.promised_offset or flushed > state.flushed_offset:
            # What went on synchronously may have promised more.
            state.advance(flushed, max(offset, state.promised_offset))
        # After it, because indexes and preallocation cost system calls and nobody waits for them.
        self.on_progress(segment, size)

    def _account(self, segment: Segment) -> int:
        """Count a write up to `_end` that has ended well; return its bytes."""
        end, offset = self._end, self._offset
        metrics = self._metrics
        metrics.flush_seconds.observe((self._clock.now_us() - self._started_us) * 1e-6)
        size = end - segment.written_position
        metrics.flush_bytes.observe(size)
        segment.note_written(end, offset)
        segment.tail.on_flushed(end)
        self.stop_waiting()
        return size

    # -- errors

    def _on_error(self, error: OSError) -> None:
        """A shortage is waited for where nothing was lost; anything else ends the log."""
        state = self._state
        if error.errno not in SHORTAGES:
            state.fail(error)
            return
        if state.failed is not None or self._retry is not None:
            return
        if error.errno in NO_SPACE:
            text = f"The disk of {state.topic_partition} is full"
        else:
            text = f"Nothing can be written to {state.topic_partition} for now: {error}"
        log.warning(
            "Log writes are waiting for space partition=%s error=%s", state.topic_partition, error
        )
        shortage = KafkaStorageError(text)
        state.hold(_HOLD, shortage)
        self._memory.unwritable.add(self)
        loop = state.services.loop
        self._retry = loop.call_later(FULL_DISK_RETRY_SECONDS, self._try_again)
        state.end_waiting(shortage)  # nobody knows when there will be space

    def _try_again(self) -> None:
        loop = self._state.services.loop
        self._retry = loop.call_later(FULL_DISK_RETRY_SECONDS, self._try_again)
        self.kick()

    def stop_waiting(self) -> None:
        """Take appends again: there is space now, or nothing left that needs any."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
            self._memory.unwritable.discard(self)
            self._state.resume(_HOLD)

    @property
    def waits_for_space(self) -> bool:
        """Whether writes wait for space, descriptors or memory."""
        return self._retry is not None

    # -- stopping

    def give_memory_back(self) -> None:
        """Drop all tails, but for what is in flight: the disk may look at that at any time."""
        self._memory.unwritable.discard(self)
        written = self.pending[0] if self.in_flight else None
        for segment in self._state.segments:
            if segment is written:
                segment.tail.forget_from(self._end)
            else:
                segment.tail.forget_all()

    async def freeze(self) -> None:
        """Start no write until `thaw`; return when none is in flight, or it has been given up."""
        self._frozen = True
        while self.in_flight and not self._state.given_up:
            if self._quiet is None:
                self._quiet = self._state.services.loop.create_future()
            await asyncio.shield(self._quiet)

    def give_up(self) -> None:
        """Let nobody wait for what is in flight: it may never end, and the log has failed."""
        self._state.end_unanswered()
        if self._quiet is not None and not self._quiet.done():
            self._quiet.set_result(None)

    def thaw(self) -> None:
        """Write again."""
        self._frozen = False
        self.kick()

    def stop(self) -> None:
        """Start nothing any more."""
        self._frozen = True
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
