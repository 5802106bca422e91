"""One end of a simulated connection: an asyncio transport with flow control and half-close.

Made by `tests.simulation.network`. What was written waits in `_outgoing` (the transport's buffer)
while the peer's window is full; what has arrived waits in `_arrived` (the kernel's buffer) while
reading is paused. The protocol is only called on its own loop.
"""

import asyncio
import errno
import os
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from tests.simulation.loop import SimLoop, World

HIGH_WATER_BYTES = 64 * 1024
EOF = b""


@dataclass(slots=True)
class NetworkConfig:
    """Speed and character of all links."""

    latency_ns: int = 50_000
    jitter_ns: int = 100_000
    slow_probability: float = 0.0
    slow_ns: int = 50_000_000
    fragment_probability: float = 0.1
    window_bytes: int = 64 * 1024


class Wire(Protocol):
    """The network, as a transport sees it."""

    @property
    def world(self) -> World:
        """Where time is."""

    @property
    def rng(self) -> random.Random:
        """The network's randomness."""

    @property
    def config(self) -> NetworkConfig:
        """How links are now."""

    @property
    def trace(self) -> Callable[..., None] | None:
        """Where events go."""

    @property
    def transports(self) -> "dict[SimTransport, None]":
        """All open ends."""

    def delay_ns(self) -> int:
        """Return the next packet's travel time."""

    def travel(
        self, source: str, target: str, callback: Callable[..., None], argument: Any
    ) -> None:
        """Deliver at the target now, or keep it while the direction is blocked."""


