"""DeleteRecords: partitions forget what is below an offset (KIP-107)."""

import asyncio
from collections.abc import Sequence
from typing import Any

from dlog.errors import (
    NONE,
    OffsetOutOfRangeError,
    RequestTimedOutError,
    WireError,
)
from dlog.types import NO_OFFSET, Offset
from dlogd.replication.partition.partition import Partition
from dlogd.server.context import ServerContext
from dlogd.server.request import Handler, Request
from dlogd.server.response_builder import Fields, milliseconds

HIGH_WATERMARK = -1
"""Stands for everything that consumers can see now."""
GROUP_PARTITIONS = 100
"""Partitions that are begun with in one turn; all of them are waited for together."""

_Place = tuple[str, int]


async def answer(context: ServerContext, request: Request) -> Fields:
    """Trim each partition; durable when answered, and never beyond the high watermark.

    All replicas in sync have trimmed by then: no later leader shows what was deleted.
    """
    body = request.body
    # Of a partition that is named often the last offset counts, as with Kafka.
    wanted = {
        (topic.name, asked.partition_index): asked
        for topic in body.topics
        for asked in topic.partitions
    }
    found: dict[_Place, Fields] = {}
    trimmed: list[tuple[_Place, Any]] = []
    async for place, asked in context.turns.each(wanted.items()):
        try:
            _offset(context, place[0], asked)
        except WireError as error:  # without a task: there may be a hundred thousand of them
            found[place] = _result(asked, NO_OFFSET, error.code)
        else:
            trimmed.append((place, asked))
    groups = [trimmed[n : n + GROUP_PARTITIONS] for n in range(0, len(trimmed), GROUP_PARTITIONS)]
    await asyncio.gather(*(_trim_group(context, each, body.timeout, found) for each in groups))
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    found[topic.name, each.partition_index] for each in topic.partitions
                ],
            }
            for topic in body.topics
        ]
    }


async def _trim_group(
    context: ServerContext,
    group: Sequence[tuple[_Place, Any]],
    timeout: Any,
    found: dict[_Place, Fields],
) -> None:
    """Trim some partitions, in this group's turn, and add what became of them to `found`."""
    await context.turns.rest()
    work = (_result_of(context, name, asked, timeout) for (name, _), asked in group)
    results = await asyncio.gather(*work)
    found.update(zip((place for place, _ in group), results, strict=True))


async def _result_of(context: ServerContext, topic: str, asked: Any, timeout: Any) -> Fields:
    try:
        return _result(
            asked, await _trim(context, topic, asked, milliseconds(timeout) / 1000), NONE
        )
    except WireError as error:
        return _result(asked, NO_OFFSET, error.code)


def _offset(context: ServerContext, topic: str, asked: Any) -> tuple[Partition, Offset]:
    """Return what is to be trimmed, and to which offset; raise WireError where it cannot be."""
    partition = context.partition(topic, asked.partition_index)
    partition.check_serving()
    high_watermark = partition.high_watermark
    offset = high_watermark if asked.offset == HIGH_WATERMARK else Offset(asked.offset)
    if not 0 <= offset <= high_watermark:
        raise OffsetOutOfRangeError(
            f"The offset {offset} for partition {partition.topic_partition} is not valid:"
            f" its high watermark is {high_watermark}"
        )
    return partition, offset


async def _trim(context: ServerContext, topic: str, asked: Any, timeout_s: float) -> Offset:
    partition, offset = _offset(context, topic, asked)
    if offset > partition.log.log_start_offset:
        # Without the client's time-out: a trim that is cut short leaves its work half done.
        await partition.log.trim_to(offset)
        partition.announce()
        # The lease, too: it may have ended, and another node may lead, while the log was trimmed.
        context.partition(topic, asked.partition_index)
    return await _low_watermark(partition, offset, timeout_s)


async def _low_watermark(partition: Partition, offset: Offset, timeout_s: float) -> Offset:
    """Return where all replicas in sync begin, once that is not below `offset`."""
    partition.check_serving()  # it may have been lost meanwhile
    reached = partition.trims.add(offset)
    partition.settle_trims()
    try:
        async with asyncio.timeout(timeout_s):
            await reached
    except TimeoutError:
        raise RequestTimedOutError(
            f"Not all replicas of {partition.topic_partition} in sync begin at {offset} yet"
        ) from None
    return partition.log.log_start_offset


def _result(asked: Any, low_watermark: int, code: int) -> Fields:
    return {
        "partition_index": asked.partition_index,
        "low_watermark": low_watermark,
        "error_code": code,
    }


def refuse(request: Request, error: WireError) -> Fields:
    """Carry the error for each partition."""
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [_result(asked, NO_OFFSET, error.code) for asked in topic.partitions],
            }
            for topic in request.body.topics
        ]
    }


HANDLER = Handler(answer, refuse)
