"""I/O engine on threads: positioned vectored I/O for every file and kernel.

Completions are handed to the event loop in batches, one wake-up for all that ended meanwhile.
`dlogd.storage.io.aio_engine` uses it for what Linux AIO cannot do without blocking. Durable writes
carry RWF_DSYNC (man 2 pwritev2): these bytes and the metadata to find them again are on stable
storage when the call returns; earlier writes that were not durable still need `File.sync`.
"""

import asyncio
import errno
import logging
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from dlogd.storage.io.files import File
from dlogd.storage.io.io_engine import ALIGNMENT, ReadDone, WriteDone
from dlogd.storage.io.read_pool import READ_MEMORY_BYTES, PooledRead, ReadPool

log = logging.getLogger(__name__)

T = TypeVar("T")

IO_THREADS = 4
"""Threads for reads and writes: enough to keep a few disks busy, few enough for the GIL."""
WORK_THREADS = 8
"""Threads for `run`: they must not delay writes, so they are others."""
DIRECTORY_WORK_THREADS = 4
"""Threads for `run` of each data directory, where there are several."""

JOB_COUNT_MAX = 1 << 17
"""Jobs that wait: more than there can be logs on a node."""

_IOV_MAX = 1024


class Job(Protocol):
    """Blocking work for a thread; must not raise."""

    @property
    def path(self) -> str:
        """Of the file that it is about."""

    def work(self) -> None:
        """Do the work; called in a worker thread."""

    def finish(self) -> None:
        """Report the result; called on the loop's thread."""


def check_alignment(file: File, position: int, address_or_length: int) -> None:
    """Raise ValueError when direct I/O would be refused; tmpfs would not notice."""
    if (position | address_or_length) % ALIGNMENT:
        raise ValueError(f"Unaligned direct write at {position} of {file.path}")


def short_write_error(file: File, written: int, wanted: int) -> OSError:
    """Return what a write that ended early stands for: no space, by the disk or by a quota.

    The system gives the reason only to the next write. A disk that fails refuses a write as a
    whole, so this must not take it out of service.
    """
    return OSError(errno.ENOSPC, f"Short write, {written} of {wanted} bytes", file.path)


def with_path(error: OSError, file: File) -> OSError:
    """Return the same error naming the file."""
    return OSError(error.errno, error.strerror or str(error), file.path)


class WriteJob:
    """One vectored write."""

    __slots__ = ("_buffers", "_done", "_durable", "_error", "_file", "_position")

    def __init__(
        self,
        file: File,
        position: int,
        buffers: Sequence[memoryview],
        durable: bool,
        done: WriteDone,
    ) -> None:
        self._file = file
        self._position = position
        self._buffers = buffers
        self._durable = durable
        self._done = done
        self._error: OSError | None = None

    @property
    def path(self) -> str:
        return self._file.path

    def work(self) -> None:
        # A flush by itself where its error would look like one of the write: a full disk is waited
        # for, but no flush is repeated. A direct write leaves nothing that a flush could lose.
        flags = os.RWF_DSYNC if self._durable and self._file.direct else 0
        position = self._position
        try:
            for first in range(0, len(self._buffers), _IOV_MAX):
                part = self._buffers[first : first + _IOV_MAX]
                wanted = sum(buffer.nbytes for buffer in part)
                written = os.pwritev(self._file.fileno(), part, position, flags)
                if written != wanted:
                    self._error = short_write_error(self._file, written, wanted)
                    return
                position += written
            if self._durable and not self._file.direct:
                self._flush()
        except OSError as error:
            self._error = with_path(error, self._file)
        except (ValueError, TypeError, BufferError) as error:
            self._error = OSError(errno.EINVAL, str(error), self._file.path)

    def _flush(self) -> None:
        try:
            os.fdatasync(self._file.fileno())
        except OSError as error:
            raise OSError(errno.EIO, f"The flush failed: {error.strerror}") from error

    def finish(self) -> None:
        self._done(self._error)


class ReadJob:
    """One read into pooled memory, to its end or the end of the file."""

    __slots__ = ("_count", "_error", "_read")

    def __init__(self, read: PooledRead) -> None:
        self._read = read
        self._count = 0
        self._error: OSError | None = None

    @property
    def path(self) -> str:
        return self._read.file.path

    def work(self) -> None:
        read = self._read
        try:
            while self._count < read.span:
                target = read.target[self._count :]
                count = os.preadv(read.file.fileno(), [target], read.start + self._count)
                self._count += count
                # A direct read that ends between blocks has met the end of the file.
                if count == 0 or (read.file.direct and count % ALIGNMENT):
                    return
        except OSError as error:
            self._error = with_path(error, read.file)

    def finish(self) -> None:
        if self._error is None:
            self._read.succeed(self._count)
        else:
            self._read.fail(self._error)


def start_threads(executor: ThreadPoolExecutor, count: int) -> None:
    """Let an executor start `count` threads now; raise OSError when there are not so many.

    Later, when there are none to be had, what was submitted would be done by nobody.
    """
    barrier = threading.Barrier(count + 1)
    try:
        for _ in range(count):
            executor.submit(barrier.wait)
    except RuntimeError as error:
        barrier.abort()
        raise OSError(
            errno.EAGAIN, f"{error}: raise the limit of tasks (TasksMax=, RLIMIT_NPROC)"
        ) from error
    barrier.wait()


