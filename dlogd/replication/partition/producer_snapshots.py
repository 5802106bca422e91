"""Snapshots of producer states on disk, and their completion from batches.

A snapshot is only written when all that it covers is on stable storage, and removed when it covers
more than the log holds, so what is loaded is always a prefix of the log's own history.
"""

import logging

from dlog.types import Offset
from dlogd.replication.partition.producer_state import CorruptSnapshotError, ProducerStates
from dlogd.runtime.clock import Clock
from dlogd.storage.io.checkpoint_files import (
    MalformedFileError,
    load_file,
    remove_file,
    replace_file,
)
from dlogd.storage.log.partition_log import PartitionLog

log = logging.getLogger(__name__)

SNAPSHOT = "producer-snapshot"
SIZE_MAX = 256 << 20
"""Bytes; more than `producer_id.per_partition.max` producers ever take."""


def _owner(plog: PartitionLog) -> bytes:
    """Return what tells the snapshots of one partition from those of others."""
    return plog.topic_id.bytes + plog.topic_partition.partition.to_bytes(4, "big")


def _load(plog: PartitionLog, producers: ProducerStates, log_end_offset: int) -> int | None:
    """Load the snapshot; return its end offset, None when there is none to trust. Blocks."""
    directory = plog.directory
    try:
        data = load_file(directory, SNAPSHOT, SIZE_MAX)
        if data is None:
            return None
        end_offset = producers.load(data, _owner(plog))
    except (CorruptSnapshotError, MalformedFileError) as error:
        log.warning("Ignored producer snapshot path=%s error=%s", directory.path, error)
        remove_file(directory, SNAPSHOT)
        return None
    if end_offset > log_end_offset:
        log.warning(
            "Removed producer snapshot beyond the log path=%s end_offset=%d log_end_offset=%d",
            directory.path,
            end_offset,
            log_end_offset,
        )
        producers.clear()
        remove_file(directory, SNAPSHOT)
        return None
    return end_offset


async def load_producers(clock: Clock, plog: PartitionLog, producers: ProducerStates) -> bool:
    """Bring `producers` to the state after the last batch of the log. Raises OSError.

    Returns whether the snapshot had all of it.
    """
    log_end_offset = plog.log_end_offset
    found = await plog.services.engine.run(lambda: _load(plog, producers, log_end_offset))
    now_ms = clock.timestamp_ms()
    # Nobody could write while the node was down, and its clock may have been set since.
    producers.count_from(now_ms)
    expected = plog.log_start_offset if found is None else found
    async for header in plog.replay(Offset(expected)):
        if header.base_offset > expected:
            # Batches between were trimmed away, behind the snapshot or while the log was read:
            # producers would seem to skip sequences. Unknown ones may go on where they are.
            _forget(plog, producers, expected, header.base_offset)
        producers.replay(header, now_ms)
        expected = header.next_offset
    if expected < log_end_offset:
        _forget(plog, producers, expected, log_end_offset)
    return found == log_end_offset or log_end_offset == 0


def _forget(plog: PartitionLog, producers: ProducerStates, start: int, end: int) -> None:
    """Forget all producers, for the batches of these offsets are not known."""
    producers.clear()
    if max(start, plog.log_start_offset) < end:
        log.error(
            "Lost producer state because batches cannot be read; batches that producers repeat"
            " from before this start may be written twice path=%s offset=%d end_offset=%d",
            plog.directory.path,
            start,
            end,
        )


async def save_producers(plog: PartitionLog, producers: ProducerStates) -> None:
    """Write a snapshot of the state as it is now. Raises OSError or WireError."""
    directory = plog.directory
    data = producers.encode(plog.log_end_offset, _owner(plog))
    await plog.flush()
    await plog.services.engine.run(lambda: replace_file(directory, SNAPSHOT, data))
