"""I/O engine on Linux AIO: direct reads and writes without a second thread.

Everything queued during one iteration of the event loop goes out in one io_submit; completions
arrive by an eventfd that the loop watches. Durable writes carry RWF_DSYNC (Linux 4.13), so the
kernel completes them only when these bytes and the metadata to find them are on stable storage.
What would block io_submit goes to a `ThreadEngine`: buffered files, and writes that extend a file
(ext4 waits for them, 10 ms and more each), which preallocation keeps rare.
"""

import asyncio
import errno
import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from dlogd.storage.io.files import File
from dlogd.storage.io.io_engine import ReadDone, WriteDone
from dlogd.storage.io.linux_aio import (
    IOVECS_MAX,
    PREAD,
    PWRITE,
    PWRITEV,
    AioContext,
    address_of,
    limits,
)
from dlogd.storage.io.read_pool import READ_MEMORY_BYTES, PooledRead, ReadPool
from dlogd.storage.io.thread_engine import (
    DIRECTORY_WORK_THREADS,
    WORK_THREADS,
    ThreadEngine,
    check_alignment,
    prefix_of,
    short_write_error,
    submitted_below,
)

T = TypeVar("T")

log = logging.getLogger(__name__)

EVENTS_MAX = 512
"""Operations in flight; fs.aio-max-nr (65,536) is shared by all programs of the host."""

DIRECTORY_EVENTS_MAX = 48
"""In each of several directories: io_submit waits for a disk that hangs when its queue is full."""

SILENT_S = 0.1
"""From a disk that answers nothing for so long io_submit is kept away (docs/decisions/0008)."""

_RETRY_SECONDS = 0.001


class _Write:
    """One write from its call to its completion; keeps the buffers alive."""

    __slots__ = ("_buffers", "_done", "_wanted", "end", "file", "flags", "position", "spans")

    def __init__(
        self,
        file: File,
        position: int,
        buffers: Sequence[memoryview],
        durable: bool,
        done: WriteDone,
    ) -> None:
        self.file = file
        self.position = position
        self.flags = os.RWF_DSYNC if durable else 0
        self._buffers = buffers
        self._done = done
        wanted = 0
        spans: list[tuple[int, int]] = []
        for buffer in buffers:
            size = buffer.nbytes
            address = address_of(buffer)
            check_alignment(file, position, size | address)
            spans.append((address, size))
            wanted += size
        self.spans = spans
        self.end = position + wanted
        self._wanted = wanted

    def prepare(self, context: AioContext, index: int, slot: int) -> None:
        spans = self.spans
        if len(spans) == 1:
            address, size = spans[0]
            opcode = PWRITE
        else:
            address, size = context.prepare_iovecs(slot, spans), len(spans)
            opcode = PWRITEV
        context.prepare(
            index, slot, opcode, self.flags, self.file.fileno(), address, size, self.position
        )

    def complete(self, result: int) -> None:
        if result == self._wanted:
            self._done(None)
        elif result < 0:
            self._done(OSError(-result, os.strerror(-result), self.file.path))
        else:
            self._done(short_write_error(self.file, result, self._wanted))


class _Read:
    """One direct read; a short one before the end of the file is repeated by a thread, which
    finds out what is wrong.
    """

    __slots__ = ("_read", "_repeat")

    def __init__(self, read: PooledRead, repeat: Callable[[PooledRead], None]) -> None:
        self._read = read
        self._repeat = repeat

    @property
    def file(self) -> File:
        return self._read.file

    def prepare(self, context: AioContext, index: int, slot: int) -> None:
        read = self._read
        context.prepare(
            index, slot, PREAD, 0, read.file.fileno(), read.address, read.span, read.start
        )

    def complete(self, result: int) -> None:
        read = self._read
        try:
            if result < 0:
                raise OSError(-result, os.strerror(-result), read.file.path)
            # A file that was closed meanwhile has no size: who asked has given up.
            is_short = result < read.span and read.start + result < read.file.size()
        except OSError as error:
            read.fail(error)
            return
        if is_short:
            self._repeat(read)
        else:
            read.succeed(result)


