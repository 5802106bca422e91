"""Two fake nodes, each behind a proxy that does harm, and a client of them, for tests.

Every test ends with the same check: no call is left, no task, no socket.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from dlog.client.cluster.cluster import Cluster
from dlog.client.cluster.node import NodeClient
from dlog.client.retry import RetryPolicy
from dlog.transport import Address, ConnectionOptions
from dlog.wire.apis import ApiKey
from tests.fakes.peer import PeerCluster
from tests.fakes.proxy import Proxy

POLICY = RetryPolicy(
    base_s=0.001, cap_s=0.005, deadline_s=30.0, lookup_timeout_s=10.0, patience_s=0.02
)
OPTIONS = ConnectionOptions(request_timeout_s=20, connect_timeout_s=20)


@dataclass
class World:
    """Two fake nodes behind proxies, and a client that knows the first."""

    nodes: PeerCluster
    proxies: dict[int, Proxy]
    cluster: Cluster

    def client(self, *bootstrap: Address, **changes: Any) -> Cluster:
        """Return one more client; the caller closes it."""
        return Cluster(
            bootstrap or [self.proxies[1].address],
            loop=asyncio.get_running_loop(),
            rng=random.Random(5),
            policy=replace(POLICY, **changes.pop("policy", {})),
            options=replace(OPTIONS, **changes),
        )

    def seen(self, api: ApiKey) -> int:
        """Return how many requests of a kind all nodes got."""
        return sum(peer.seen.count(api) for peer in self.nodes.peers.values())


Work = Callable[[World], Awaitable[None]]


def check(work: Work, *, policy: dict[str, Any] | None = None, **options: Any) -> None:
    async def main() -> None:
        before = asyncio.all_tasks()
        nodes, proxies = PeerCluster(), {}
        for node_id, peer in nodes.peers.items():
            await peer.start()
            proxies[node_id] = Proxy(peer.address)
            await proxies[node_id].start()
            peer.advertised = proxies[node_id].address
        world = World(nodes, proxies, None)  # type: ignore[arg-type]
        world.cluster = world.client(policy=policy or {}, **options)
        try:
            async with asyncio.timeout(60):
                await work(world)
        finally:
            await world.cluster.close()
            await world.cluster.close()
        for proxy in proxies.values():
            proxy.heal()
            async with asyncio.timeout(30):
                if not any(link.is_silent for link in proxy.links):
                    await proxy.wait_ended()  # the client has closed all that it opened
            await proxy.close()
        for peer in nodes.peers.values():
            peer.stop()
        left = [task for task in asyncio.all_tasks() - before if task.get_coro() is not None]
        assert not left, left

    asyncio.run(main())


async def serve(
    world: World, topic: str = "t", partition: int = 0, cluster: Cluster | None = None
) -> int:
    """Call the leader of a partition; return the node that answered."""

    async def operation(node: NodeClient) -> int:
        await node.call(ApiKey.API_VERSIONS, ask_versions)
        return next(n for n, proxy in world.proxies.items() if proxy.address == node.address)

    client = cluster or world.cluster
    return await client.run(lambda: client.leader(topic, partition), operation, topic=topic)


def ask_versions(module: Any) -> Any:
    return module.ApiVersionsRequest(client_software_name="x", client_software_version="1")
