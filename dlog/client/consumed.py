"""Records as a consumer returns them, and those that an iteration has not returned yet.

Pure.
"""

from collections import deque
from collections.abc import Iterator
from operator import length_hint
from typing import NamedTuple

from dlog.batch.records import Header
from dlog.types import TopicPartition


class ConsumedRecord(NamedTuple):
    """One record and where it stands; begins with the fields of `dlog.batch.records.Record`."""

    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    timestamp_ms: int
    """Milliseconds since 1970: the producer's time, or the leader's where the topic says so."""
    offset: int
    topic: str
    partition: int


class Stash:
    """Records that were taken for an iteration; what it has not come to can be taken back.

    The iteration and the stash share one list iterator, so that a step costs nothing extra.
    """

    __slots__ = ("_iterator", "_records")

    def __init__(self) -> None:
        self._records: list[ConsumedRecord] = []
        self._iterator = iter(self._records)

    def __len__(self) -> int:
        return length_hint(self._iterator)

    def fill(self, records: list[ConsumedRecord]) -> Iterator[ConsumedRecord]:
        """Return an iterator over the records, which are stashed until it gives them.

        What was stashed before comes behind them; iterations under way end.
        """
        rest = self._empty()
        return self._set(records + rest if rest else records)

    def take(self, count: int, bytes_max: int | None = None) -> list[ConsumedRecord]:
        """Return the first `count` records that were not given yet, and forget them.

        At most `bytes_max` of keys and values, but always one.
        """
        rest = self._empty()
        if bytes_max is not None:
            count = min(count, fitting(rest, bytes_max))
        if len(rest) > count:
            self._set(rest[count:])
        return rest[:count]

    def first_offset(self, topic_partition: TopicPartition) -> int | None:
        """Return the offset of the first record of a partition; None when there is none."""
        for index in range(len(self._records) - len(self), len(self._records)):
            record = self._records[index]
            if (record.topic, record.partition) == (
                topic_partition.topic,
                topic_partition.partition,
            ):
                return record.offset
        return None

    def drop(self, topic_partition: TopicPartition) -> None:
        """Forget the records of a partition; iterations under way end."""
        key = (topic_partition.topic, topic_partition.partition)
        self._set([each for each in self._empty() if (each.topic, each.partition) != key])

    def _empty(self) -> list[ConsumedRecord]:
        """Return what was not given yet; iterations under way end."""
        rest = self._records[len(self._records) - len(self) :]
        deque(self._iterator, maxlen=0)
        self._set([])
        return rest

    def _set(self, records: list[ConsumedRecord]) -> Iterator[ConsumedRecord]:
        self._records = records
        self._iterator = iter(records)
        return self._iterator


def fitting(records: list[ConsumedRecord], bytes_max: int) -> int:
    """Return how many of the first records have at most so many bytes; one at least."""
    for index, record in enumerate(records):
        bytes_max -= len(record.key or b"") + len(record.value or b"")
        if bytes_max < 0:
            return max(1, index)
    return len(records)
