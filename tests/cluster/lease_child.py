"""A process that keeps a lease: `lease_child NODE CONTROLLER_PORT`; prints its port and leases."""

import asyncio
import random
import sys

from dlog.transport import Address
from dlog.types import NodeId
from dlogd.controller.lease_keeper import LeaseKeeper
from dlogd.controller.lease_timings import LeaseTimings
from dlogd.controller.liveness_service import LivenessService
from dlogd.controller.own_lease import OwnLease
from dlogd.internal.beat import Beat
from dlogd.internal.messages import Heartbeat
from dlogd.internal.node_listener import NodeListener
from dlogd.runtime.clock import SystemClock
from dlogd.runtime.tasks import Tasks


async def main(node_id: NodeId, controller: Address) -> None:
    """Run until killed."""
    loop, clock, lease = asyncio.get_running_loop(), SystemClock(), OwnLease()
    lease.begin(1)
    service = LivenessService(
        node_id, lease, clock=clock, cluster_id=lambda: "c", image_version=lambda: 1
    )
    server = NodeListener(loop, service, idle_timeout_s=10)
    print("port", await server.start("127.0.0.1", 0), flush=True)

    def heartbeat(sequence: int) -> Heartbeat:
        beat = Beat(node_id=node_id, node_epoch=1, image_version=1)
        return Heartbeat(cluster_id="c", sequence=sequence, beat=beat)

    keeper = LeaseKeeper(
        lease,
        LeaseTimings(),
        loop=loop,
        clock=clock,
        rng=random.Random(node_id),
        tasks=Tasks(),
        controller=lambda: controller,
        heartbeat=heartbeat,
    )
    keeper.on_change = lambda valid: print("lease", valid, flush=True)
    await keeper.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(NodeId(int(sys.argv[1])), Address("127.0.0.1", int(sys.argv[2]))))
