"""DeleteRecords: partitions forget what is below an offset (KIP-107)."""

from typing import Any

from dlog.errors import (
    NONE,
    OffsetOutOfRangeError,
    WireError,
)
from dlog.types import NO_OFFSET, Offset
from dlogd.server.context import ServerContext
from dlogd.server.entities import Fields
from dlogd.server.exchange import Handler, Request

HIGH_WATERMARK = -1
"""Stands for everything that consumers can see now."""


async def answer(context: ServerContext, request: Request) -> Fields:
    """Trim each partition; durable when answered, and never beyond the high watermark."""
    topics: list[Fields] = []
    for topic in request.body.topics:
        partitions: list[Fields] = []
        for asked in topic.partitions:
            try:
                low_watermark = await _trim(context, topic.name, asked)
            except WireError as error:
                partitions.append(_result(asked, NO_OFFSET, error.code))
            else:
                partitions.append(_result(asked, low_watermark, NONE))
        topics.append({"name": topic.name, "partitions": partitions})
    return {"topics": topics}


async def _trim(context: ServerContext, topic: str, asked: Any) -> Offset:
    partition = context.partition(topic, asked.partition_index)
    partition.check_serving()
    high_watermark = partition.high_watermark
    offset = high_watermark if asked.offset == HIGH_WATERMARK else Offset(asked.offset)
    if not 0 <= offset <= high_watermark:
        raise OffsetOutOfRangeError(
            f"The offset {offset} for partition {partition.topic_partition} is not valid:"
            f" its high watermark is {high_watermark}"
        )
    if offset > partition.log.log_start_offset:
        # Without the client's time-out: a trim that is cut short leaves its work half done.
        await partition.log.trim_to(offset)
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