class SimTransport(asyncio.Transport):
    """Implements the asyncio transport; there is no socket behind it."""

    peer: "SimTransport"

    def __init__(
        self, network: Wire, loop: SimLoop, own: tuple[str, int], other: tuple[str, int]
    ) -> None:
        super().__init__({"peername": other, "sockname": own})
        self.loop = loop
        self._own, self._other = own, other
        self._network = network
        self._protocol: asyncio.BaseProtocol | None = None
        self._started = False
        self._outgoing: deque[bytes] = deque()
        self._outgoing_bytes = 0
        self._unread_bytes = 0  # on the way or in the peer's kernel
        self._last_arrival_ns = 0
        self._arrived: deque[bytes] = deque()
        self._reading = True
        self._delivering = False
        self._eof_wanted = False
        self._closing = False
        self._lost = False
        self._silent = False
        self._high, self._low = HIGH_WATER_BYTES, HIGH_WATER_BYTES // 4
        self._protocol_paused = False

    def __repr__(self) -> str:
        return f"SimTransport({self._own} -> {self._other})"

    # -- what the program calls

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def start(self) -> None:
        """Deliver from now on."""
        self._started = True
        self._schedule_delivery()

    def is_closing(self) -> bool:
        return self._closing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._eof_wanted:
            raise RuntimeError("Cannot call write() after write_eof()")
        if not data or self._closing:
            return
        self._outgoing.append(bytes(data))
        self._outgoing_bytes += len(data)
        self._pump()
        self._update_pause()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._eof_wanted and not self._closing:
            self._eof_wanted = True
            self._pump()

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._pump()

    def abort(self) -> None:
        self._lose(None, reset_peer=True)

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._schedule_delivery()

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = HIGH_WATER_BYTES if low is None else 4 * low
        self._high, self._low = high, high // 4 if low is None else low
        self._update_pause()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return self._outgoing_bytes

    # -- sending

    def _pump(self) -> None:
        config, rng = self._network.config, self._network.rng
        while self._outgoing and self._unread_bytes < config.window_bytes:
            data = self._outgoing.popleft()
            room = config.window_bytes - self._unread_bytes
            if len(data) > 1 and rng.random() < config.fragment_probability:
                room = min(room, rng.randrange(1, len(data)))
            if len(data) > room:
                self._outgoing.appendleft(data[room:])
                data = data[:room]
            self._outgoing_bytes -= len(data)
            self._unread_bytes += len(data)
            self._send(data)
        if self._outgoing or self._lost:
            return
        if self._closing:
            self._lose(None, reset_peer=False)
        elif self._eof_wanted:
            self._send(EOF)

    def _send(self, data: bytes) -> None:
        network = self._network
        now_ns = network.world.now_ns
        when_ns = max(self._last_arrival_ns, now_ns + network.delay_ns())
        self._last_arrival_ns = when_ns
        source, target = self._own[0], self._other[0]
        network.world.at(
            when_ns - now_ns, network.travel, source, target, self.peer.on_arrival, data
        )

    def _update_pause(self) -> None:
        protocol = self._protocol
        if protocol is None or self._closing:
            return
        if not self._protocol_paused and self._outgoing_bytes > self._high:
            self._protocol_paused = True
            protocol.pause_writing()
        elif self._protocol_paused and self._outgoing_bytes <= self._low:
            self._protocol_paused = False
            protocol.resume_writing()

    def _on_room(self) -> None:
        self._pump()
        self._update_pause()

    # -- receiving

    def on_arrival(self, data: bytes) -> None:
        """Take bytes, or an end of file, from the wire (outside of any loop)."""
        if self._silent:
            # The host has power again and knows nothing of this connection.
            self._reset_peer()
            return
        if self._lost:
            if data:
                self._reset_peer()
            return
        self._arrived.append(data)
        trace = self._network.trace
        if trace is not None:
            trace("net", self._other[0], self._own[0], len(data))
        self._schedule_delivery()

    def _schedule_delivery(self) -> None:
        if self._arrived and self._started and not self._delivering:
            self._delivering = True
            self.loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._delivering = False
        while self._arrived and self._reading and not self._closing:
            data = self._arrived.popleft()
            try:
                if data:
                    self._hand_over(data)
                elif not self._get_protocol().eof_received():
                    self.close()
            except Exception as error:  # noqa: BLE001 (as asyncio's own transports do)
                message = "Fatal error: a callback of the protocol failed."
                context = {"message": message, "exception": error, "transport": self}
                self.loop.call_exception_handler(context)
                self._lose(error, reset_peer=True)

    def _get_protocol(self) -> Any:
        return self._protocol

    def _hand_over(self, data: bytes) -> None:
        protocol = self._get_protocol()
        if isinstance(protocol, asyncio.BufferedProtocol):
            buffer = memoryview(protocol.get_buffer(-1))
            if not len(buffer):
                raise RuntimeError("get_buffer() returned an empty buffer")
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            buffer.release()
            if count < len(data):
                self._arrived.appendleft(data[count:])
            self._give_room(count)
            protocol.buffer_updated(count)
        else:
            self._give_room(len(data))
            protocol.data_received(data)

    def _give_room(self, count: int) -> None:
        peer = self.peer
        peer._unread_bytes -= count
        if peer._outgoing or peer._closing:
            peer.loop.call_soon(peer._on_room)

    # -- the end

    def on_reset(self, _: object) -> None:
        """Take a reset from the wire."""
        if not self._silent:
            self._lose(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))

    def on_process_death(self, *, reset: bool) -> None:
        """End as the kernel ends what a killed process had open."""
        if reset or self._arrived:
            self._reset_peer()
        elif not self._lost and not self._eof_wanted:
            self._send(EOF)
        self._drop()

    def vanish(self) -> None:
        """Be gone without a word."""
        self._drop()
        self._silent = True

    def _reset_peer(self) -> None:
        network = self._network
        source, target = self._own[0], self._other[0]
        network.world.at(
            network.delay_ns(), network.travel, source, target, self.peer.on_reset, None
        )

    def _drop(self) -> None:
        self._closing = self._lost = True
        self._outgoing.clear()
        self._outgoing_bytes = 0
        self._arrived.clear()
        self._network.transports.pop(self, None)

    def _lose(self, error: Exception | None, *, reset_peer: bool = False) -> None:
        if self._lost:
            return
        unread = bool(self._arrived)
        if reset_peer or unread:
            self._reset_peer()
        elif error is None and not self._eof_wanted:
            self._send(EOF)
        self._drop()
        self.loop.call_soon(self._call_connection_lost, error)

    def _call_connection_lost(self, error: Exception | None) -> None:
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            protocol.connection_lost(error)
