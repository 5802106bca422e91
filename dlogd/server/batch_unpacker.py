"""Checks of compressed records for producers, off the event loop and few at a time.

One batch may decompress to `RECORDS_BYTES_MAX` (128 MiB), so the number of batches that are checked
at a time bounds the memory. A small batch is checked at once: a thread would take longer.
Owner: the event loop's thread.
"""

import asyncio
from collections.abc import Awaitable, Callable

from dlog.batch.records import RECORDS_BYTES_MAX
from dlog.errors import DecompressedTooLargeError, WireError
from dlogd.replication.partition.record_validation import RecordTimes, times_in, too_large
from dlogd.runtime.tasks import Tasks
from dlogd.server.connection import Connection

Outcome = RecordTimes | WireError
"""What a check found."""

CHECKED_MAX = 2
"""Batches that threads check at a time, over all connections."""
SMALL_PACKED_BYTES = 32 * 1024
SMALL_BYTES = 128 * 1024
"""Decompressed; gzip, the slowest codec, takes half a millisecond for it."""
SMALL_ENTRIES = 100
"""What a small batch counts as in the turns of large requests (`dlogd.server.request_turns`)."""


def outcome_of(batch: bytes) -> Outcome:
    """Check a batch of any size."""
    return outcome_within(batch, RECORDS_BYTES_MAX) or too_large(RECORDS_BYTES_MAX)


def outcome_within(batch: bytes, bytes_max: int) -> Outcome | None:
    """Check a batch; None when it decompresses to more than `bytes_max`."""
    try:
        return times_in(batch, bytes_max)
    except DecompressedTooLargeError:
        return None
    except WireError as error:
        return _bare(error)


def _bare(error: WireError) -> WireError:
    """Return the error without what led to it: the frames of its tracebacks hold the records."""
    return type(error)(str(error))


class BatchUnpacker:
    """The line of large batches, one per node: first come, first served."""

    def __init__(
        self, tasks: Tasks, run: Callable[[Callable[[], Outcome]], Awaitable[Outcome]]
    ) -> None:
        """`run` does blocking work in a thread."""
        self._tasks = tasks
        self._run = run
        self._places = asyncio.Semaphore(CHECKED_MAX)

    def ask(
        self, connection: Connection, copy: Callable[[], bytes], then: Callable[[Outcome], object]
    ) -> None:
        """Check what `copy` returns, call `then`, and unstall the connection."""
        self._tasks.spawn("check compressed records", self._check(connection, copy, then))

    async def _check(
        self, connection: Connection, copy: Callable[[], bytes], then: Callable[[Outcome], object]
    ) -> None:
        outcome: Outcome | None = None
        try:
            async with self._places:
                connection.close_if_left()  # the loop hears of no end while nothing is read
                if not connection.is_open:
                    return  # nobody waits any more
                batch = copy()
                outcome = await self._run(lambda: outcome_of(batch))
        finally:
            if outcome is None:
                connection.abort(None)  # cut off by a stop, or a bug, which the task set logs
        then(outcome)
        connection.unstall()
