"""Append of a leader's batches to a follower's log, verbatim.

A follower never gives out an offset and skips nothing: a batch is whole, unharmed and follows on,
or it is refused. What producers sent is remembered as the leader remembers it,
because this node may lead next.
"""

from dlog.batch.header import (
    ATTRIBUTES,
    BASE_OFFSET,
    LEADER_EPOCH,
    LOG_APPEND_TIME_BIT,
    MAX_TIME,
    next_offset_of,
    producer_of,
    size_of,
)
from dlog.errors import InvalidRecordError
from dlog.types import LeaderEpoch
from dlogd.replication.partition.batch_validation import check_replicated
from dlogd.replication.partition.partition import Partition


def append_as_follower(
    partition: Partition, buffer: bytearray, start: int, end: int, now_ms: int
) -> int:
    """Append the batches in [start, end); return the position after the last one.

    That is before `end` when there is no append memory now: go on from there by
    `log.when_writable`. `now_ms` is wall-clock time. Raises WireError; what came before the
    offending batch is appended.
    """
    log = partition.log
    view = memoryview(buffer)
    position = start
    while position < end:
        fields = check_replicated(view, position, end, log.log_end_offset)
        epoch = LeaderEpoch(fields[LEADER_EPOCH])
        # Of what was deleted the epoch does not count: the leader's history may be an older one.
        is_empty = log.log_start_offset == log.log_end_offset
        if epoch > partition.leader_epoch or (epoch < log.last_epoch and not is_empty):
            raise InvalidRecordError(
                f"The leader sent a batch of epoch {epoch} after {log.last_epoch}"
            )
        following = position + size_of(fields)
        if log.append(view[position:following], fields, leader_epoch=epoch) is None:
            break
        producer_id, producer_epoch, sequence, _ = producer_of(fields)
        if producer_id >= 0:
            first, last = fields[BASE_OFFSET], next_offset_of(fields) - 1
            append_ms = fields[MAX_TIME] if fields[ATTRIBUTES] & LOG_APPEND_TIME_BIT else -1
            partition.producers.update(
                producer_id, producer_epoch, sequence, last - first + 1,
                first, last, append_ms, now_ms,
            )  # fmt: skip
        partition.unsnapshotted_bytes += following - position
        position = following
    return position
