"""Limits of one micro-batch: offsets or bytes at most, offsets at least.

Pure: time is passed in. After KafkaMicroBatchStream: a limit is shared in proportion to what each
partition has, and none of them starves.
"""

from collections.abc import Mapping

from dlog.spark.options.offsets import PartitionOffsets
from dlog.types import TopicPartition


def backlog(start: PartitionOffsets, latest: PartitionOffsets) -> dict[TopicPartition, int]:
    """Return how many offsets are ahead, of the partitions where there are any."""
    return {key: end - start[key] for key, end in latest.items() if end > start.get(key, end)}


def limit_offsets(
    most: int, start: PartitionOffsets, latest: PartitionOffsets
) -> dict[TopicPartition, int]:
    """Return where a batch of about `most` offsets ends: never behind `latest`.

    A partition gets its share of `most` rounded down, but one offset at least: so each batch moves
    on, and has at most `most` offsets and one more of each partition with a share below one.
    `start` has the beginnings of all partitions that shall be limited.
    """
    sizes = backlog(start, latest)
    total = sum(sizes.values())
    return {
        key: min(end, start[key] + max(most * sizes[key] // total, 1)) if key in sizes else end
        for key, end in latest.items()
    }


def limit_bytes(
    most: int,
    start: PartitionOffsets,
    latest: PartitionOffsets,
    mean_bytes: Mapping[TopicPartition, float],
) -> dict[TopicPartition, int]:
    """Return where a batch of about `most` bytes ends, by the mean size of a record of each."""
    sizes = backlog(start, latest)
    total = sum(count * mean_bytes[key] for key, count in sizes.items())
    if total <= most:
        return dict(latest)
    return {
        key: min(end, start[key] + max(int(sizes[key] * (most / total)), 1))
        if key in sizes
        else end
        for key, end in latest.items()
    }


class BatchGate:
    """Keeps a batch back until it is worth while: `minOffsetsPerTrigger`, `maxTriggerDelay`.

    The first batch after a start is never kept back, as with Spark's Kafka source.
    """

    def __init__(self, least: int, delay_s: float) -> None:
        self._least = least
        self._delay_s = delay_s
        self._opened_s: float | None = None

    def is_open(self, count: int, now_s: float) -> bool:
        """Return whether a batch of `count` offsets may begin now; it does begin then."""
        is_due = self._opened_s is None or now_s - self._opened_s >= self._delay_s
        if not is_due and count < self._least:
            return False
        self._opened_s = now_s
        return True
