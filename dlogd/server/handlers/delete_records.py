"""DeleteRecords: partitions forget what is below an offset (KIP-107)."""

import asyncio
from typing import Any

from dlog.errors import (
    NONE,
    NotLeaderOrFollowerError,
    OffsetOutOfRangeError,
    RequestTimedOutError,
    WireError,
)
from dlog.types import NO_OFFSET, NodeId, Offset
from dlogd.replication.partition import Partition
from dlogd.server.context import ServerContext
from dlogd.server.entities import Fields, milliseconds
from dlogd.server.exchange import Handler, Request

HIGH_WATERMARK = -1
"""Stands for everything that consumers can see now."""
LOOK_AGAIN_S = 0.01


async def answer(context: ServerContext, request: Request) -> Fields:
    """Trim each partition on all live replicas; never beyond the high watermark."""
    deadline_ms = context.deadline_ms(milliseconds(request.body.timeout))
    topics: list[Fields] = []
    for topic in request.body.topics:
        results = (_settled(context, topic.name, each, deadline_ms) for each in topic.partitions)
        topics.append({"name": topic.name, "partitions": await asyncio.gather(*results)})
    return {"topics": topics}


async def _settled(context: ServerContext, topic: str, asked: Any, deadline_ms: int) -> Fields:
    try:
        partition = context.partition(topic, asked.partition_index)
        offset = await _trim(partition, asked)
        low_watermark = await _until_all_have(context, partition, offset, deadline_ms)
    except WireError as error:
        return _result(asked, NO_OFFSET, error.code)
    return _result(asked, low_watermark, NONE)


async def _trim(partition: Partition, asked: Any) -> Offset:
    """Trim the leader's own log; return where it was to begin."""
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
    return offset


async def _until_all_have(
    context: ServerContext, partition: Partition, offset: Offset, deadline_ms: int
) -> Offset:
    """Wait until no live replica would bring the records back; return where all of them begin.

    One that is down trims when it comes back, before it joins the ISR.
    """
    leader = partition.leader
    while True:
        partition.check_serving()
        if leader is None or partition.leader is not leader:
            raise NotLeaderOrFollowerError("The leader epoch has changed")
        low_watermark = leader.low_watermark(_live(context, partition))
        if low_watermark >= offset:
            return low_watermark
        if context.clock.now_ms() >= deadline_ms:
            raise RequestTimedOutError(
                f"{partition.topic_partition} begins at {offset} here, but at {low_watermark} on"
                " another replica"
            )
        await asyncio.sleep(LOOK_AGAIN_S)


def _live(context: ServerContext, partition: Partition) -> frozenset[NodeId]:
    image = context.image()
    topic = image.topics_by_id.get(partition.topic_id)
    found = None if topic is None else topic.partition(partition.topic_partition.partition)
    offline = () if found is None else found.offline
    return frozenset(
        node.node_id for node in image.nodes.values() if node.active and node.node_id not in offline
    )


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
