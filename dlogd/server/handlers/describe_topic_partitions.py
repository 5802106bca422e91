"""DescribeTopicPartitions: topics page by page, so that no answer grows without bound (KIP-966)."""

from dlog.errors import InvalidRequestError, WireError
from dlog.types import NO_NODE, ZERO_TOPIC_ID, NodeId
from dlogd.metadata.state.image import ClusterImage, PartitionImage, TopicImage
from dlogd.server.context import ServerContext
from dlogd.server.handlers import topology
from dlogd.server.request import Handler, Pieces, Request
from dlogd.server.response_builder import Fields

PARTITION_COUNT_MAX = 2_000
"""In one answer, whatever the client asks for (`max.request.partition.size.limit`)."""


def answer(context: ServerContext, request: Request) -> Pieces:
    """Describe topics in order of name from the cursor on; say where the next page begins."""
    seen = topology.Topology(context)
    image = seen.image
    body = request.body
    names = _names(image, request)
    first_name, first_index = "", 0
    if body.cursor is not None:
        first_name, first_index = body.cursor.topic_name, body.cursor.partition_index
    left = max(1, min(body.response_partition_limit, PARTITION_COUNT_MAX))
    topics: list[Fields] = []
    for name in names:
        yield
        if left == 0:
            return {"topics": topics, "next_cursor": _cursor(name, 0)}
        topic = image.topics.get(name)
        if topic is None:
            if body.topics:
                topics.append(_missing(topology.absence(name), name))
            continue
        start = first_index if name == first_name else 0
        end = min(start + left, len(topic.partitions))
        topics.append(_described(seen, topic, start, end))
        if end < len(topic.partitions):
            return {"topics": topics, "next_cursor": _cursor(name, end)}
        left -= max(end - start, 0)
    return {"topics": topics}


def _names(image: ClusterImage, request: Request) -> list[str]:
    """Return the names asked for (all when none is), sorted, from the cursor on."""
    body = request.body
    asked = {topic.name: None for topic in body.topics} or image.topics
    if body.cursor is None:
        return sorted(asked)
    first = body.cursor.topic_name
    if body.topics and first not in asked:
        raise InvalidRequestError(
            f"DescribeTopicPartitionsRequest topic list should contain the cursor topic: {first}"
        )
    if body.cursor.partition_index < 0:
        raise InvalidRequestError(
            "DescribeTopicPartitionsRequest cursor partition must be valid:"
            f" {body.cursor.partition_index}"
        )
    return sorted(name for name in asked if name >= first)


def _described(seen: topology.Topology, topic: TopicImage, start: int, end: int) -> Fields:
    partitions = [
        {
            **topology.partition_fields(seen, topic, index),
            # Unlike Metadata, a missing leader is no error here.
            "error_code": 0,
            "eligible_leader_replicas": topic.partitions[index].elr,
            "last_known_elr": _last_known(topic.partitions[index]),
        }
        for index in range(start, end)
    ]
    return {
        "error_code": 0,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.name in topology.INTERNAL_TOPICS,
        "partitions": partitions,
        "topic_authorized_operations": topology.TOPIC_OPERATIONS,
    }


def _last_known(partition: PartitionImage) -> tuple[NodeId, ...]:
    """Return who led last where nobody is in sync or eligible any more."""
    return () if partition.last_leader == NO_NODE else (partition.last_leader,)


def _missing(error: WireError, name: str) -> Fields:
    return {
        "error_code": error.code,
        "name": name,
        "topic_id": ZERO_TOPIC_ID,
        "topic_authorized_operations": topology.OPERATIONS_UNKNOWN,
    }


def _cursor(name: str, index: int) -> Fields:
    return {"topic_name": name, "partition_index": index}


def refuse(request: Request, error: WireError) -> Fields:
    """Carry the error for each topic asked for."""
    return {"topics": [_missing(error, topic.name) for topic in request.body.topics]}


HANDLER = Handler(answer, refuse)