class AioEngine:
    """The engine of Linux AIO (`dlogd.storage.io.io_engine.Engine`).

    Invariant: in flight + free slots == events; at most one `_submit` is scheduled.
    Raises OSError when the kernel gives no context (fs.aio-max-nr, no AIO in the kernel).
    """

    name = "aio"

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        read_memory_bytes: int = READ_MEMORY_BYTES,
        events: int = EVENTS_MAX,
        work_threads: int = WORK_THREADS,
        reads: ReadPool | None = None,
    ) -> None:
        self._loop = loop
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            self._context = AioContext(events, self._eventfd)
        except OSError as error:
            os.close(self._eventfd)
            raise OSError(error.errno, f"{error.strerror} ({limits()})") from error
        self._events = events
        self._operations: list[_Write | _Read | None] = [None] * events
        self._free_slots = list(range(events))
        self._queue: deque[_Write | _Read] = deque()
        self._ended: deque[tuple[_Write | _Read, int]] = deque()
        self._deferred: deque[Callable[[], None]] = deque()
        self._scheduled = False
        self._writing = 0
        self._heard_at = 0.0  # while something is in flight: when the kernel last answered
        self._reads = reads or ReadPool(read_memory_bytes, loop.call_soon, loop.time)
        self._threads = ThreadEngine(loop, reads=self._reads, work_threads=work_threads)
        self._directories: dict[str, AioEngine | ThreadEngine] = {}
        self.submits_total = 0
        loop.add_reader(self._eventfd, self._on_completions)

    @property
    def read_length_max(self) -> int:
        """The largest `length` of one read, bytes."""
        return self._reads.length_max

    @property
    def read_length_best(self) -> int:
        """What one of many reads should ask for now."""
        return self._reads.length_best

    @property
    def unfinished(self) -> int:
        """Reads and writes whose callback is still to come, those waiting for memory excepted."""
        in_flight = self._events - len(self._free_slots)
        return in_flight + len(self._queue) + len(self._ended) + self._threads.unfinished

    def write(
        self,
        file: File,
        position: int,
        buffers: Sequence[memoryview],
        *,
        durable: bool,
        done: WriteDone,
    ) -> None:
        """Write `buffers` one after the other from `position`."""
        self._reads.write_count += 1
        if file.direct and len(buffers) <= IOVECS_MAX and not self._is_silent:
            write = _Write(file, position, buffers, durable, done)
            if _is_within(write.end, file):
                self._queue.append(write)
                self._writing += 1
                self._schedule()
                return
        self._threads.write(file, position, buffers, durable=durable, done=done)

    def defer(self, callback: Callable[[], None]) -> None:
        """Call `callback` once in the next iteration of the loop, before what is queued is sent."""
        self._deferred.append(callback)
        self._schedule()

    def read(self, file: File, position: int, length: int, done: ReadDone) -> None:
        """Read up to `length` bytes into pooled memory."""
        self._reads.start(file, position, length, done, self.submit_read)

    def submit_read(self, read: PooledRead) -> None:
        """Carry out a read that has its memory."""
        if submitted_below(self._directories, read):
            return
        if not read.file.direct or self._is_silent:
            self._threads.submit_read(read)
            return
        self._queue.append(_Read(read, self._threads.submit_read))
        self._schedule()

    @property
    def _is_silent(self) -> bool:
        is_idle = len(self._free_slots) == self._events
        return not is_idle and self._loop.time() - self._heard_at > SILENT_S

    def give_way(self) -> None:
        """Let the kernel's workers finish writes that are in flight.

        A durable write goes through workers that are bound to the CPU which the disk interrupts,
        and completions pull this process there too. A loop that is always busy then keeps them from
        running for up to a tick of the scheduler (4 ms), three times for each write.
        """
        if self._is_writing:
            os.sched_yield()

    @property
    def _is_writing(self) -> bool:
        if self._writing:
            return True
        engines = self._directories.values()
        return any(isinstance(each, AioEngine) and each._is_writing for each in engines)

    async def run(self, work: Callable[[], T]) -> T:
        """Run blocking `work` in a thread; re-raise what it raises."""
        return await self._threads.run(work)

    def for_directory(self, path: str) -> "AioEngine | ThreadEngine":
        """Return an engine for the files below `path`; of threads when there is no context left."""
        try:
            engine: AioEngine | ThreadEngine = AioEngine(
                self._loop,
                events=min(self._events, DIRECTORY_EVENTS_MAX),
                work_threads=DIRECTORY_WORK_THREADS,
                reads=self._reads,
            )
            self._reads.add_directory()
        except OSError as error:
            log.warning("No Linux AIO for data directory path=%s error=%s", path, error.strerror)
            engine = self._threads.for_directory(path)
        self._directories[prefix_of(path)] = engine
        return engine

    def in_flight(self) -> list[tuple[object, str]]:
        """Return the reads and writes that the kernel or a thread has been given."""
        operations = [each for each in self._operations if each is not None]
        return [(each, each.file.path) for each in operations] + self._threads.in_flight()

    def close(self) -> None:
        """Release the context and the threads; nothing may be in flight."""
        for engine in self._directories.values():
            engine.close()
        self._loop.remove_reader(self._eventfd)
        self._context.close()
        os.close(self._eventfd)
        self._threads.close()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._submit)

    def _submit(self) -> None:
        """Send what is queued, as far as there are slots; completions bring the rest."""
        if self._deferred:
            self._call_deferred()
        self._scheduled = False
        queue, free, operations = self._queue, self._free_slots, self._operations
        context = self._context
        slots: list[int] = []
        if len(free) == self._events:
            self._heard_at = self._loop.time()
        while queue and free:
            operation = queue.popleft()
            slot = free.pop()
            operations[slot] = operation
            operation.prepare(context, len(slots), slot)
            slots.append(slot)
        first = 0
        while first < len(slots):
            self.submits_total += 1
            sent = context.submit(first, len(slots) - first)
            if sent > 0:
                first += sent
            elif sent in (0, -errno.EAGAIN, -errno.EINTR):
                self._take_back(slots[first:])
                break
            else:
                # The kernel refused this one operation (EBADF, EINVAL); the others still go.
                self._end(slots[first], sent)
                first += 1
        if self._ended:
            self._finish()
        if queue and free and first == len(slots):
            self._schedule()  # what was sent was refused: no completion brings the rest

    def _call_deferred(self) -> None:
        deferred, ended = self._deferred, False
        try:
            while deferred:
                deferred.popleft()()
            ended = True
        finally:
            if not ended:
                # What it raised is reported by the loop; the others still have their turn.
                self._loop.call_soon(self._submit)

    def _take_back(self, slots: list[int]) -> None:
        """Queue operations again that the kernel had no room for."""
        for slot in reversed(slots):
            operation = self._operations[slot]
            if operation is not None:
                self._queue.appendleft(operation)
            self._operations[slot] = None
            self._free_slots.append(slot)
        if len(self._free_slots) == self._events:
            # Nothing is in flight whose completion would bring them back here.
            self._scheduled = True
            self._loop.call_later(_RETRY_SECONDS, self._submit)

    def _on_completions(self) -> None:
        try:
            os.eventfd_read(self._eventfd)
        except BlockingIOError:
            return
        self._heard_at = self._loop.time()
        for slot, result in self._context.completions():
            self._end(slot, result)
        # What the callbacks write goes out together at once, not with the loop's next iteration.
        self._scheduled = True
        try:
            self._finish()
        finally:
            self._submit()

    def _end(self, slot: int, result: int) -> None:
        operation = self._operations[slot]
        assert operation is not None
        self._operations[slot] = None
        self._free_slots.append(slot)
        if type(operation) is _Write:
            self._writing -= 1
        self._ended.append((operation, result))

    def _finish(self) -> None:
        """Call back for everything that has ended."""
        ended = self._ended
        try:
            while ended:
                operation, result = ended.popleft()
                operation.complete(result)
        finally:
            # A callback that raised is reported by the loop; the others still have their turn.
            if ended:
                self._loop.call_soon(self._finish)


def _is_within(end: int, file: File) -> bool:
    """Return whether the file reaches to `end`; no when it cannot be told."""
    try:
        return end <= file.size()
    except OSError:
        return False
