"""Searches of the disk for offsets that a read could not find in memory: rounds and refusals.

`PartitionLog.read` answers None when a disk must be asked. Its caller then awaits `locate` and
reads again. Fetch requests and followers share this contract.
"""

import asyncio
from collections.abc import Callable, Sequence

from dlog.errors import KafkaStorageError, WireError
from dlogd.storage.log.partition_log import PartitionLog

ROUNDS_MAX = 20
"""Searches in a row; one is enough unless others push out what it found, or there is damage."""
SEARCHES_MAX = 64
"""Searches of one round that run at a time."""


def _always() -> bool:
    return True


class DiskSearch:
    """The searches of one reader. Owner: the event loop's thread."""

    __slots__ = ("_refused", "_rounds")

    def __init__(self) -> None:
        self._rounds = 0
        self._refused: dict[PartitionLog, WireError] = {}

    def check(self, plog: PartitionLog, offset: int) -> None:
        """Raise WireError if another search for `offset`, which no read finds, is useless."""
        if self._rounds > 1 and plog in self._refused:
            raise self._refused[plog].with_traceback(None)
        if self._rounds > ROUNDS_MAX:
            raise KafkaStorageError(
                f"Offset {offset} of {plog.topic_partition} is not found by {self._rounds} reads"
            )

    def end(self) -> None:
        """A read has found what it wanted: the next search is the first of its row."""
        self._rounds = 0

    def refusal(self, plog: PartitionLog) -> WireError | None:
        """Return what the last round met in a log."""
        return self._refused.get(plog)

    async def locate(
        self, wanted: Sequence[tuple[PartitionLog, int]], is_wanted: Callable[[], bool] = _always
    ) -> None:
        """Search the disks for an offset of each log, as long as `is_wanted`."""
        self._rounds += 1
        self._refused = {}
        for first in range(0, len(wanted), SEARCHES_MAX):
            if not is_wanted():
                return
            some = wanted[first : first + SEARCHES_MAX]
            errors = await asyncio.gather(*(_locate(*each) for each in some))
            for (plog, _), error in zip(some, errors, strict=True):
                if error is not None:
                    self._refused[plog] = error


async def _locate(plog: PartitionLog, offset: int) -> WireError | None:
    try:
        await plog.locate(offset)
    except WireError as error:
        return error
    return None
