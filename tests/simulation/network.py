"""A network in memory between simulated loops: ordered, slow, cut, or silent.

Order holds within one direction of a connection. Bytes are cut at random points. A killed process
leaves its peers an end of file or a reset, a host without power leaves them silence. A blocked
direction holds bytes back until it is unblocked, as retransmission does.
"""

import asyncio
import errno
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.loop import SimLoop, World
from tests.simulation.transport import NetworkConfig, SimTransport

ProtocolFactory = Callable[[], asyncio.BaseProtocol]

CONNECT_TIMEOUT_NS = 10_000_000_000


@dataclass(slots=True)
class _Host:
    """What the network knows of an address."""

    up: bool = True
    listeners: dict[int, "SimServer"] = field(default_factory=dict)


class SimSocket:
    """What a server shows of its socket: the name."""

    def __init__(self, name: tuple[str, int]) -> None:
        self._name = name

    def getsockname(self) -> tuple[str, int]:
        """Return address and port."""
        return self._name

    def fileno(self) -> int:
        """Return -1: there is no descriptor."""
        return -1


class SimServer(asyncio.AbstractServer):
    """A listening port."""

    def __init__(
        self, network: "Network", loop: SimLoop, factory: ProtocolFactory, port: int
    ) -> None:
        self.loop = loop
        self.factory = factory
        self.port = port
        self._network = network
        self.sockets: tuple[SimSocket, ...] = (SimSocket((loop.address, port)),)

    def close(self) -> None:
        self._network.unlisten(self)
        self.sockets = ()

    def is_serving(self) -> bool:
        return bool(self.sockets)

    async def serve_forever(self) -> None:
        await self.loop.create_future()

    async def start_serving(self) -> None:
        pass

    async def wait_closed(self) -> None:
        pass

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self.loop


