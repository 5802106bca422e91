"""ListOffsets: the first, the last and the offset of a time, per partition.

Consumers see only what is below the high watermark. While there are no transactions the last
stable offset is the high watermark, so both isolation levels give the same.
"""

from collections.abc import Sequence
from typing import Any

from dlog.errors import (
    NONE,
    InvalidRequestError,
    LeaderNotAvailableError,
    OffsetNotAvailableError,
    UnsupportedVersionError,
    WireError,
)
from dlog.types import NO_EPOCH, NO_OFFSET
from dlog.wire.fetch import COMPARING_REPLICA_ID
from dlogd.replication.partition.partition import Partition
from dlogd.server.context import ServerContext
from dlogd.server.request import Handler, Request
from dlogd.server.response_builder import Fields

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = range(-1, -7, -1)
SINCE_VERSION = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, PENDING_UPLOAD: 11}
CONSUMER_REPLICA_ID = -1
NO_TIMESTAMP = -1
OFFSET_NOT_AVAILABLE_SINCE_VERSION = 5

Found = tuple[int, int, int]
"""Timestamp in ms, offset, leader epoch; each -1 when there is none."""

NOTHING: Found = (NO_TIMESTAMP, NO_OFFSET, NO_EPOCH)


async def answer(context: ServerContext, request: Request) -> Fields:
    """Look up one offset for each partition asked for."""
    seen: dict[tuple[str, int], int] = {}
    for topic in request.body.topics:
        for asked in topic.partitions:
            place = (topic.name, asked.partition_index)
            seen[place] = seen.get(place, 0) + 1
    found_of: list[list[Fields]] = [[] for _ in request.body.topics]
    places = (
        (topic.name, asked, found)
        for topic, found in zip(request.body.topics, found_of, strict=True)
        for asked in topic.partitions
    )
    async for name, asked, found in context.turns.each(places):
        try:
            if seen[name, asked.partition_index] > 1:
                raise InvalidRequestError("The partition is asked for twice")
            found.append(_found(asked, await _find(context, request, name, asked)))
        except WireError as error:
            found.append(_failed(request, asked, error))
    return {
        "topics": [
            {"name": topic.name, "partitions": found}
            for topic, found in zip(request.body.topics, found_of, strict=True)
        ]
    }


async def _find(context: ServerContext, request: Request, topic: str, asked: Any) -> Found:
    timestamp_ms: int = asked.timestamp
    if timestamp_ms < PENDING_UPLOAD or request.version < SINCE_VERSION.get(timestamp_ms, 0):
        raise UnsupportedVersionError(
            f"Offset {timestamp_ms} is unknown in version {request.version}"
        )
    partition = context.partition(topic, asked.partition_index)
    replica_id: int = request.body.replica_id
    _check(partition, replica_id, getattr(asked, "current_leader_epoch", NO_EPOCH))
    log = partition.log
    if timestamp_ms in (EARLIEST, EARLIEST_LOCAL):
        start = log.log_start_offset
        return NO_TIMESTAMP, start, log.epoch_at(start)
    if timestamp_ms in (LATEST_TIERED, PENDING_UPLOAD):
        return NOTHING  # Nothing is ever moved to remote storage.
    if timestamp_ms == LATEST:
        partition.check_watermark()
        is_consumer = replica_id == CONSUMER_REPLICA_ID
        end = partition.high_watermark if is_consumer else log.log_end_offset
        return NO_TIMESTAMP, end, partition.leader_epoch
    found = await _search(partition, timestamp_ms, replica_id, request.session.network)
    # The lease, too: it may have ended, and another node may lead, while the log was read.
    _check(context.partition(topic, asked.partition_index), replica_id)
    return found


def _check(partition: Partition, replica_id: int, leader_epoch: int = NO_EPOCH) -> None:
    """Raise unless this replica answers: the leader; any to who compares replicas, as in Kafka."""
    if replica_id == COMPARING_REPLICA_ID:
        partition.check_readable(leader_epoch)
    else:
        partition.check_serving(leader_epoch)


async def _search(partition: Partition, timestamp_ms: int, replica_id: int, owner: str) -> Found:
    log = partition.log
    if timestamp_ms == MAX_TIMESTAMP:
        found = await log.offset_of_max_timestamp(owner)
    else:
        found = await log.offset_for_timestamp(timestamp_ms, owner)
    _check(partition, replica_id)  # it may have been lost meanwhile
    if found is None:
        return NOTHING
    if replica_id == CONSUMER_REPLICA_ID and found.offset >= partition.high_watermark:
        partition.check_watermark()  # else it may have been seen under the last leader
        return NOTHING
    return found


def _found(asked: Any, found: Found) -> Fields:
    timestamp_ms, offset, leader_epoch = found
    return {
        "partition_index": asked.partition_index,
        "error_code": NONE,
        "timestamp": timestamp_ms,
        "offset": offset,
        "leader_epoch": leader_epoch,
        # Version 0 has a list of offsets in place of the three above.
        "old_style_offsets": () if offset == NO_OFFSET else (offset,),
    }


def _failed(request: Request, asked: Any, error: WireError) -> Fields:
    if (
        isinstance(error, OffsetNotAvailableError)
        and request.version < OFFSET_NOT_AVAILABLE_SINCE_VERSION
    ):
        error = LeaderNotAvailableError(str(error))
    return {**_found(asked, NOTHING), "error_code": error.code}


def refuse(request: Request, error: WireError) -> Fields:
    """Carry the error for each partition."""
    topics: Sequence[Any] = request.body.topics
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [_failed(request, asked, error) for asked in topic.partitions],
            }
            for topic in topics
        ]
    }


HANDLER = Handler(answer, refuse)
