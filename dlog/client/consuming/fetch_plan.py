"""Plan of the next Fetch to a node: partitions, bytes, waiting time.

Pure; `dlog.client.consuming.node_fetcher` carries it out. The aim: every partition that has room is
in every request, nothing is held beyond the bound, and no partition waits behind an idle one.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dlog.batch.records import RECORDS_BYTES_MAX
from dlog.client.consuming.partition_cursor import PartitionCursor
from dlog.offset_specs import Isolation
from dlog.types import INT32_MAX

HELD_BACK_WAIT_MS = 20
"""How long a node may wait for data while another of its partitions is full here: that one gets
room as soon as the reader takes from it, and would miss this request."""

PREFETCH_BYTES_MAX = 32 * 1024 * 1024
PARTITION_BYTES_MAX = 4 * 1024 * 1024
MAX_WAIT_MS = 500
ROOM_PART = 4
"""Nothing is asked for before one part in so many of what may be at hand is free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """Bounds of fetching, the same for all nodes."""

    prefetch_bytes_max: int = PREFETCH_BYTES_MAX
    """Bytes at hand, as they came over the wire, of all partitions. A batch that is larger than
    what is left is fetched whole: one per node may come on top."""
    partition_bytes_max: int = PARTITION_BYTES_MAX
    """Bytes of one partition in one answer."""
    max_wait_ms: int = MAX_WAIT_MS
    """How long a node may wait for the first data."""
    min_bytes: int = 1
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    decompressed_batch_bytes_max: int = RECORDS_BYTES_MAX
    """No batch is decompressed to more."""
    rack: str = ""
    """Where the reader is: a leader may name a follower in the same rack to read from (KIP-392)."""

    def __post_init__(self) -> None:
        for name, least in (
            ("prefetch_bytes_max", 1),
            ("partition_bytes_max", 1),
            ("decompressed_batch_bytes_max", 1),
            ("max_wait_ms", 0),
            ("min_bytes", 0),
        ):
            if operator.index(getattr(self, name)) < least:
                raise ValueError(f"{name} is at least {least}")
        if self.max_wait_ms > INT32_MAX:
            raise ValueError(f"max_wait_ms is at most {INT32_MAX}")


class Asked(NamedTuple):
    """One partition of a request, and what it was about when it was sent."""

    cursor: PartitionCursor
    generation: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPlan:
    """The next request to a node; nothing to ask for: look again at `due_s` or when woken."""

    asked: Sequence[Asked]
    bytes_max: int = 0
    max_wait_ms: int = 0
    due_s: float | None = None
    released_bytes: int = 0
    """What was at hand of paused partitions and is not any more."""
    rack: str = ""
    """What to say about the reader's place; nothing where no follower may be named."""


def plan_fetch(
    cursors: Sequence[PartitionCursor], *, now_s: float, node_bytes_max: int, limits: FetchLimits
) -> FetchPlan:
    """Return what to ask the node of `cursors` for, which are in the order of their turn.

    `node_bytes_max` is the part of `prefetch_bytes_max` for this node. Forgets what is at hand of
    paused partitions when they leave too little room for the others.
    """
    held_bytes = sum(cursor.buffered_bytes for cursor in cursors)
    share_bytes = node_bytes_max // max(1, len(cursors))
    asked: list[Asked] = []
    is_held_back = False
    due_s: float | None = None
    for cursor in cursors:
        if not cursor.is_fetchable(now_s):
            if cursor.retry_at_s > now_s and (due_s is None or cursor.retry_at_s < due_s):
                due_s = cursor.retry_at_s
        elif cursor.buffered_bytes >= max(1, share_bytes):
            is_held_back = True
        else:
            asked.append(Asked(cursor, cursor.generation, cursor.fetch_offset))
    room_bytes = node_bytes_max - held_bytes
    # Not for a few bytes each time that a little was taken.
    room_bytes_min = max(1, node_bytes_max // ROOM_PART)
    released_bytes = _release(cursors) if asked and room_bytes < room_bytes_min else 0
    room_bytes += released_bytes
    if not asked or room_bytes < room_bytes_min:
        return FetchPlan(asked=(), due_s=due_s, released_bytes=released_bytes)
    return FetchPlan(
        asked=asked,
        bytes_max=min(room_bytes, INT32_MAX),
        max_wait_ms=_wait_ms(limits, is_held_back, due_s, now_s),
        due_s=due_s,
        released_bytes=released_bytes,
        rack=_rack(limits, asked, now_s),
    )


def _rack(limits: FetchLimits, asked: Sequence[Asked], now_s: float) -> str:
    """Return the rack to tell: none while the leader itself must serve one of the partitions."""
    if limits.rack and any(each.cursor.leader_only_until_s > now_s for each in asked):
        return ""
    return limits.rack


def _wait_ms(limits: FetchLimits, is_held_back: bool, due_s: float | None, now_s: float) -> int:
    """Return how long the node may wait: not while another partition could use the next turn."""
    wait_ms = limits.max_wait_ms
    if is_held_back:
        wait_ms = min(wait_ms, HELD_BACK_WAIT_MS)
    if due_s is not None:
        wait_ms = min(wait_ms, max(HELD_BACK_WAIT_MS, int((due_s - now_s) * 1000)))
    return wait_ms


def _release(cursors: Sequence[PartitionCursor]) -> int:
    """Forget what is at hand of paused partitions; return how many bytes that gave."""
    released_bytes = 0
    for cursor in cursors:
        if cursor.is_paused and cursor.buffered_bytes:
            released_bytes += cursor.buffered_bytes
            cursor.rewind()
    return released_bytes