class Network:
    """All hosts, connections and what is wrong between them."""

    def __init__(
        self, world: World, rng: random.Random, config: NetworkConfig | None = None
    ) -> None:
        self.world = world
        self.rng = rng
        self.config = config if config is not None else NetworkConfig()
        self.transports: dict[SimTransport, None] = {}
        self.trace: Callable[..., None] | None = None
        self._hosts: dict[str, _Host] = {}
        self._blocked: dict[tuple[str, str], None] = {}
        self._held: dict[tuple[str, str], list[tuple[Callable[..., None], Any]]] = {}
        self._port = 32768

    # -- hosts

    def attach(self, loop: SimLoop, address: str) -> None:
        """Give a loop its address; the host is up from now on."""
        loop.network, loop.address = self, address
        self._hosts.setdefault(address, _Host()).up = True

    def kill_process(self, loop: SimLoop) -> None:
        """Close what a killed process had open, as its kernel does."""
        self._forget_listeners(loop)
        for transport in self._transports_of(loop):
            transport.on_process_death(reset=self.rng.random() < 0.5)

    def cut_power(self, loop: SimLoop) -> None:
        """Let the host of a loop vanish without a word."""
        self._forget_listeners(loop)
        self._hosts[loop.address].up = False
        for transport in self._transports_of(loop):
            transport.vanish()

    def _forget_listeners(self, loop: SimLoop) -> None:
        listeners = self._hosts[loop.address].listeners
        own = loop.process()
        for port in [port for port, server in listeners.items() if server.loop in own]:
            del listeners[port]

    def _transports_of(self, loop: SimLoop) -> list[SimTransport]:
        own = loop.process()
        return [transport for transport in self.transports if transport.loop in own]

    def is_up(self, address: str) -> bool:
        """Return whether the host has power."""
        return self._hosts.setdefault(address, _Host()).up

    # -- faults

    def block(self, source: str, target: str) -> None:
        """Hold back all that goes from `source` to `target`."""
        self._blocked[(source, target)] = None

    def unblock(self, source: str, target: str) -> None:
        """Let what was held back in one direction go on, in order."""
        self._blocked.pop((source, target), None)
        if (source, target) in self._held:
            self.world.at(self.delay_ns(), self._release, (source, target))

    def unblock_all(self) -> None:
        """Let all that was held back go on, in order."""
        self._blocked.clear()
        for direction in self._held:
            self.world.at(self.delay_ns(), self._release, direction)

    def _release(self, direction: tuple[str, str]) -> None:
        if direction in self._blocked:
            return
        for callback, argument in self._held.pop(direction, ()):
            if self._hosts[direction[1]].up:
                callback(argument)

    def cut_some(self, share: float) -> int:
        """Reset a random part of the connections, each end at its own time; return how many."""
        victims = [item for item in self.transports if self.rng.random() < share / 2]
        for transport in victims:
            for end in (transport, transport.peer):
                self.world.at(self.delay_ns() * 10, end.on_reset, None)
        return len(victims)

    # -- travel

    def delay_ns(self) -> int:
        """Return the next packet's travel time."""
        config, rng = self.config, self.rng
        delay_ns = config.latency_ns + int(rng.random() * config.jitter_ns)
        if config.slow_probability and rng.random() < config.slow_probability:
            delay_ns += int(rng.random() * config.slow_ns)
        return delay_ns

    def travel(
        self, source: str, target: str, callback: Callable[..., None], argument: Any
    ) -> None:
        """Deliver at the target now, or keep it while the direction is blocked."""
        direction = (source, target)
        if direction in self._blocked or direction in self._held:
            self._held.setdefault(direction, []).append((callback, argument))
        elif self._hosts[target].up:
            callback(argument)

    # -- connections

    def listen(self, loop: SimLoop, factory: ProtocolFactory, port: int) -> SimServer:
        """Open a port of the loop's host; 0 takes a free one."""
        listeners = self._hosts[loop.address].listeners
        if port == 0:
            self._port += 1
            port = self._port
        if port in listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        server = SimServer(self, loop, factory, port)
        listeners[port] = server
        return server

    def unlisten(self, server: SimServer) -> None:
        """Close a port; connections stay."""
        listeners = self._hosts[server.loop.address].listeners
        if listeners.get(server.port) is server:
            del listeners[server.port]

    async def connect(
        self, loop: SimLoop, factory: ProtocolFactory, address: str, port: int
    ) -> tuple[SimTransport, asyncio.BaseProtocol]:
        """Connect as `loop.create_connection` does."""
        future: asyncio.Future[SimTransport] = loop.create_future()
        self._port += 1
        attempt = (loop, future, (loop.address, self._port), (address, port))
        self.is_up(address)
        delay_ns = self.delay_ns()
        self.world.at(delay_ns, self.travel, loop.address, address, self._on_syn, attempt)
        self.world.at(CONNECT_TIMEOUT_NS, self._fail, loop, future, errno.ETIMEDOUT)
        try:
            transport = await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                future.result().abort()
            raise
        protocol = factory()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        transport.start()
        return transport, protocol

    def _on_syn(self, attempt: tuple[SimLoop, Any, tuple[str, int], tuple[str, int]]) -> None:
        loop, future, client, target = attempt
        server = self._hosts[target[0]].listeners.get(target[1])
        delay_ns = self.delay_ns()
        if loop.dead or future.done():
            return
        if server is None:
            self.world.at(delay_ns, self._fail, loop, future, errno.ECONNREFUSED)
            return
        near = SimTransport(self, loop, client, target)
        far = SimTransport(self, server.loop, target, client)
        near.peer, far.peer = far, near
        self.transports[near] = None
        self.transports[far] = None
        server.loop.call_soon(self._accept, server, far)
        arguments = (target[0], client[0], self._on_syn_ack, (loop, future, near))
        self.world.at(delay_ns, self.travel, *arguments)

    def _accept(self, server: SimServer, transport: SimTransport) -> None:
        protocol = server.factory()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        transport.start()

    def _on_syn_ack(self, answer: tuple[SimLoop, Any, SimTransport]) -> None:
        loop, future, transport = answer
        loop.call_soon(_set_result, future, transport)

    def _fail(self, loop: SimLoop, future: Any, code: int) -> None:
        if not future.done():
            loop.call_soon(_set_error, future, OSError(code, os.strerror(code)))


def _set_result(future: "asyncio.Future[SimTransport]", transport: SimTransport) -> None:
    if future.done():
        transport.abort()
    else:
        future.set_result(transport)


def _set_error(future: "asyncio.Future[SimTransport]", error: OSError) -> None:
    if not future.done():
        future.set_exception(error)
