"""Lookup of metadata through the node that answers first.

One look-up at a time; who asks meanwhile shares the next one. Nodes are asked one after the other,
without waiting long for a silent one: the next is asked too. Called by
`dlog.client.cluster.cluster`.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from dlog.client.cluster.connections import Connections, renewed
from dlog.client.cluster.counters import ClientCounters
from dlog.client.cluster.log_lines import error_name, log_event
from dlog.client.cluster.metadata_answers import cluster_view, metadata_request
from dlog.client.cluster.metadata_cache import MetadataCache, candidates
from dlog.client.cluster.node import VERSION_USED
from dlog.client.retry import RetryPolicy
from dlog.client.views import ClusterView
from dlog.errors import (
    ConnectFailedError,
    DlogError,
    InconsistentClusterIdError,
    ProtocolError,
    TransportError,
    WireError,
)
from dlog.transport import Address
from dlog.wire import messages
from dlog.wire.apis import ApiKey

T = TypeVar("T")
ELSEWHERE_PATIENCE_S = 1.0


async def ask_first(
    loop: asyncio.AbstractEventLoop,
    addresses: Sequence[Address],
    ask: Callable[[Address], Awaitable[T]],
    patience_s: float,
) -> T:
    """Return the first answer; the next address is asked when one fails or after `patience_s`.

    Raises what `failure_of` makes of all errors when nobody answers.
    """

    async def one(address: Address) -> T:
        return await ask(address)

    waiting = list(addresses)
    asked: list[asyncio.Task[T]] = []
    failures: list[DlogError] = []
    try:
        while waiting or asked:
            if waiting:
                asked.append(loop.create_task(one(waiting.pop(0))))
            done, _ = await asyncio.wait(
                asked,
                timeout=patience_s if waiting else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for task in [each for each in asked if each in done]:
                asked.remove(task)
                try:
                    return task.result()
                except DlogError as error:
                    failures.append(error)
        raise failure_of(failures)
    finally:
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


def failure_of(failures: Sequence[DlogError]) -> DlogError:
    """Return one error for those of all nodes: what a node said outweighs that none answered."""
    for error in failures:
        if not isinstance(error, TransportError | ProtocolError):
            return renewed(error)
    if not failures:
        return ConnectFailedError("no address is known")
    return ConnectFailedError("; ".join(map(str, failures)))


class MetadataLookup:
    """Keeps a `MetadataCache` filled. Owner: the loop's thread. Life: until `close`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        rng: random.Random,
        bootstrap: Sequence[Address],
        cache: MetadataCache,
        connections: Connections,
        counters: ClientCounters,
    ) -> None:
        self.bootstrap = tuple(bootstrap)
        self._loop = loop
        self._rng = rng
        self._cache = cache
        self._connections = connections
        self._counters = counters
        self._via: Address | None = None  # who answered last
        # The next shared look-up: which topics, and its outcome.
        self._wanted: dict[str, None] = {}
        self._next: asyncio.Future[ClusterView] | None = None
        self._current: asyncio.Future[ClusterView] | None = None  # looked up now
        self._rounds: asyncio.Task[None] | None = None
        self.policy = RetryPolicy()

    def prepare(self) -> None:
        """Load what look-ups need, which takes a while the first time: before a clock starts."""
        for api in (ApiKey.METADATA, ApiKey.API_VERSIONS):
            messages.request_type(api, VERSION_USED[api])
            messages.response_type(api, VERSION_USED[api])

    def candidates(self) -> list[Address]:
        """Return all addresses that may answer, the likeliest first."""
        nodes = list(self._cache.nodes.values())
        bootstrap = list(self.bootstrap)
        self._rng.shuffle(nodes)
        self._rng.shuffle(bootstrap)
        return candidates(
            [node.address for node in self._connections.connected()],
            {node.node_id: node for node in nodes},
            bootstrap,
            list(self._connections.suspects),
        )

    async def ask(
        self, topics: Sequence[str] | None = (), *, elsewhere: bool = False
    ) -> ClusterView:
        """Ask for nodes and topics (None: all) now; remember and return the answer.

        With `elsewhere` other nodes than the last one have time to answer before it.
        """
        was_stale = self._cache.nodes_are_stale and bool(self._cache.nodes)
        stale = self._cache.stale_topics()
        self._connections.drop_broken()

        async def one(address: Address) -> tuple[Address, ClusterView]:
            return address, await self._ask_one(address, topics)

        addresses, patience_s = self.candidates(), self.policy.patience_s
        if elsewhere and self._via is not None:
            self._connections.suspect(self._via, DlogError("it may lag behind the others"))
            addresses.sort(key=lambda each: each == self._via)
            patience_s = max(patience_s, ELSEWHERE_PATIENCE_S)
        try:
            via, view = await ask_first(self._loop, addresses, one, patience_s)
        except DlogError as error:
            log_event(
                logging.WARNING,
                "Could not find the cluster",
                asked=",".join(map(str, addresses)),
                error=error_name(error),
                reason=error,
            )
            raise
        self._via = via
        changes = self._cache.learn(view, self._loop.time(), via)
        self._counters.leader_changes += changes
        if was_stale or stale:
            self._counters.rediscoveries += 1
            log_event(
                logging.INFO,
                "Rediscovered the cluster",
                via=via,
                nodes=",".join(map(str, sorted(view.nodes))),
                topics=",".join(view.topics) or None,
                leader_changes=changes,
            )
        self._prune()
        return view

    async def _ask_one(self, address: Address, topics: Sequence[str] | None) -> ClusterView:
        timeout_s = min(self.policy.lookup_timeout_s, self._connections.options.request_timeout_s)
        try:
            node = await self._connections.get(address)
            self._counters.metadata_requests += 1
            answer = await node.call(
                ApiKey.METADATA, lambda module: metadata_request(module, topics), timeout_s
            )
            view = cluster_view(answer)
            known_id = self._cache.cluster_id
            if known_id is not None and view.cluster_id not in (None, known_id):
                raise InconsistentClusterIdError(
                    f"{address} belongs to cluster {view.cluster_id}, not to {known_id}"
                )
        except (TransportError, WireError, ProtocolError) as error:
            self._counters.metadata_failures += 1
            self._connections.suspect(address, error)
            if isinstance(error, ProtocolError | InconsistentClusterIdError):
                self._connections.drop(address, error)
            raise
        self._connections.trust(address)
        return view

    def _prune(self) -> None:
        """Close connections that nobody will use; the first ones, once a known node is reached."""
        known = [node.address for node in self._cache.nodes.values()]
        reached = any(node.address in known for node in self._connections.connected())
        self._connections.prune(known if reached else [*known, *self.bootstrap])

    async def share(self, topics: Sequence[str] = ()) -> ClusterView:
        """Look up nodes, these topics and all stale ones, together with everybody who asks now.

        Raises TypeError or ValueError for what cannot be a topic's name.
        """
        for topic in topics:
            # Here, or it would spoil the look-up of all others too.
            if not isinstance(topic, str):
                raise TypeError(f"a topic's name is a str, not {type(topic).__name__}")
            topic.encode()
        self._wanted.update(dict.fromkeys(topics))
        if self._next is None:
            self._next = self._loop.create_future()
            self._next.add_done_callback(_look_at)
        outcome = self._next
        if self._rounds is None or self._rounds.done():
            self._rounds = self._loop.create_task(self._run_rounds())
            self._rounds.add_done_callback(self._on_end)
        try:
            return await asyncio.shield(outcome)
        except DlogError as error:
            raise renewed(error) from error.__cause__
        except asyncio.CancelledError:
            if outcome.cancelled():
                raise DlogError("the client is closed") from None
            raise

    async def _run_rounds(self) -> None:
        while self._next is not None:
            outcome, self._next = self._next, None
            self._current = outcome
            topics = [*dict.fromkeys([*self._wanted, *self._cache.stale_topics()])]
            self._wanted.clear()
            try:
                outcome.set_result(await self.ask(topics))
            except DlogError as error:
                outcome.set_exception(error)

    def _on_end(self, task: "asyncio.Task[None]") -> None:
        """Tell those who wait when the rounds end early: by `close`, or by a bug."""
        bug = None if task.cancelled() else task.exception()
        for outcome in (self._current, self._next if bug else None):
            if outcome is None or outcome.done():
                continue
            if bug is None:
                outcome.cancel()
            else:
                outcome.set_exception(bug)
        if bug is not None:
            self._next = None

    async def close(self) -> None:
        """End the look-ups under way. Idempotent."""
        if self._rounds is not None:
            self._rounds.cancel()
            await asyncio.gather(self._rounds, return_exceptions=True)
        if self._next is not None:
            self._next.cancel()
            self._next = None


def _look_at(outcome: "asyncio.Future[ClusterView]") -> None:
    """Take the error, so that nobody is told that nobody took it: all waiters may have left."""
    if not outcome.cancelled():
        outcome.exception()
