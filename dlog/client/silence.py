"""Leaders that fall silent: while a request waits for one, others are asked who leads by now.

A process that is stopped, or a host that vanished, closes no connection, and a request may take
long for good reasons. So silence alone changes nothing; but when the cluster has given a partition
of that node to another one, the connection is dropped, and what waits on it is tried again there.
Called by `dlog.client.cluster`.
"""

import asyncio
from collections.abc import Mapping

from dlog.client.connections import Connections
from dlog.client.counters import ClientCounters
from dlog.client.lookup import Lookup
from dlog.client.metadata_cache import MetadataCache
from dlog.client.node import NodeClient
from dlog.errors import DisconnectedError, DlogError
from dlog.pipeline import Request
from dlog.transport import Address

PATIENCES = 2
"""A node is silent after so many times the policy's `patience_s`."""
ASKED_AFTER_MAX_S = 5.0

_Epochs = Mapping[tuple[str, int], int]


class _Held:
    """A connection whose first request in flight has been the same for a while."""

    __slots__ = ("ask_at_s", "led", "request", "since_s")

    def __init__(self, request: Request, now_s: float) -> None:
        self.request = request
        self.since_s = now_s
        self.led: _Epochs | None = None
        """Leader epochs of what the node led when it was met again."""
        self.ask_at_s = 0.0


class SilenceWatch:
    """Watches the connections of one cluster. Owner: the loop's thread. Life: until `close`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        cache: MetadataCache,
        connections: Connections,
        lookup: Lookup,
        counters: ClientCounters,
    ) -> None:
        self._loop = loop
        self._cache = cache
        self._connections = connections
        self._lookup = lookup
        self._counters = counters
        self._held: dict[Address, _Held] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._asking: asyncio.Task[None] | None = None
        self._is_closed = False

    def begin(self) -> None:
        """Watch as long as a connection is open. Idempotent."""
        if self._timer is None and not self._is_closed:
            self._timer = self._loop.call_later(self._lookup.policy.patience_s, self._check)

    async def close(self) -> None:
        """End. Idempotent."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    def _check(self) -> None:
        """Look at the first request in flight of each connection: answers come in order."""
        self._timer = None
        now_s = self._loop.time()
        nodes = self._connections.connected()
        held: dict[Address, _Held] = {}
        for node in nodes:
            request = node.connection.first_inflight
            if request is None:
                continue
            before = self._held.get(node.address)
            if before is None or before.request is not request:
                before = _Held(request, now_s)
            elif before.led is None:
                before.led = self._led_at(node.address)
            held[node.address] = before
        self._held = held
        silent = [node for node in nodes if self._is_silent(node, now_s)]
        due = [node for node in silent if self._held[node.address].ask_at_s <= now_s]
        if due and (self._asking is None or self._asking.done()):
            self._asking = self._loop.create_task(self._ask(silent, now_s))
        if nodes:
            self.begin()

    def _is_silent(self, node: NodeClient, now_s: float) -> bool:
        held = self._held.get(node.address)
        if held is None:
            return False
        # A fetch may wait for data that long.
        expected_s = max(0.0, held.request.patience_s - node.connection.options.request_timeout_s)
        return now_s - held.since_s >= expected_s + PATIENCES * self._lookup.policy.patience_s

    def _led_at(self, address: Address) -> _Epochs:
        """Return the epochs of the partitions that the node at an address leads."""
        ids = [each.node_id for each in self._cache.nodes.values() if each.address == address]
        return self._cache.led_by(ids[0]) if ids else {}

    async def _ask(self, silent: list[NodeClient], now_s: float) -> None:
        """Ask who leads what the silent ones led, and drop those that were deposed."""
        topics = {topic for node in silent for topic, _ in self._held[node.address].led or ()}
        for node in silent:
            held = self._held[node.address]
            # The longer it lasts, the less is it news.
            wait_s = min(ASKED_AFTER_MAX_S, (now_s - held.since_s) / 4)
            held.ask_at_s = now_s + wait_s
            self._connections.suspect(node.address, DisconnectedError("silent"))
        if not topics:
            return
        try:
            await self._lookup.share(sorted(topics))
        except DlogError:
            return  # logged where it happened
        for node in silent:
            held_now = self._held.get(node.address)
            first = node.connection.first_inflight
            if held_now is None or held_now.request is not first:
                self._connections.trust(node.address)  # it has answered meanwhile
            elif self._is_deposed(node.address, held_now.led or {}):
                self._counters.silences += 1
                reason = DisconnectedError(f"{node.address} is silent, and others lead by now")
                self._connections.drop(node.address, reason)

    def _is_deposed(self, address: Address, led: _Epochs) -> bool:
        """Return whether somebody else leads a partition by now, in a later epoch."""
        leads = self._led_at(address)
        return any(
            key not in leads and self._cache.epoch_of(*key) > epoch for key, epoch in led.items()
        )
