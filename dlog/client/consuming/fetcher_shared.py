"""State that all node fetchers of a consumer share, and their reports.

Made by `dlog.client.consuming.fetcher`, used by `dlog.client.consuming.node_fetcher`.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass

from dlog.client.cluster.cluster import Cluster
from dlog.client.cluster.log_lines import log_event
from dlog.client.consuming.consumer_counters import ConsumerCounters
from dlog.client.consuming.fetch_plan import FetchLimits
from dlog.client.consuming.partition_cursor import PartitionCursor
from dlog.client.gaps import Gap, GapReason


@dataclass(slots=True, kw_only=True)
class FetcherShared:
    """What the fetchers of all nodes share."""

    cluster: Cluster
    loop: asyncio.AbstractEventLoop
    rng: random.Random
    limits: FetchLimits
    counters: ConsumerCounters
    node_bytes_max: int
    # Topic -> whether offsets may be missing, as far as anybody asked.
    sparse_topics: dict[str, bool]
    on_arrival: Callable[[PartitionCursor], None]
    """There are records to take, a gap or a failure."""
    on_lost: Callable[[PartitionCursor], None]
    """Nobody fetches for this one any more: find its leader."""
    on_follower: Callable[[PartitionCursor], None]
    """The leader has named a follower to fetch from."""


def report_gap(
    around: FetcherShared, cursor: PartitionCursor, reason: GapReason, offset: int, resume: int
) -> None:
    """Stop a cursor before a gap, count it and log it."""
    gap = Gap(
        topic_partition=cursor.topic_partition, reason=reason, offset=offset, resume_offset=resume
    )
    cursor.gap = gap
    cursor.succeed()
    around.counters.gaps += 1
    log_event(
        logging.WARNING,
        "Found a gap",
        partition=cursor.topic_partition,
        reason=reason.value,
        offset=offset,
        resume_offset=resume,
    )
    around.on_arrival(cursor)
