"""A led partition on a real log, those that wait for its acknowledgements, and its followers."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from dlog.batch.records import Record, encode
from dlog.errors import WireError
from dlog.types import NodeId
from dlogd.replication.partition.leader_state import FollowerProgress
from dlogd.replication.partition.partition import Partition
from tests.fakes.front import Front, run_on


class Waiter:
    """Notes how each of its parts was settled."""

    def __init__(self) -> None:
        self.settled: list[tuple[int, WireError | None]] = []
        self.drains = 0

    def on_acked(self, index: int, error: WireError | None, now_us: int) -> "Waiter":
        """Note it."""
        self.settled.append((index, error))
        return self

    def drain(self) -> None:
        """Count it."""
        self.drains += 1


def check(scenario: Callable[[Front, Partition], Awaitable[None]], folder: Path) -> None:
    """Run a scenario with partition `t`, which is led."""

    async def work() -> None:
        async with Front.open(folder) as front:
            await scenario(front, front.partition("t"))

    run_on(asyncio.new_event_loop, work())


def batch(value: bytes = b"x", count: int = 1, **fields: Any) -> bytearray:
    """Return a batch of records with one value."""
    records = [Record(value=value, timestamp_ms=1000) for _ in range(count)]
    return bytearray(encode(records, **fields))


def append(partition: Partition, data: bytearray, acks: int = -1) -> tuple[int, int, int]:
    """Append as a leader does; return what it says."""
    appended = partition.append_as_leader(data, 0, len(data), acks)
    assert appended is not None
    return appended


class Follower:
    """A subscriber that notes what it is told."""

    def __init__(self, partition: Partition, node_id: NodeId) -> None:
        assert partition.leader is not None
        self.progress: FollowerProgress = partition.leader.followers[node_id]
        self.progress.begin(node_epoch=1)
        self.partition = partition
        self.appends = self.watermarks = 0
        self.ended: WireError | None = None
        partition.subscribe(self)

    def on_append(self) -> None:
        """Count it."""
        self.appends += 1

    def on_watermark(self) -> None:
        """Count it."""
        self.watermarks += 1

    def on_end(self, error: WireError) -> None:
        """Note the reason."""
        self.ended = error

    def promise(self, offset: int) -> None:
        """Tell the leader that everything below an offset is flushed."""
        self.partition.on_progress(self.progress, offset, offset, 0)
