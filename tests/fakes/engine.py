"""An engine over the simulated disk: implements `dlogd.storage.io.io_engine`.

Completions come from the given loop after a time that the disk's latency and the random generator
decide, in any order; nothing completes once the process is dead. Breaches of the protocol
(unaligned direct writes, two writes of one sector in flight, a buffer released twice) are raised.

Works under a virtual and under a plain asyncio loop.
"""

import asyncio
import ctypes
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from dlogd.storage.io.files import File
from dlogd.storage.io.io_engine import ALIGNMENT, ReadDone, WriteDone
from tests.fakes.device import Disk, Owner
from tests.fakes.faults import ProcessDied
from tests.fakes.files import MemoryFile
from tests.fakes.inode import SECTOR
from tests.fakes.worker import Worker

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Write:
    """One write between `write` and `done`."""

    file: MemoryFile
    position: int
    buffers: Sequence[memoryview]
    before: bytes
    durable: bool
    done: WriteDone
    sectors: range = field(init=False)

    def __post_init__(self) -> None:
        end = self.position + len(self.before)
        self.sectors = range(self.position // SECTOR, -(-end // SECTOR))

    def happen(self, rng: random.Random, share: float) -> None:
        """Write each sector or not; its bytes are those of now or of the submission."""
        now = b"".join(self.buffers)
        inode = self.file.inode
        self.file.stamp()
        if share >= 1.0 and now == self.before:
            inode.write(self.position, now, durable=self.durable)
            return
        durable = self.durable and share >= 1.0
        for sector in self.sectors:
            if share >= 1.0 or rng.random() < share:
                data = now if rng.random() < 0.5 else self.before
                inode.write(self.position, data, durable=durable, sectors=(sector,))


class MemoryReadBuffer:
    """Implements `dlogd.storage.io.io_engine.ReadBuffer`.

    What is looked at after `release` is trash.
    """

    def __init__(self, engine: "MemoryEngine", data: bytes) -> None:
        self._engine = engine
        self._data = bytearray(data)
        self._view = memoryview(self._data)
        self._released = False

    @property
    def view(self) -> memoryview:
        return self._view

    def release(self) -> None:
        if self._released:
            self._engine.process.misuse("A read buffer was released twice")
        self._released = True
        self._view[:] = b"\xdb" * len(self._view)
        self._view.release()
        self._engine.on_release()


class MemoryEngine:
    """Implements `dlogd.storage.io.io_engine.Engine`.

    `pause_share`: how often blocking work stops at an operation and lets the loop go on.
    """

    def __init__(
        self,
        process: Owner,
        loop: asyncio.AbstractEventLoop,
        disks: Mapping[str, Disk],
        give_turn: Callable[[Worker | None], None],
    ) -> None:
        self.process = process
        self.read_buffer_count = 8
        self.pause_share = 0.0
        self._loop = loop
        self._rng = process.rng
        self._disks = disks
        self._give_turn = give_turn
        self._submitted: list[_Write] = []
        self._in_flight: dict[_Write, None] = {}
        self._reads_waiting: list[tuple[MemoryFile, int, int, ReadDone]] = []
        self._reads_out = 0
        self._workers: dict[Worker, None] = {}

    @property
    def name(self) -> str:
        return "memory"

    @property
    def read_length_max(self) -> int:
        return 1 << 20

    @property
    def read_length_best(self) -> int:
        return 1 << 20

    def give_way(self) -> None:
        """Nothing: time is virtual."""

    # -- writes

    def write(
        self,
        file: File,
        position: int,
        buffers: Sequence[memoryview],
        *,
        durable: bool,
        done: WriteDone,
    ) -> None:
        memory_file = self._own(file)
        write = _Write(memory_file, position, list(buffers), b"".join(buffers), durable, done)
        self._check_write(write)
        if not self._submitted:
            self._loop.call_soon(self._submit)
        self._submitted.append(write)

    def _own(self, file: File) -> MemoryFile:
        if not self.process.alive:
            raise ProcessDied("engine")
        memory_file: MemoryFile = file  # type: ignore[assignment]
        if memory_file.closed:
            self.process.misuse(f"Engine I/O on the closed file {file.path}")
        return memory_file

    def _check_write(self, write: _Write) -> None:
        if not write.before:
            self.process.misuse(f"An empty write to {write.file.path}")
        for other in (*self._submitted, *self._in_flight):
            same = other.file.inode is write.file.inode
            if same and max(other.sectors.start, write.sectors.start) < min(
                other.sectors.stop, write.sectors.stop
            ):
                self.process.misuse(f"Two writes of one sector in flight: {write.file.path}")
        if write.file.direct:
            self._check_alignment(write)

    def _check_alignment(self, write: _Write) -> None:
        numbers = [write.position, *(len(buffer) for buffer in write.buffers)]
        writable = [buffer for buffer in write.buffers if not buffer.readonly]
        numbers += [ctypes.addressof(ctypes.c_char.from_buffer(buffer)) for buffer in writable]
        if any(number % ALIGNMENT for number in numbers):
            self.process.misuse(f"An unaligned direct write to {write.file.path}: {numbers}")

    def _submit(self) -> None:
        writes, self._submitted = self._submitted, []
        for write in writes:
            self._in_flight[write] = None
            self._later(write.file, partial(self._complete, write))

    def _later(self, file: MemoryFile, callback: Callable[[], None]) -> None:
        delay = file.disk.latency.draw(self._rng)
        if delay > 0:
            self._loop.call_later(delay, self._unless_stuck, file, callback)
        else:
            self._loop.call_soon(self._unless_stuck, file, callback)

    def _unless_stuck(self, file: MemoryFile, callback: Callable[[], None]) -> None:
        if not self.process.alive:
            return
        if file.disk.stuck:
            file.disk.when_unstuck(lambda: self._later(file, callback))
            return
        try:
            callback()
        except ProcessDied:
            pass

    def _complete(self, write: _Write) -> None:
        file = write.file
        try:
            self.process.step(file.disk, "write", file.path, write.position, len(write.before))
            if write.durable:
                self.process.step(file.disk, "sync", file.path, write.position, 0)
            file.check_space(write.position + len(write.before))
        except OSError as error:
            write.happen(self._rng, self._rng.random() * 0.99)
            del self._in_flight[write]
            write.done(error)
            return
        write.happen(self._rng, 1.0)
        del self._in_flight[write]
        write.done(None)

    # -- reads

    def defer(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def read(self, file: File, position: int, length: int, done: ReadDone) -> None:
        if length > self.read_length_max:
            self.process.misuse(f"A read of {length} bytes of {file.path}")
        self._reads_waiting.append((self._own(file), position, length, done))
        self._start_reads()

    def _start_reads(self) -> None:
        while self._reads_waiting and self._reads_out < self.read_buffer_count:
            file, position, length, done = self._reads_waiting.pop(0)
            self._reads_out += 1
            self._later(file, partial(self._read, file, position, length, done))

    def _read(self, file: MemoryFile, position: int, length: int, done: ReadDone) -> None:
        try:
            self.process.step(file.disk, "read", file.path, position, length)
        except OSError as error:
            self._reads_out -= 1
            self._start_reads()
            done(error)
            return
        done(MemoryReadBuffer(self, file.inode.read(position, length)))

    def on_release(self) -> None:
        """Take a read buffer back."""
        self._reads_out -= 1
        if self.process.alive:
            self._start_reads()

    # -- blocking work

    async def run(self, work: Callable[[], T]) -> T:
        if not self.process.alive:
            raise ProcessDied("run")
        disks = self._disks.values()
        future: asyncio.Future[T] = self._loop.create_future()
        delay = max(disk.latency.draw(self._rng) for disk in disks)
        begin = delay * self._rng.random()
        if self.pause_share > 0 or any(disk.stuck for disk in disks):
            worker = Worker(work, self._give_turn)
            self._workers[worker] = None
            self._loop.call_later(begin, self._resume, worker, future, delay - begin)
        else:
            self._loop.call_later(begin, self._work, work, future, delay - begin)
        return await future

    def _work(self, work: Callable[[], T], future: "asyncio.Future[T]", delay: float) -> None:
        if not self.process.alive:
            return
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 (handed to the waiter, as an executor does)
            self._loop.call_later(delay, self._resolve, future, None, error)
        except ProcessDied:
            return
        else:
            self._loop.call_later(delay, self._resolve, future, result, None)

    def _resolve(
        self, future: "asyncio.Future[Any]", result: object, error: Exception | None
    ) -> None:
        if not self.process.alive or future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def _resume(self, worker: Worker, future: "asyncio.Future[T]", delay: float) -> None:
        if not self.process.alive:
            return
        worker.resume()
        if not worker.ended:
            disk = worker.disk
            if disk is not None and disk.stuck:
                disk.when_unstuck(partial(self._resume, worker, future, delay))
            else:
                self._loop.call_later(worker.pause_seconds, self._resume, worker, future, delay)
            return
        self._workers.pop(worker, None)
        if isinstance(worker.error, Exception):
            self._loop.call_later(delay, self._resolve, future, None, worker.error)
        elif worker.error is None:
            self._loop.call_later(delay, self._resolve, future, worker.result, None)

    # -- directories

    def for_directory(self, path: str) -> "MemoryEngine":
        """Return itself: it has no threads to run out of."""
        return self

    def in_flight(self) -> list[tuple[object, str]]:
        return [(write, write.file.path) for write in self._in_flight]

    # -- the end

    def close(self) -> None:
        if self._submitted or self._in_flight:
            paths = [write.file.path for write in (*self._submitted, *self._in_flight)]
            self.process.misuse(f"The engine was closed with writes in flight: {paths}")

    def kill(self) -> None:
        """End with the process: of what is in flight any part may have happened."""
        share = self._rng.choice((0.0, 0.5, 0.9))
        for write in self._in_flight:
            write.happen(self._rng, share)
        self._submitted.clear()
        self._in_flight.clear()
        self._reads_waiting.clear()
        workers, self._workers = list(self._workers), {}
        for worker in workers:
            worker.unwind()
