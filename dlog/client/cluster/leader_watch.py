"""Watch over silent leaders: while a request waits, other nodes are asked for the leader.

A process that is stopped, or a host that vanished, closes no connection and refuses none, and a
request may take long for good reasons. So silence alone changes nothing; but when the cluster has
given a partition of that node to another one, the connection is dropped, or no longer opened, and
what waits for it is tried again there. Called by `dlog.client.cluster.cluster`.
"""

import asyncio
from collections.abc import Iterator, Mapping

from dlog.client.cluster.connections import Connections
from dlog.client.cluster.counters import ClientCounters
from dlog.client.cluster.metadata_cache import MetadataCache
from dlog.client.cluster.metadata_lookup import MetadataLookup
from dlog.errors import DisconnectedError, DlogError
from dlog.transport import Address

PATIENCES = 2
"""A node is silent after so many times the policy's `patience_s`."""
ASKED_AFTER_MAX_S = 5.0

_Epochs = Mapping[tuple[str, int], int]


class _Held:
    """A connection whose first request in flight has been the same for a while; or none yet."""

    __slots__ = ("ask_at_s", "expected_s", "led", "since_s", "what")

    def __init__(self, what: object, expected_s: float, now_s: float) -> None:
        self.what = what
        """The request, or the attempt to connect."""
        self.expected_s = expected_s
        """It may take so long for good reasons."""
        self.since_s = now_s
        self.led: _Epochs | None = None
        """Leader epochs of what the node led when it was met again."""
        self.ask_at_s = 0.0


class LeaderWatch:
    """Watches the connections of one cluster. Owner: the loop's thread. Life: until `close`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        cache: MetadataCache,
        connections: Connections,
        lookup: MetadataLookup,
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

    def on_opening(self, address: Address) -> None:
        """Watch, from the beginning of an attempt to connect until no connection is open."""
        held = _Held(self._connections.opening[address], 0.0, self._loop.time())
        held.led = self._led_at(address)
        self._held[address] = held
        self._begin()

    def _begin(self) -> None:
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

    def _waited_for(self) -> Iterator[tuple[Address, object, float]]:
        """What each node has to do first: answers come in order. And how long that may take."""
        for node in self._connections.connected():
            request = node.connection.first_inflight
            if request is not None:
                # A fetch may wait for data that long.
                usual_s = node.connection.options.request_timeout_s
                yield node.address, request, max(0.0, request.patience_s - usual_s)
        for address, attempt in self._connections.opening.items():
            yield address, attempt, 0.0

    def _check(self) -> None:
        """Look for what has been waited for since long."""
        self._timer = None
        now_s = self._loop.time()
        held: dict[Address, _Held] = {}
        for address, what, expected_s in self._waited_for():
            before = self._held.get(address)
            if before is None or before.what is not what:
                before = _Held(what, expected_s, now_s)
            elif before.led is None:
                before.led = self._led_at(address)
            held[address] = before
        self._held = held
        patience_s = PATIENCES * self._lookup.policy.patience_s
        silent = {
            address: each
            for address, each in held.items()
            if now_s - each.since_s >= each.expected_s + patience_s
        }
        is_due = any(each.ask_at_s <= now_s for each in silent.values())
        if is_due and (self._asking is None or self._asking.done()):
            self._asking = self._loop.create_task(self._ask(silent, now_s))
        if self._connections.opening or self._connections.connected():
            self._begin()

    def _led_at(self, address: Address) -> _Epochs:
        """Return the epochs of the partitions that the node at an address leads."""
        ids = [each.node_id for each in self._cache.nodes.values() if each.address == address]
        return self._cache.led_by(ids[0]) if ids else {}

    async def _ask(self, silent: Mapping[Address, _Held], now_s: float) -> None:
        """Ask who leads what the silent ones led, and give those up that were deposed."""
        topics = {topic for held in silent.values() for topic, _ in held.led or ()}
        for address, held in silent.items():
            # The longer it lasts, the less is it news.
            wait_s = min(ASKED_AFTER_MAX_S, (now_s - held.since_s) / 4)
            held.ask_at_s = now_s + wait_s
            self._connections.suspect(address, DisconnectedError("silent"))
        if not topics:
            return
        try:
            await self._lookup.share(sorted(topics))
        except DlogError:
            return  # logged where it happened
        present = {address: what for address, what, _ in self._waited_for()}
        for address, held in silent.items():
            if present.get(address) is not held.what:
                if self._connections.open_to(address) is not None:
                    self._connections.trust(address)  # it has answered meanwhile
            elif self._is_deposed(address, held.led or {}):
                self._counters.silences += 1
                self._connections.give_up(address, "is silent, and others lead by now")

    def _is_deposed(self, address: Address, led: _Epochs) -> bool:
        """Return whether somebody else leads a partition by now, in a later epoch."""
        leads = self._led_at(address)
        return any(
            key not in leads and self._cache.epoch_of(*key) > epoch for key, epoch in led.items()
        )
