"""OffsetForLeaderEpoch: where a leader epoch ends in this node's log (KIP-101, KIP-320)."""

from typing import Any

from dlog.errors import NONE, WireError
from dlog.types import NO_EPOCH, NO_OFFSET, LeaderEpoch, Offset
from dlogd.replication.partition.partition import Partition
from dlogd.server.context import ServerContext
from dlogd.server.request import Handler, Pieces, Request
from dlogd.server.response_builder import Fields


def answer(context: ServerContext, request: Request) -> Pieces:
    """Return, per partition, the largest epoch not above the one asked for, and its end."""
    topics: list[Fields] = []
    for topic in request.body.topics:
        partitions: list[Fields] = []
        for asked in topic.partitions:
            partitions.append(_end_of(context, topic.topic, asked))
            yield
        topics.append({"topic": topic.topic, "partitions": partitions})
    return {"topics": topics}


def _end_of(context: ServerContext, topic: str, asked: Any) -> Fields:
    try:
        partition = context.partition(topic, asked.partition)
        partition.check_serving(asked.current_leader_epoch)
    except WireError as error:
        return _failed(asked, error)
    epoch, end_offset = end_of_epoch(partition, LeaderEpoch(asked.leader_epoch))
    return {
        "error_code": NONE,
        "partition": asked.partition,
        "leader_epoch": epoch,
        "end_offset": end_offset,
    }


def end_of_epoch(partition: Partition, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
    """Return the largest epoch <= `epoch` that this node knows of, and where it ends in its log.

    (NO_EPOCH, NO_OFFSET) for an epoch that is still to come. A log knows epochs by their batches,
    Kafka's also by the beginning of leadership (its Partition.makeLeader): one without a batch ends
    where the log does. Clients have it from ListOffsets, and take the absence of an answer for
    records that were lost.
    """
    log = partition.log
    found = log.end_offset_for_epoch(epoch)
    if found[0] != NO_EPOCH or not 0 <= epoch <= partition.leader_epoch:
        return found
    if epoch == partition.leader_epoch or log.last_epoch == NO_EPOCH:
        return epoch, log.log_end_offset
    return log.last_epoch, log.log_end_offset


def _failed(asked: Any, error: WireError) -> Fields:
    return {
        "error_code": error.code,
        "partition": asked.partition,
        "leader_epoch": NO_EPOCH,
        "end_offset": NO_OFFSET,
    }


def refuse(request: Request, error: WireError) -> Fields:
    """Carry the error for each partition."""
    return {
        "topics": [
            {
                "topic": topic.topic,
                "partitions": [_failed(asked, error) for asked in topic.partitions],
            }
            for topic in request.body.topics
        ]
    }


HANDLER = Handler(answer, refuse)
