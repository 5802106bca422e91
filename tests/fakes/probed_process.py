"""A process of a node that answers probes, over real sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dlog.transport import Address
from dlog.types import NodeId
from dlogd.controller.liveness_service import LivenessService
from dlogd.controller.own_lease import OwnLease
from dlogd.internal.node_listener import NodeListener
from dlogd.runtime.clock import SystemClock


@asynccontextmanager
async def process() -> AsyncIterator[tuple[Address, NodeListener]]:
    """Give a living process: where it answers, and its listener."""
    lease = OwnLease()
    lease.begin(7)
    service = LivenessService(
        NodeId(2), lease, clock=SystemClock(), cluster_id=lambda: "c", image_version=lambda: 1
    )
    server = NodeListener(asyncio.get_running_loop(), service, idle_timeout_s=10)
    port = await server.start("127.0.0.1", 0)
    try:
        yield Address("127.0.0.1", port), server
    finally:
        await server.stop()
