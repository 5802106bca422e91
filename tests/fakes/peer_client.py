"""A client of fake nodes, for tests that ask them."""

import asyncio
import random
from collections.abc import Awaitable, Callable

from dlog.client.cluster.cluster import Cluster
from dlog.client.retry import RetryPolicy
from dlog.transport import ConnectionOptions
from tests.fakes.peer import PeerCluster

POLICY = RetryPolicy(base_s=0.001, cap_s=0.005, deadline_s=20.0)


def check(work: Callable[[PeerCluster, Cluster], Awaitable[None]]) -> None:
    async def main() -> None:
        nodes = PeerCluster()
        for peer in nodes.peers.values():
            await peer.start()
        cluster = Cluster(
            [nodes.peers[2].address],
            loop=asyncio.get_running_loop(),
            rng=random.Random(5),
            policy=POLICY,
            options=ConnectionOptions(request_timeout_s=1, connect_timeout_s=1),
        )
        try:
            async with asyncio.timeout(60):
                await work(nodes, cluster)
        finally:
            await cluster.close()
            for peer in nodes.peers.values():
                peer.stop()

    asyncio.run(main())
