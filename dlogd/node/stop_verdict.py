"""Verdict of a stop: unfinished work, and the error about it.

Pure; for `dlogd.node.broker`.
"""

from collections.abc import Iterable, Sequence

from dlog.errors import KafkaStorageError
from dlogd.storage.log.partition_log import PartitionLog

NAMES_SHOWN = 20


def unflushed(logs: Iterable[PartitionLog]) -> list[str]:
    """Return partitions in service whose end is not on stable storage."""
    return [
        str(each.topic_partition)
        for each in logs
        if each.failed is None and each.flushed_offset < each.log_end_offset
    ]


def judge_stop(hanging: Sequence[str], left: Sequence[str], timeout_ms: int) -> None:
    """Raise KafkaStorageError when something hangs or was left unflushed."""
    problems = []
    if hanging:
        problems.append(f"after shutdown.timeout={timeout_ms}ms still not ended: {_some(hanging)}")
    if left:
        problems.append(f"not all is on the disk of {_some(left)}")
    if problems:
        raise KafkaStorageError("; ".join(problems))


def _some(names: Sequence[str]) -> str:
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
