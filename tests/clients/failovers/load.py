"""One client under load: it writes numbered records to a topic of its own, and reads them.

It is left at its defaults, but for the acknowledgement of all. Everything that it tells its caller
is kept: acknowledgements, records, errors. `verdict` compares them.
"""

import asyncio
import itertools
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from tests.clients.failovers.verdict import Ack, Promise, Seen

RATE = 60.0
"""Records a second; what a client could not send in time it sends at once when it can."""
FLUSH_S = 130.0  # a little more than what clients give a record by default
READ_S = 45.0  # a consumer may have to be replaced
CLOSE_S = 60.0  # a library may wait for requests under way, each as long as it may take
POLL_S = 0.2


class Load(ABC):
    """A client's producer and consumer. Life: `start`, `stop_writing`, `finish`."""

    name = "load"
    promise = Promise.EXACT

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.partitions = partitions
        self.acks: list[Ack] = []
        self.seen: list[Seen] = []
        self.errors: list[str] = []
        self.sent_count = 0
        self.lockup_count = 0
        """How many consumers have locked themselves up, and were replaced."""
        self.is_stopping = threading.Event()
        self._ends: Mapping[int, int] | None = None
        self._read_until_s = float("inf")
        self._next = dict.fromkeys(range(partitions), 0)
        self._threads = ThreadPoolExecutor(2, self.name)
        self._tasks: list[Future[None]] = []

    # Life

    def start(self) -> None:
        """Begin to write and to read."""
        self._tasks = [self._threads.submit(self.write), self._threads.submit(self.read)]

    def stop_writing(self) -> None:
        """Send no more; return when everything was answered, or never will be."""
        self.is_stopping.set()
        self._await(self._tasks[0], FLUSH_S)

    def finish(self, ends: Mapping[int, int]) -> None:
        """Read until the ends of the partitions, and close."""
        self._read_until_s = time.monotonic() + READ_S
        self._ends = ends
        self._await(self._tasks[1], READ_S + CLOSE_S)
        self._threads.shutdown(wait=False)

    def _await(self, task: "Future[None]", timeout_s: float) -> None:
        try:
            error = task.exception(timeout_s)
        except TimeoutError:
            error = TimeoutError(f"not done after {timeout_s:.0f} s")
        if error is not None:
            self.errors.append(f"{type(error).__name__}: {error}")

    @property
    def trouble(self) -> list[str]:
        """What the caller has heard so far that should not be."""
        ended = [task.exception() for task in self._tasks if task.done()]
        return self.errors + [repr(each) for each in ended if each is not None]

    # What a library does

    @abstractmethod
    def write(self) -> None:
        """Send what `due` gives, and return when all is answered."""

    @abstractmethod
    def read(self) -> None:
        """Read all partitions from their beginnings until `has_read_all`."""

    # What it tells

    def due(self) -> Iterator[tuple[int, int]]:
        """Yield (number, partition) when it is time to send it, until it is time to stop."""
        begin = time.monotonic()
        for number in itertools.count():
            wait_s = begin + number / RATE - time.monotonic()
            if self.is_stopping.wait(max(0.0, wait_s)):
                return
            self.sent_count += 1
            yield number, number % self.partitions

    async def due_on_loop(self) -> AsyncIterator[tuple[int, int]]:
        """Do what `due` does, on an event loop."""
        begin = time.monotonic()
        for number in itertools.count():
            await asyncio.sleep(max(0.0, begin + number / RATE - time.monotonic()))
            if self.is_stopping.is_set():
                return
            self.sent_count += 1
            yield number, number % self.partitions

    def acked(self, number: int, partition: int, offset: int, sent_s: float) -> None:
        """Note an acknowledgement; offset -1 where none was told."""
        self.acks.append(Ack(number, partition, offset, sent_s, time.monotonic()))

    def refused(self, number: int, error: object) -> None:
        """Note an error."""
        self.errors.append(f"record {number}: {type(error).__name__}: {error}")

    def took(self, records: Sequence[tuple[int, int, bytes | None]]) -> None:
        """Note records that were read: partition, offset, value."""
        now = time.monotonic()
        for partition, offset, value in records:
            self.seen.append(Seen(partition, offset, int(value or b"-1"), now))
            self._next[partition] = offset + 1

    @property
    def has_read_all(self) -> bool:
        """Whether reading is over: everything read, or no more time."""
        if time.monotonic() > self._read_until_s:
            return True
        ends = self._ends
        return ends is not None and all(self._next[each] >= end for each, end in ends.items())