class Workers:
    """Daemon threads that take jobs in FIFO order; the first is there, others as they are needed.

    Where the system has no more threads, those that are there do all. Bounded by its callers: each
    log has one write in flight, reads have pooled memory. Beyond JOB_COUNT_MAX `submit` raises
    queue.Full, which is a bug.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, thread_count_max: int) -> None:
        self._loop = loop
        self._name = name
        self._thread_count_max = thread_count_max
        self._threads: list[threading.Thread] = []
        self._at_work: list[Job | None] = []  # by thread
        self._queue: queue.Queue[Job | None] = queue.Queue(JOB_COUNT_MAX)
        self._unfinished = 0
        self._ended: deque[Job] = deque()
        self._notified = False
        self._is_short = False
        self._start_thread()

    @property
    def unfinished(self) -> int:
        """Jobs submitted whose `finish` has not been called."""
        return self._unfinished

    def in_flight(self) -> list[tuple[object, str]]:
        """Return the jobs that threads are at, and the paths of their files."""
        return [(job, job.path) for job in list(self._at_work) if job is not None]

    def submit(self, job: Job) -> None:
        """Queue `job`; called on the loop's thread."""
        self._unfinished += 1
        self._queue.put_nowait(job)
        if len(self._threads) < min(self._unfinished, self._thread_count_max):
            try:
                self._start_thread()
            except RuntimeError as error:
                if not self._is_short:
                    self._is_short = True  # said once
                    count = len(self._threads)
                    log.warning(
                        "Could not start more I/O threads threads=%d error=%s", count, error
                    )

    def _start_thread(self) -> None:
        number = len(self._threads)
        name = f"{self._name}-{number}"
        thread = threading.Thread(target=self._serve, args=(number,), name=name, daemon=True)
        if number == len(self._at_work):
            self._at_work.append(None)
        thread.start()
        self._threads.append(thread)

    def _serve(self, number: int) -> None:
        at_work = self._at_work
        while True:
            job = self._queue.get()
            if job is None:
                return
            at_work[number] = job
            job.work()
            at_work[number] = None
            self._ended.append(job)
            # Set and cleared without a lock: `_finish` clears it before it looks, so a job that
            # sees it set is seen; two that both see it clear cost one useless wake-up.
            if not self._notified:
                self._notified = True
                self._loop.call_soon_threadsafe(self._finish)

    def _finish(self) -> None:
        self._notified = False
        try:
            while self._ended:
                job = self._ended.popleft()
                self._unfinished -= 1
                job.finish()
        finally:
            # A callback that raised is reported by the loop; the others still have their turn.
            if self._ended:
                self._loop.call_soon(self._finish)

    def close(self) -> None:
        """End the threads after the jobs they have."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()


class TakesReads(Protocol):
    """An engine, of one data directory or of all."""

    def submit_read(self, read: PooledRead) -> None:
        """Carry out a read that has its memory."""


def prefix_of(directory: str) -> str:
    """Return what the paths of all files below a directory begin with."""
    return directory.rstrip("/") + "/"


def submitted_below(directories: Mapping[str, TakesReads], read: PooledRead) -> bool:
    """Hand a read to the engine of its directory (by `prefix_of`), if that is one of several."""
    for prefix, engine in directories.items():
        if read.file.path.startswith(prefix):
            engine.submit_read(read)
            return True
    return False


class ThreadEngine:
    """The engine of threads (`dlogd.storage.io.io_engine.Engine`)."""

    name = "threads"

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        read_memory_bytes: int = READ_MEMORY_BYTES,
        io_threads: int = IO_THREADS,
        work_threads: int = WORK_THREADS,
        reads: ReadPool | None = None,
    ) -> None:
        self._loop = loop
        self._io = Workers(loop, "dlogd-io", io_threads)
        self._executor = ThreadPoolExecutor(work_threads, thread_name_prefix="dlogd-work")
        start_threads(self._executor, work_threads)
        self._reads = reads or ReadPool(read_memory_bytes, loop.call_soon, loop.time)
        self._directories: dict[str, ThreadEngine] = {}

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
        return self._io.unfinished

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
        if file.direct:
            for buffer in buffers:
                check_alignment(file, position, buffer.nbytes)
        self._io.submit(WriteJob(file, position, buffers, durable, done))

    def defer(self, callback: Callable[[], None]) -> None:
        """Call `callback` once in the next iteration of the loop."""
        self._loop.call_soon(callback)

    def read(self, file: File, position: int, length: int, done: ReadDone) -> None:
        """Read up to `length` bytes into pooled memory."""
        self._reads.start(file, position, length, done, self.submit_read)

    def submit_read(self, read: PooledRead) -> None:
        """Carry out a read that has its memory."""
        if not submitted_below(self._directories, read):
            self._io.submit(ReadJob(read))

    def give_way(self) -> None:
        """Nothing: the threads may run on any CPU."""

    async def run(self, work: Callable[[], T]) -> T:
        """Run blocking `work` in a thread; re-raise what it raises."""
        return await self._loop.run_in_executor(self._executor, work)

    def for_directory(self, path: str) -> "ThreadEngine":
        """Return an engine for the files below `path`, with threads of its own."""
        engine = ThreadEngine(self._loop, work_threads=DIRECTORY_WORK_THREADS, reads=self._reads)
        self._reads.add_directory()
        self._directories[prefix_of(path)] = engine
        return engine

    def in_flight(self) -> list[tuple[object, str]]:
        """Return the reads and writes that threads are at."""
        return self._io.in_flight()

    def close(self) -> None:
        """End the threads; nothing may be in flight."""
        for engine in self._directories.values():
            engine.close()
        self._io.close()
        self._executor.shutdown()
        self._reads.close()
