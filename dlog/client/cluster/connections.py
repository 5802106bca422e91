"""Open connections of a client: one per address, shared by all callers.

Knows addresses and not who leads what; `dlog.client.cluster.cluster` decides. A connection that
broke is let go at once; addresses that failed last are `suspects` until one works again.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from dlog.client.cluster.counters import ClientCounters
from dlog.client.cluster.log_lines import error_name, log_event
from dlog.client.cluster.node import NodeClient, open_node
from dlog.errors import ConnectFailedError, DisconnectedError, DlogError, TransportError
from dlog.transport import Address, ConnectionOptions


def renewed(error: DlogError) -> DlogError:
    """Return the same error anew: one instance raised in many tasks gathers their tracebacks."""
    again = type(error)(*error.args)
    again.__cause__ = error.__cause__
    if isinstance(error, TransportError) and isinstance(again, TransportError):
        again.was_sent = error.was_sent
    return again


class Connections:
    """Connections of one client. Owner: the loop's thread. Life: until `close`.

    Invariant: at most one connection is open, and at most one is being opened, per address.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        options: ConnectionOptions,
        counters: ClientCounters,
    ) -> None:
        self.options = options
        self.suspects: dict[Address, str] = {}  # why the last attempt failed
        self.on_opening: Callable[[Address], None] = _nothing
        self._loop = loop
        self._counters = counters
        self._nodes: dict[Address, NodeClient] = {}
        self._opening: dict[Address, asyncio.Task[NodeClient]] = {}
        self._given_up: dict[Address, DlogError] = {}  # attempts to connect, until they end
        self._dropped: list[NodeClient] = []
        self._closed = False

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def open_to(self, address: Address) -> NodeClient | None:
        """Return the open connection to `address`, if there is one."""
        node = self._nodes.get(address)
        return node if node is not None and node.is_open else None

    @property
    def opening(self) -> Mapping[Address, object]:
        """The attempts to connect that are under way."""
        return self._opening

    def connected(self) -> list[NodeClient]:
        """Return the nodes with an open connection, those with the least to do first."""
        nodes = [node for node in self._nodes.values() if node.is_open]
        return sorted(nodes, key=lambda node: node.connection.inflight_count)

    async def get(self, address: Address) -> NodeClient:
        """Return the open connection to `address`, opened now if need be.

        Raises a TransportError, a WireError or a ProtocolError, the same for all who wait.
        """
        if self._closed:
            raise DlogError("the client is closed")
        node = self.open_to(address)
        if node is not None:
            return node
        opening = self._opening.get(address)
        if opening is None:
            opening = self._loop.create_task(self._open(address))
            opening.add_done_callback(_look_at)
            self._opening[address] = opening
            self.on_opening(address)
        try:
            # Others may wait for it, too: who leaves does not stop it.
            return await asyncio.shield(opening)
        except DlogError as error:
            raise renewed(error) from error.__cause__
        except asyncio.CancelledError:
            if self._closed and opening.cancelled():
                raise DlogError("the client is closed") from None
            raise

    async def _open(self, address: Address) -> NodeClient:
        old = self._nodes.pop(address, None)
        if old is not None:
            self._let_go(old)
        try:
            node = await open_node(self._loop, address, self.options, self._counters.transport)
        except DlogError as error:
            self._on_failure(address, error)
            raise
        except asyncio.CancelledError:
            reason = self._given_up.get(address)
            if reason is None:
                raise
            self._on_failure(address, reason)
            raise reason from None
        finally:
            del self._opening[address]
            self._given_up.pop(address, None)
        self._counters.connections_opened += 1
        self._nodes[address] = node
        self.suspects.pop(address, None)
        return node

    def _on_failure(self, address: Address, error: DlogError) -> None:
        self._counters.connections_failed += 1
        self.suspect(address, error)

    def suspect(self, address: Address, error: Exception) -> None:
        """Ask others before this address, until it works again."""
        self.suspects[address] = str(error) or error_name(error)

    def trust(self, address: Address) -> None:
        """Take it that the address works."""
        self.suspects.pop(address, None)

    def drop(self, address: Address, error: Exception | None = None) -> None:
        """Close the connection to `address` at once; nothing when there is none."""
        node = self._nodes.pop(address, None)
        if node is not None:
            self._let_go(node, error)

    def give_up(self, address: Address, reason: str) -> None:
        """Drop the connection to `address`, or the attempt to open it: who waits gets an error."""
        opening = self._opening.get(address)
        if opening is None:
            self.drop(address, DisconnectedError(f"{address} {reason}"))
        else:
            self._given_up[address] = ConnectFailedError(f"cannot connect: {address} {reason}")
            opening.cancel()

    def drop_broken(self) -> None:
        """Let connections go that are not open any more."""
        for address, node in list(self._nodes.items()):
            if not node.is_open:
                self.drop(address)

    def _let_go(self, node: NodeClient, error: Exception | None = None) -> None:
        self._counters.connections_lost += 1
        reason = node.connection.failure or error
        log_event(logging.WARNING, "Dropped a connection", node=node.address, reason=reason)
        self._retire(node)

    def prune(self, keep: Iterable[Address]) -> None:
        """Close idle connections to other addresses: their nodes are elsewhere now."""
        kept = frozenset(keep)
        for address, node in list(self._nodes.items()):
            if address not in kept and node.connection.is_idle:
                del self._nodes[address]
                self._retire(node)
        for address in list(self.suspects):
            if address not in kept:
                del self.suspects[address]

    def _retire(self, node: NodeClient) -> None:
        node.close()
        self._dropped = [each for each in self._dropped if not each.connection.has_ended]
        self._dropped.append(node)

    async def close(self) -> None:
        """Close all connections and wait until they have ended. Idempotent."""
        self._closed = True
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        nodes = [*self._nodes.values(), *self._dropped]
        self._nodes.clear()
        self._dropped.clear()
        for node in nodes:
            node.close()
        for node in nodes:
            await node.connection.wait_closed()


def _nothing(_: Address) -> None:
    """Stand in for a callback that nobody has set."""


def _look_at(task: "asyncio.Task[NodeClient]") -> None:
    """Take the error, so that nobody is told that nobody took it: all waiters may have left."""
    if not task.cancelled():
        task.exception()
