"""Names of logs' directories: topic, partition, topic id. Only the last two tell logs apart."""

import re
from itertools import chain, count
from uuid import UUID

from dlog.types import PartitionId, TopicId, TopicPartition
from dlogd.storage.io.files import Directory

DELETED = ".deleted"
"""Behind a name: the log is going, and no start opens it."""

# With partition, topic id and `.deleted` a name stays below the 255 bytes of file systems.
_TOPIC_NAME_MAX = 190
_LOG_NAME = re.compile(
    r"([a-zA-Z0-9._-]{1,190})-(0|[1-9][0-9]{0,9})"
    r"\.([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})"
)

LogKey = tuple[TopicId, PartitionId]
"""What tells logs apart; the topic's name in a directory name is for people."""


def log_name(topic_partition: TopicPartition, topic_id: TopicId) -> str:
    """Return the name of a log's directory; a very long topic name is cut."""
    return f"{topic_partition.topic[:_TOPIC_NAME_MAX]}-{topic_partition.partition}.{topic_id}"


def parse_log_name(name: str) -> LogKey | None:
    """Return whose log a directory is; None for a name that is not of a log."""
    found = _LOG_NAME.fullmatch(name)
    return (UUID(found[3]), PartitionId(int(found[2]))) if found else None


def free_name(directory: Directory, name: str, suffix: str = "") -> str:
    """Return a name that is not there: with a number when it must be."""
    names = chain([name + suffix], (f"{name}.{number}{suffix}" for number in count(2)))
    return next(each for each in names if not directory.exists(each))
