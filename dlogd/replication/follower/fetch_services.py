"""Services that all fetchers of a node share, and what they count."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from dlog.address import Address
from dlog.types import NodeId
from dlogd.replication.follower.divergence import Divergence
from dlogd.replication.follower.followed_partition import FollowedPartition
from dlogd.replication.follower.leader_connection import ConnectionMemory, Introduction
from dlogd.replication.placement_diff import Key
from dlogd.replication.rate_limiter import RateLimiter
from dlogd.runtime.clock import Clock
from dlogd.runtime.randomness import Rng
from dlogd.runtime.tasks import Tasks


@dataclass(slots=True)
class FetchCounters:
    """What happened since the start; plain values that metrics read."""

    bytes_total: int = 0
    connects_total: int = 0
    failures_total: int = 0
    refusals_total: int = 0
    truncations_total: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchServices:
    """What all fetchers of a node use."""

    node_id: NodeId
    loop: asyncio.AbstractEventLoop
    defer: Callable[[Callable[[], None]], None]
    """Calls back in the next iteration of the loop, or when the writes that ended now are seen to.
    """
    clock: Clock
    rng: Rng
    tasks: Tasks
    memory: ConnectionMemory
    cutter: Divergence
    counters: FetchCounters
    limiter: RateLimiter
    is_in_sync: Callable[[Key], bool]
    """Whether this node's replica is in the ISR, as far as it knows."""
    address: Callable[[NodeId], Address | None]
    introduce: Callable[[NodeId], Introduction]
    on_cut: Callable[[FollowedPartition], None]
    """Called when a log has been cut: the partition may have another role by now."""
