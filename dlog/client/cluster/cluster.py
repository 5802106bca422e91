"""Client's view of a cluster: connections, leaders, retries.

The cluster is found through any bootstrap address, again after each failure. `run` repeats single
calls; producers and consumers use `leader_of`, `metadata`, `connection` and `on_error`.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar
from uuid import UUID

from dlog.client.cluster.ack_default import find_ack_default
from dlog.client.cluster.connections import Connections
from dlog.client.cluster.counters import ClientCounters
from dlog.client.cluster.leader_watch import LeaderWatch
from dlog.client.cluster.log_lines import error_name, log_event
from dlog.client.cluster.metadata_cache import MetadataCache, error_of
from dlog.client.cluster.metadata_lookup import MetadataLookup, ask_first
from dlog.client.cluster.node import NodeClient
from dlog.client.retry import Fault, GiveUp, RetryPolicy, fault_of, is_outcome_unknown, plan_retry
from dlog.client.views import ClusterView, PartitionLeader, TopicView
from dlog.errors import (
    BrokerNotAvailableError,
    ConnectFailedError,
    DlogError,
    LeaderNotAvailableError,
    ProtocolError,
    RequestTimedOutError,
    TransportError,
    UnknownTopicOrPartitionError,
    WireError,
)
from dlog.transport import Address, ConnectionOptions
from dlog.wire.leaders import CurrentLeader, NodeEndpoint

T = TypeVar("T")
Route = Callable[[], Awaitable[NodeClient]]
Operation = Callable[[NodeClient], Awaitable[T]]


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
        self.counters = ClientCounters()
        self._loop = loop
        self._rng = rng
        self._cache = MetadataCache()
        self._connections = Connections(loop, options or ConnectionOptions(), self.counters)
        self._lookup = MetadataLookup(
            loop, rng, bootstrap, self._cache, self._connections, self.counters
        )
        self.policy = policy or RetryPolicy()
        self._silence = LeaderWatch(
            loop, self._cache, self._connections, self._lookup, self.counters
        )
        self._connections.on_opening = self._silence.on_opening
        self._ack_defaults: dict[tuple[str, UUID | None], str] = {}

    @property
    def policy(self) -> RetryPolicy:
        """How long and how often calls are tried; may be replaced at any time."""
        return self._lookup.policy

    @policy.setter
    def policy(self, policy: RetryPolicy) -> None:
        self._lookup.policy = policy

    async def close(self) -> None:
        """Close all connections and wait until they have ended. Idempotent."""
        await self._silence.close()
        await self._lookup.close()
        await self._connections.close()

    # What is known, and looking it up

    def known_topic(self, topic: str) -> TopicView | None:
        """Return a topic as known, be it old or in doubt; None when it was not looked up yet.

        Its number of partitions is what a partitioner needs: nothing is asked, nothing waits.
        """
        return self._cache.topic(topic)

    def leader_of(self, topic: str, partition: int) -> PartitionLeader:
        """Return who leads a partition, as known; nothing is asked, nothing waits.

        Raises UnknownTopicOrPartitionError, LeaderNotAvailableError (also while the leader is in
        doubt) or BrokerNotAvailableError: `await metadata(topic)`, then try again.
        """
        return self._cache.leader_of(topic, partition)

    async def metadata(self, topic: str, *, refresh: bool = False) -> TopicView:
        """Return a topic as known; looked up when unknown, old, in doubt, or when `refresh`.

        Concurrent look-ups share requests. Raises the topic's error, or that of the look-up.
        """
        if not refresh:
            known = self._cache.topic(topic)
            if known is not None and self._cache.is_fresh(
                topic, self._loop.time(), self.policy.metadata_age_s_max
            ):
                return known
        view = await self._lookup.share([topic])
        return self._told(view, topic)

    def _told(self, view: ClusterView, topic: str) -> TopicView:
        """Return what the cache made of an answer about a topic; raise the topic's error."""
        told = view.topics.get(topic)
        error = None if told is None else error_of(told)
        if error is not None:
            raise error
        known = self._cache.topic(topic)
        if known is None:
            raise UnknownTopicOrPartitionError(f"the response lacks topic {topic}")
        return known

    async def rediscover(self) -> ClusterView:
        """Trust nothing that is known: ask any known or bootstrap node for all of it again."""
        self._cache.doubt_everything()
        return await self._lookup.share()

    async def refresh(
        self, topics: Sequence[str] | None = (), *, elsewhere: bool = False
    ) -> ClusterView:
        """Ask now, perhaps `elsewhere` than before, for it and topics (None: all); return it."""
        return await self._lookup.ask(topics, elsewhere=elsewhere)

    def forget_leader(self, topic: str) -> None:
        """Ask anew who leads the partitions of `topic` when that is needed next."""
        self._cache.doubt_topic(topic)

    # Routes: each finds an open connection to the node that a call needs, or raises.

    def candidates(self) -> list[Address]:
        """Return all addresses that may answer, the likeliest first."""
        return self._lookup.candidates()

    async def any_node(self) -> NodeClient:
        """Return some node that answers: an open one first, then known ones, then bootstrap."""
        for node in self._connections.connected():
            if node.address not in self._connections.suspects:
                return node
        return await ask_first(
            self._loop, self.candidates(), self._connections.get, self.policy.patience_s
        )

    async def controller(self) -> NodeClient:
        """Return the controller, or any node where none is reached: nodes forward commands."""
        if self._cache.nodes_are_stale or self._cache.controller_id not in self._cache.nodes:
            await self._lookup.share()
        view = self._cache.nodes.get(self._cache.controller_id)
        if view is not None:
            try:
                async with asyncio.timeout(self.policy.patience_s):
                    return await self._connections.get(view.address)
            except (TimeoutError, TransportError):
                self._cache.nodes_are_stale = True  # it may be another one by now
        return await self.any_node()

    async def node(self, node_id: int) -> NodeClient:
        """Return the node with this id; raise BrokerNotAvailableError when nobody knows it."""
        view = self._cache.nodes.get(node_id)
        if view is None or self._cache.nodes_are_stale:
            # While another node is in doubt, an open connection is good enough.
            connected = None if view is None else self._connections.open_to(view.address)
            if connected is not None:
                return connected
            await self._lookup.share()
            view = self._cache.nodes.get(node_id)
        if view is None:
            raise BrokerNotAvailableError(f"the cluster has no node {node_id}")
        return await self._connections.get(view.address)

    async def connection(self, node_id: int) -> NodeClient:
        """Return the one connection to a node, opened when need be: `node` by another name."""
        return await self.node(node_id)

    async def leader(self, topic: str, partition: int) -> NodeClient:
        """Return the leader of a partition, as cached or as the cluster says now."""
        if self._cache.is_stale(topic, partition):
            self._told(await self._lookup.share([topic]), topic)
        try:
            leader = self._cache.leader_of(topic, partition)
        except (LeaderNotAvailableError, BrokerNotAvailableError) as error:
            raise LeaderNotAvailableError(str(error)) from error
        return await self._connections.get(leader.address)

    # Failures

    def on_error(
        self,
        topic: str,
        partition: int,
        node_id: int,
        error: Exception,
        *,
        leader: CurrentLeader | None = None,
        endpoints: Iterable[NodeEndpoint] = (),
    ) -> bool:
        """Take in that a call on a partition failed at a node; count it and log one line.

        After it, `leader_of` raises until the leader was looked up, unless the error says nothing
        about the leader, or the answer had a newer one (`leader`, `endpoints`: KIP-951). Returns
        whether the leader is known, so that the call may be repeated without a look-up.
        """
        fault = fault_of(error)
        node = self._cache.nodes.get(node_id)
        hinted = fault is Fault.LEADER and leader is not None
        if hinted and self._follow(topic, partition, leader or (-1, -1), endpoints):
            return True
        doubted = fault is not Fault.NONE and self._cache.doubt_leader(topic, partition)
        self._take_in(fault, error, None if node is None else node.address)
        if isinstance(error, UnknownTopicOrPartitionError):
            self._cache.doubt_topic(topic)
        if doubted or fault is Fault.NONE:
            log_event(
                logging.INFO,
                "Partition call failed",
                partition=f"{topic}-{partition}",
                node=node_id,
                error=error_name(error),
                reason=error,
                fault=fault.value,
            )
        return fault is Fault.NONE

    def _follow(
        self,
        topic: str,
        partition: int,
        leader: CurrentLeader,
        endpoints: Iterable[NodeEndpoint],
    ) -> bool:
        """Take a leader from the answer of a node that refused; False when it is no news."""
        if not self._cache.learn_leader(topic, partition, leader, endpoints):
            return False
        self.counters.leader_errors += 1
        self.counters.leader_hints += 1
        self.counters.leader_changes += 1
        log_event(
            logging.INFO,
            "Moved to a new leader",
            partition=f"{topic}-{partition}",
            leader=leader[0],
            leader_epoch=leader[1],
        )
        return True

    def _take_in(self, fault: Fault, error: Exception, address: Address | None) -> None:
        """Count an error, let a broken connection go, and doubt what its node led."""
        if fault is Fault.NONE:
            return
        if fault is Fault.LEADER:
            self.counters.leader_errors += 1
            return
        if fault is Fault.SILENCE:
            self.counters.timeouts += 1
        else:
            self.counters.transport_errors += 1
        if address is None:
            self._cache.nodes_are_stale = True
            return
        if fault is Fault.CONNECTION:
            self._connections.drop(address, error)
        self._connections.drop_broken()
        if self._connections.open_to(address) is not None:
            return  # the node lives: it was this request that took too long
        self._connections.suspect(address, error)
        self._cache.nodes_are_stale = True
        for node_id, view in self._cache.nodes.items():
            if view.address == address:
                self._cache.doubt_node(node_id)

    # Calls

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
        the call is about: its leaders are asked for again after an error that says so. Ends by the
        policy's deadline with the last error, or with RequestTimedOutError.
        """
        self._lookup.prepare()
        call = _Call(self._loop, self.policy.deadline_s, self.candidates)
        while True:
            try:
                return await call.attempt(route, operation)
            except (WireError, TransportError, ProtocolError) as error:
                decision = plan_retry(
                    self.policy,
                    error,
                    attempt=call.attempts - 1,
                    elapsed_s=call.elapsed_s,
                    rng=self._rng,
                    idempotent=idempotent,
                )
                self._take_in(fault_of(error), error, call.address)
                call.log(error, decision)
                if self._connections.is_closed or isinstance(decision, GiveUp):
                    self.counters.give_ups += 1
                    raise
            self.counters.retries += 1
            if decision.refresh_metadata:
                self._cache.nodes_are_stale = True
                if topic is not None:
                    self.forget_leader(topic)
            await asyncio.sleep(decision.wait_s)

    async def ack_default(self, topic: str | None = None) -> str:
        """Return what `acks` shall be when nobody says: "all", "leader" or "none".

        It is the `ack.default` of the topic, or of the cluster; "all" where that is not served
        (Apache Kafka) or may not be read. Asked once per client and life of a topic.
        """
        view = None if topic is None else self._cache.topic(topic)
        key = topic or "", None if view is None else view.topic_id
        if key not in self._ack_defaults:
            self._ack_defaults[key] = await self.run(
                self.any_node, lambda node: find_ack_default(node, topic)
            )
        return self._ack_defaults[key]


class _Call:
    """One call and its attempts, within one deadline."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        deadline_s: float,
        candidates: Callable[[], Sequence[Address]],
    ) -> None:
        self.attempts = 0
        self.address: Address | None = None  # of the node that the last attempt reached
        self._loop = loop
        self._candidates = candidates
        self._started = loop.time()
        self._deadline_s = deadline_s
        self._last_error: DlogError | None = None

    @property
    def elapsed_s(self) -> float:
        """Time since the call began."""
        return self._loop.time() - self._started

    async def attempt(self, route: Route, operation: Operation[T]) -> T:
        """Try once; what the deadline cuts off ends with an error that says what is known."""
        self.attempts += 1
        self.address = None
        deadline = self._started + self._deadline_s if self._deadline_s > 0 else None
        try:
            async with asyncio.timeout_at(deadline):
                node = await route()
                self.address = node.address
                return await operation(node)
        except TimeoutError as error:
            message = f"no answer within {self._deadline_s:g} s"
            if self.address is not None:
                raise RequestTimedOutError(f"{message} from {self.address}") from error
            if self._last_error is not None:
                raise self._last_error from error
            asked = ", ".join(map(str, self._candidates()))
            raise ConnectFailedError(f"{message} from any of {asked}") from error
        except DlogError as error:
            self._last_error = error
            raise

    def log(self, error: DlogError, decision: object) -> None:
        """Log a retry or the end of retrying; a first, final answer is nobody's event."""
        final = isinstance(decision, GiveUp)
        refused = final and self.attempts == 1 and not isinstance(error, TransportError)
        log_event(
            logging.DEBUG if refused else logging.WARNING if final else logging.INFO,
            "Gave up a call" if final else "Repeated a call",
            attempt=self.attempts,
            elapsed_s=self.elapsed_s,
            node=self.address,
            error=error_name(error),
            reason=error,
            outcome_unknown=is_outcome_unknown(error) or None,
        )
