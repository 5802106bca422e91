"""Room for HTTP connections: a share for each address, and which connection gives way to a new one.

Pure. A connection with a request under way never gives way. Of the others the connection that has
been silent longest goes first; unfinished request heads go only when no connection is silent.
`dlogd.status.http_server` owns the room.
"""

from collections.abc import Iterable
from enum import IntEnum
from typing import Generic, Protocol, TypeVar

from dlogd.telemetry.http_metrics import HttpMetrics


class State(IntEnum):
    """What a connection does; the lower, the sooner the connection gives way."""

    SILENT = 0
    UNFINISHED = 1  # a part of a request head is here
    BUSY = 2


class Held(Protocol):
    """A connection as the room sees it."""

    @property
    def peer(self) -> str:
        """The address that the client counts for (`dlogd.net.connection_admission.address_of`)."""

    @property
    def state(self) -> State:
        """What the connection does now."""

    @property
    def since_s(self) -> float:
        """When the connection entered its state; monotonic."""

    def give_way(self) -> None:
        """Close the connection."""


C = TypeVar("C", bound=Held)


class Room(Generic[C]):
    """Connections of one server, bounded over all and per address. Owner: the event loop."""

    def __init__(self, metrics: HttpMetrics) -> None:
        self._metrics = metrics
        self._held: dict[C, None] = {}

    def connections(self) -> list[C]:
        """Return all connections, in the order in which they came."""
        return list(self._held)

    def take(self, connection: C, *, max_count: int, per_ip_max: int) -> bool:
        """Take a connection in, with another one closed for it if need be; False if there is none.

        Of two connections that are equally silent the one that came first goes.
        """
        sharing = [each for each in self._held if each.peer == connection.peer]
        made = True
        if len(sharing) >= per_ip_max:
            made = self._make_room(sharing)
        elif len(self._held) >= max_count:
            made = self._make_room(self._held)
        if not made:
            self._metrics.connections_refused_total += 1
            return False
        self._held[connection] = None
        self._metrics.connections = len(self._held)
        return True

    def _make_room(self, candidates: Iterable[C]) -> bool:
        first = min(candidates, key=lambda each: (each.state, each.since_s))
        if first.state is State.BUSY:
            return False
        self._metrics.connections_displaced_total += 1
        self.leave(first)
        first.give_way()
        return True

    def leave(self, connection: C) -> None:
        """Forget a connection that has ended. Idempotent."""
        self._held.pop(connection, None)
        self._metrics.connections = len(self._held)
