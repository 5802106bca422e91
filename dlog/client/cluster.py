"""A cluster as a client sees it: connections to its nodes, who leads what, and trying again.

Finds the cluster through any bootstrap address and rediscovers it after every failure that says
that what it knew is stale. Randomness and time come from outside (`rng`, the loop), so that a
simulated client replays. `run` is the one place where calls are repeated.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID

from dlog.client.node import NodeClient, open_node
from dlog.client.retry import GiveUp, RetryPolicy, plan_retry
from dlog.client.views import ClusterView, NodeView, PartitionView, TopicView
from dlog.errors import (
    NONE,
    BrokerNotAvailableError,
    ConnectFailedError,
    DlogError,
    LeaderNotAvailableError,
    ProtocolError,
    TransportError,
    WireError,
    error_for,
)
from dlog.transport import Address, ConnectionOptions
from dlog.types import ZERO_TOPIC_ID
from dlog.wire.apis import ApiKey

T = TypeVar("T")
Route = Callable[[], Awaitable[NodeClient]]
Operation = Callable[[NodeClient], Awaitable[T]]


def _partition_view(each: Any) -> PartitionView:
    return PartitionView(
        partition=int(each.partition_index),
        leader=int(each.leader_id),
        leader_epoch=int(each.leader_epoch),
        replicas=tuple(map(int, each.replica_nodes)),
        isr=tuple(map(int, each.isr_nodes)),
        offline=tuple(map(int, each.offline_replicas)),
        error_code=int(each.error_code),
    )


def cluster_view(response: Any) -> ClusterView:
    """Turn a Metadata response into a view; partitions are in order."""
    topics: dict[str, TopicView] = {}
    for topic in response.topics:
        partitions = sorted(map(_partition_view, topic.partitions), key=lambda p: p.partition)
        topics[str(topic.name)] = TopicView(
            name=str(topic.name),
            topic_id=UUID(int=topic.topic_id.int) if topic.topic_id else ZERO_TOPIC_ID,
            is_internal=bool(topic.is_internal),
            partitions=tuple(partitions),
            error_code=int(topic.error_code),
        )
    nodes = {
        int(each.node_id): NodeView(
            node_id=int(each.node_id), address=Address(each.host, int(each.port)), rack=each.rack
        )
        for each in response.brokers
    }
    return ClusterView(
        cluster_id=response.cluster_id,
        controller_id=int(response.controller_id),
        nodes=nodes,
        topics=topics,
    )


@dataclass(slots=True)
class _Known:
    """What was learned last. Stale addresses are still better than none to ask for fresh ones."""

    nodes: dict[int, NodeView] = field(default_factory=dict)
    controller_id: int = -1
    is_stale: bool = True
    # Of each topic asked for: its partitions' leaders.
    leaders: dict[str, dict[int, int]] = field(default_factory=dict)


class Cluster:
    """Connections to the nodes of one cluster. Owner: one event loop. Life: until `close`."""

    def __init__(
        self,
        bootstrap: Sequence[Address],
        *,
        loop: asyncio.AbstractEventLoop,
        rng: random.Random,
        options: ConnectionOptions | None = None,
        policy: RetryPolicy | None = None,
    ) -> None:
        if not bootstrap:
            raise ValueError("no bootstrap address")
        self.policy = policy or RetryPolicy()
        self._bootstrap = tuple(bootstrap)
        self._loop = loop
        self._rng = rng
        self._options = options or ConnectionOptions()
        self._known = _Known()
        self._nodes: dict[Address, NodeClient] = {}
        self._opening: dict[Address, asyncio.Lock] = {}
        self._closed = False

    async def close(self) -> None:
        """Close all connections and wait until they have ended."""
        self._closed = True
        nodes = list(self._nodes.values())
        self._nodes.clear()
        for node in nodes:
            node.close()
        for node in nodes:
            await node.connection.wait_closed()

    # Routes: each finds an open connection to the node that a call needs, or raises.

    async def any_node(self) -> NodeClient:
        """Return some node that answers: an open one first, then known ones, then bootstrap."""
        for node in self._nodes.values():
            if node.is_open:
                return node
        known = [node.address for node in self._known.nodes.values()]
        addresses = list(dict.fromkeys([*known, *self._bootstrap]))
        self._rng.shuffle(addresses)
        failures = []
        for address in addresses:
            try:
                return await self._open(address)
            except (TransportError, ProtocolError) as error:
                failures.append(str(error))
        raise ConnectFailedError("; ".join(failures))

    async def controller(self) -> NodeClient:
        """Return the controller, or any node where none is known: nodes forward commands."""
        if self._known.is_stale or self._known.controller_id not in self._known.nodes:
            await self.refresh()
        view = self._known.nodes.get(self._known.controller_id)
        return await (self.any_node() if view is None else self._open(view.address))

    async def node(self, node_id: int) -> NodeClient:
        """Return the node with this id; raise BrokerNotAvailableError when nobody knows it."""
        if self._known.is_stale or node_id not in self._known.nodes:
            await self.refresh()
        view = self._known.nodes.get(node_id)
        if view is None:
            raise BrokerNotAvailableError(f"the cluster has no node {node_id}")
        return await self._open(view.address)

    async def leader(self, topic: str, partition: int) -> NodeClient:
        """Return the leader of a partition, as cached or as the cluster says now."""
        node_id = self._known.leaders.get(topic, {}).get(partition)
        if node_id is None:
            view = await self.refresh([topic])
            described = view.topics.get(topic)
            if described is not None and described.error_code != NONE:
                raise error_for(described.error_code, topic)
            node_id = self._known.leaders.get(topic, {}).get(partition)
        if node_id is None or node_id < 0:
            self.forget_leader(topic)
            raise LeaderNotAvailableError(f"{topic}-{partition} has no leader")
        return await self.node(node_id)

    def forget_leader(self, topic: str) -> None:
        """Ask anew who leads the partitions of `topic` when that is needed next."""
        self._known.leaders.pop(topic, None)

    async def refresh(self, topics: Sequence[str] | None = ()) -> ClusterView:
        """Ask any node for the cluster and some topics (None: all); remember and return it."""
        node = await self.any_node()

        def build(module: Any) -> Any:
            wanted = None
            if topics is not None:
                wanted = tuple(
                    module.MetadataRequestTopic(topic_id=None, name=name) for name in topics
                )
            return module.MetadataRequest(
                topics=wanted,
                allow_auto_topic_creation=False,
                include_topic_authorized_operations=False,
            )

        view = cluster_view(await node.call(ApiKey.METADATA, build))
        self._known.nodes = dict(view.nodes)
        self._known.controller_id = view.controller_id
        self._known.is_stale = False
        for name, topic in view.topics.items():
            self._known.leaders[name] = {each.partition: each.leader for each in topic.partitions}
        return view

    async def run(
        self,
        route: Route,
        operation: Operation[T],
        *,
        idempotent: bool = True,
        topic: str | None = None,
    ) -> T:
        """Carry out `operation` on the node that `route` finds; try again as the policy says.

        With `idempotent` false, a call whose outcome is unknown is not repeated. `topic` is what
        the call is about: its leaders are asked for again after an error that says so.
        """
        started = self._loop.time()
        attempt = 0
        while True:
            try:
                return await operation(await route())
            except (WireError, TransportError) as error:
                decision = plan_retry(
                    self.policy,
                    error,
                    attempt=attempt,
                    elapsed_s=self._loop.time() - started,
                    rng=self._rng,
                    idempotent=idempotent,
                )
                if self._closed or isinstance(decision, GiveUp):
                    raise
            if decision.refresh_metadata:
                self._known.is_stale = True
                if topic is not None:
                    self.forget_leader(topic)
            await asyncio.sleep(decision.wait_s)
            attempt += 1

    async def _open(self, address: Address) -> NodeClient:
        """Return the open connection to `address`; only one caller at a time opens one."""
        node = self._nodes.get(address)
        if node is not None and node.is_open:
            return node
        async with self._opening.setdefault(address, asyncio.Lock()):
            node = self._nodes.get(address)
            if node is None or not node.is_open:
                if self._closed:
                    raise DlogError("the client is closed")
                node = await open_node(self._loop, address, self._options)
                self._nodes[address] = node
        return node
