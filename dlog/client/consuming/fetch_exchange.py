"""One Fetch exchange: a plan into a request, an answer into results per partition.

Knows the versions of Fetch; `dlog.client.consuming.node_fetcher` knows what the answers mean.
"""

from typing import NamedTuple
from uuid import UUID

from dlog.client.cluster.node import NodeClient
from dlog.client.cluster.partition_calls import CONSUMER
from dlog.client.consuming.fetch_plan import Asked, FetchLimits, FetchPlan
from dlog.client.consuming.partition_cursor import UNKNOWN, PartitionCursor
from dlog.errors import ProtocolError, error_for
from dlog.types import ZERO_TOPIC_ID
from dlog.wire import fetch_client
from dlog.wire.apis import ApiKey
from dlog.wire.fetch import TOPIC_ID_VERSION, FetchedPartition, FetchPartition, FetchRequest
from dlog.wire.leaders import NodeEndpoint
from dlog.wire.topics import TopicKey

VERSION_MIN = 12
VERSION_MAX = 16

_AskedByKey = dict[tuple[TopicKey, int], Asked]


class Answer(NamedTuple):
    """What a node said about each partition, with the bytes of its records."""

    rows: list[tuple[Asked, FetchedPartition, memoryview]]
    endpoints: list[NodeEndpoint]
    data_bytes: int
    frame_bytes: int


async def exchange(node: NodeClient, plan: FetchPlan, limits: FetchLimits) -> Answer:
    """Send the request of a plan and return the answer.

    By topic ids where the node serves that and they are known, so that a re-created topic is not
    taken for the old one. Raises a TransportError, ProtocolError when a partition is missing, or
    the error of the request as a whole.
    """
    has_ids = all(each.cursor.topic_id != ZERO_TOPIC_ID for each in plan.asked)
    version_max = VERSION_MAX if has_ids else TOPIC_ID_VERSION - 1
    version = node.highest_version(ApiKey.FETCH, VERSION_MIN, version_max)
    asked: _AskedByKey = {
        (_topic_key(each.cursor, version), each.cursor.topic_partition.partition): each
        for each in plan.asked
    }
    request = _request(plan, asked, limits)
    options = node.connection.options
    frame, position = await node.exchange(
        ApiKey.FETCH,
        version,
        lambda cid: fetch_client.encode_request(version, cid, options.client_id, request),
        plan.max_wait_ms / 1000 + options.request_timeout_s,
    )
    response = fetch_client.parse_response(frame, position, len(frame), version)
    if response.error_code:
        raise error_for(response.error_code)
    answer = _read(frame, response, asked)
    if len(answer.rows) < len(asked):
        missing = len(asked) - len(answer.rows)
        raise ProtocolError(f"{node.address} answered a fetch without {missing} partitions")
    return answer


def _topic_key(cursor: PartitionCursor, version: int) -> TopicKey:
    topic_id: UUID = cursor.topic_id
    return topic_id if version >= TOPIC_ID_VERSION else cursor.topic_partition.topic


def _request(plan: FetchPlan, asked: _AskedByKey, limits: FetchLimits) -> FetchRequest:
    topics: dict[TopicKey, list[FetchPartition]] = {}
    size = min(plan.bytes_max, limits.partition_bytes_max)
    for (key, partition), each in asked.items():
        cursor = each.cursor
        epoch = cursor.leader.leader_epoch if cursor.leader is not None else UNKNOWN
        room = cursor.bytes_to_end(size)
        entry = (partition, epoch, each.offset, cursor.fetch_epoch, UNKNOWN, room)
        topics.setdefault(key, []).append(entry)
    return FetchRequest(
        replica_id=CONSUMER,
        max_wait_ms=plan.max_wait_ms,
        min_bytes=limits.min_bytes,
        max_bytes=plan.bytes_max,
        isolation_level=int(limits.isolation),
        session_id=0,
        session_epoch=-1,
        topics=list(topics.items()),
        forgotten=[],
        rack_id=plan.rack,
    )


def _read(frame: memoryview, response: fetch_client.FetchResponse, asked: _AskedByKey) -> Answer:
    """Pair what was answered with what was asked; what nobody asked for is left out."""
    rows: list[tuple[Asked, FetchedPartition, memoryview]] = []
    data_bytes = 0
    for key, partitions in response.topics:
        for fetched, start in partitions:
            each = asked.get((key, fetched.partition))
            if each is not None:
                size = max(0, fetched.records_bytes)
                data_bytes += size
                rows.append((each, fetched, frame[start : start + size]))
    return Answer(rows, response.endpoints, data_bytes, len(frame))
