"""DescribeLogDirs: what lies in each data directory of this node (KIP-113, KIP-827)."""

from dlog.errors import NONE, KafkaStorageError, WireError
from dlog.types import TopicPartition
from dlogd.server.context import LogDir, ServerContext
from dlogd.server.entities import Fields
from dlogd.server.exchange import Handler, Request


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


HANDLER = Handler(answer, refuse)
