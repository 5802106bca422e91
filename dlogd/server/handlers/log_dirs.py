"""DescribeLogDirs and AlterReplicaLogDirs: what lies in which data directory (KIP-113, KIP-827).

Replicas do not move between the directories of a node. AlterReplicaLogDirs answers what is true: no
error for the directory that holds the replica already, and why not for every other one.
"""

import logging
from collections.abc import Collection, Mapping

from dlog.errors import (
    NONE,
    KafkaStorageError,
    ReplicaNotAvailableError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
    WireError,
    error_for,
)
from dlog.types import PartitionId, TopicPartition
from dlogd.server.context import LogDir, ServerContext
from dlogd.server.request import Handler, Request
from dlogd.server.response_builder import Fields

log = logging.getLogger(__name__)

_LOG_DIR_NOT_FOUND = 57


async def answer(context: ServerContext, request: Request) -> Fields:
    """List directories with their space and the sizes of the partitions asked for (null: all)."""
    wanted: dict[str, frozenset[int]] | None = None
    if request.body.topics is not None:
        wanted = {topic.topic: frozenset(topic.partitions) for topic in request.body.topics}
    results = [_described(log_dir, wanted) for log_dir in await context.log_dirs()]
    return {"error_code": NONE, "results": results}


def _described(log_dir: LogDir, wanted: dict[str, frozenset[int]] | None) -> Fields:
    if not log_dir.online:
        return {"error_code": KafkaStorageError.code, "log_dir": log_dir.path}
    topics: dict[str, list[Fields]] = {}
    for topic_partition, size_bytes in log_dir.partitions:
        if _is_wanted(topic_partition, wanted):
            topics.setdefault(topic_partition.topic, []).append(
                {
                    "partition_index": topic_partition.partition,
                    "partition_size": size_bytes,
                    # Of the node's own log behind its own high watermark: the leader has none.
                    "offset_lag": 0,
                    "is_future_key": False,
                }
            )
    return {
        "error_code": NONE,
        "log_dir": log_dir.path,
        "topics": [{"name": name, "partitions": sizes} for name, sizes in topics.items()],
        "total_bytes": log_dir.total_bytes,
        "usable_bytes": log_dir.free_bytes,
    }


def _is_wanted(topic_partition: TopicPartition, wanted: dict[str, frozenset[int]] | None) -> bool:
    return wanted is None or topic_partition.partition in wanted.get(
        topic_partition.topic, frozenset()
    )


def refuse(request: Request, error: WireError) -> Fields:
    """Carry the error at the top; versions before 3 show it as a directory without a name."""
    if request.version >= 3:
        return {"error_code": error.code}
    return {"results": [{"error_code": error.code, "log_dir": ""}]}


async def answer_alter(context: ServerContext, request: Request) -> Fields:
    """Say for each replica why it does not move, or that it is where it should be."""
    wanted = _wanted(request)
    found = await context.log_dirs()
    directories = {_plain(log_dir.path): log_dir.online for log_dir in found}
    held = {name: _plain(each.path) for each in found for name, _ in each.partitions}
    codes: dict[TopicPartition, int] = {}
    refused: list[TopicPartition] = []
    async for name, path in context.turns.each(wanted.items()):
        try:
            _check_path(directories, path)
            _check_replica(context, held, name)
            if held[name] != path:
                refused.append(name)
                raise UnsupportedVersionError()
            codes[name] = NONE
        except WireError as error:
            codes[name] = error.code
    if refused:
        log.info(
            "Refused to move replicas between data directories: not supported; to move a replica,"
            " reassign it to another node partition=%s count=%d peer=%s",
            refused[0],
            len(refused),
            request.session.address,
        )
    return _altered(codes)


def _plain(path: str) -> str:
    return path.rstrip("/") or "/"


def _wanted(request: Request) -> dict[TopicPartition, str]:
    """Return each replica and its directory; the last one counts, as with Kafka."""
    return {
        TopicPartition(topic.name, PartitionId(number)): _plain(each.path)
        for each in request.body.dirs
        for topic in each.topics
        for number in topic.partitions
    }


def _check_path(directories: Mapping[str, bool], path: str) -> None:
    """Raise WireError for what is no data directory in service."""
    online = directories.get(path)
    if online is None:
        raise error_for(_LOG_DIR_NOT_FOUND)
    if not online:
        raise KafkaStorageError()


def _check_replica(
    context: ServerContext, held: Collection[TopicPartition], name: TopicPartition
) -> None:
    """Raise WireError for a replica that is not on this node, or out of service."""
    topic = context.image().topics.get(name.topic)
    partition = None if topic is None else topic.partition(name.partition)
    if topic is None or partition is None:
        raise UnknownTopicOrPartitionError()
    if (topic.topic_id, name.partition) in context.offline():
        raise KafkaStorageError()
    if context.node_id not in partition.replicas or name not in held:
        raise ReplicaNotAvailableError()


def _altered(codes: Mapping[TopicPartition, int]) -> Fields:
    topics: dict[str, list[Fields]] = {}
    for name, code in codes.items():
        topics.setdefault(name.topic, []).append(
            {"partition_index": name.partition, "error_code": code}
        )
    return {
        "results": [
            {"topic_name": name, "partitions": partitions} for name, partitions in topics.items()
        ]
    }


def refuse_alter(request: Request, error: WireError) -> Fields:
    """Carry the error for each replica."""
    return _altered(dict.fromkeys(_wanted(request), error.code))


HANDLER = Handler(answer, refuse)
ALTER_HANDLER = Handler(answer_alter, refuse_alter)
