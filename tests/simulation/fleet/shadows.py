"""Shadows of logs: the heads of their batches as they were appended, cut and recovered."""

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, NamedTuple

from dlogd.storage.log.partition_log import PartitionLog

LogId = tuple[Any, int]
"""Topic id and number of a partition."""


class Head(NamedTuple):
    """A batch, as far as replicas must agree on it."""

    base_offset: int
    next_offset: int
    epoch: int
    crc: int


class Shadow:
    """What one node's log of one partition holds."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.heads: list[Head] = []
        self.agreed = 0  # everything below is known to be as committed
        self.is_lost = False  # its disk was wiped
        self.older: Shadow | None = None  # of a copy that this one took the place of

    @property
    def end(self) -> int:
        """The offset behind the last batch."""
        return self.heads[-1].next_offset if self.heads else self.log.log_start_offset

    def follow_on(self, before: "Shadow | None") -> None:
        """Begin with what the node's log held `before`, as much of it as was found again."""
        if before is not None:
            is_same = before.log.directory.path == self.log.directory.path
            self.older = before.older if is_same else before
            self.heads = list(before.heads)
            self.agreed = before.agreed
        self.cut(self.log.log_end_offset)

    def cut(self, offset: int) -> None:
        """Forget the batches that reach beyond `offset`."""
        heads = self.heads
        while heads and heads[-1].next_offset > offset:
            heads.pop()
        self.agreed = min(self.agreed, self.end)

    def look_at_log(self) -> None:
        """Follow a log that was cut, trimmed or begun anew: then it is empty where it begins."""
        log = self.log
        self.cut(log.log_end_offset)
        if self.heads and self.heads[-1].next_offset <= log.log_start_offset:
            self.heads.clear()
        self.agreed = max(self.agreed, log.log_start_offset)

    def from_offset(self, offset: int) -> Iterator[Head]:
        """Yield the batches that end after `offset`."""
        heads = self.heads
        at = bisect_right(heads, offset, key=lambda head: head.next_offset)
        while at < len(heads):
            yield heads[at]
            at += 1
