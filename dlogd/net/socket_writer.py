"""Writer to a socket: non-blocking, unbuffered, by descriptor or by transport.

`send` takes what the peer can take now and says how much; the caller keeps the rest and is called
back when there is room. Nothing is copied or queued here, so a slow reader costs no memory.
`DescriptorWriter` writes to the descriptor (plain TCP); `TransportWriter` goes through the asyncio
transport (simulation, later TLS), whose bounded buffer it respects.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from typing import Protocol

Buffers = Sequence[bytes | memoryview]

TRANSPORT_CHUNK_BYTES = 64 * 1024

TCP_ESTABLISHED = 1
"""The first byte of TCP_INFO while both ends are open (man 7 tcp, linux/tcp_states.h)."""
UNSENT_BYTES_MAX = 256 * 1024
"""What the kernel keeps for a peer beyond what the peer has room for (TCP_NOTSENT_LOWAT).

Without a bound it takes 3 MB for each, and a thousand slow readers all that TCP may have.
"""


class SocketWriter(Protocol):
    """Where a connection's bytes leave."""

    def send(self, buffers: Buffers) -> int:
        """Send from the start of `buffers`; return how many bytes went.

        When not all went, `on_writable` is called once when there is room. Raises OSError when the
        connection is broken.
        """

    def on_pause(self) -> None:
        """The transport's own buffer is full."""

    def on_resume(self) -> None:
        """The transport's own buffer has room again."""

    def close(self) -> None:
        """Stop watching; nothing is sent any more. Idempotent."""


class Options(Protocol):
    """A socket, as far as it is set up here; uvloop's is not one of the standard library."""

    def setsockopt(self, level: int, option: int, value: int, /) -> None:
        """Set an option."""


def set_up(sock: Options) -> None:
    """Send at once, and keep little in the kernel for a peer that is slow. Raises OSError."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES_MAX)


def has_left(transport: asyncio.BaseTransport) -> bool:
    """Return whether the peer has closed its end: nobody hears of that while nothing is read."""
    sock = transport.get_extra_info("socket")
    if sock is None:
        return False
    try:
        state = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    except (OSError, ValueError):  # closed here
        return True
    return bool(state[0] != TCP_ESTABLISHED)


class DescriptorWriter:
    """Writes straight to the socket of a plain connection."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, fd: int, on_writable: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._fd = fd
        self._on_writable = on_writable
        # The loop refuses to watch a transport's own descriptor; a duplicate is made when needed.
        self._watch_fd = -1

    def send(self, buffers: Buffers) -> int:
        try:
            if len(buffers) == 1:
                sent = os.write(self._fd, buffers[0])
            else:
                sent = os.writev(self._fd, buffers)
        except (BlockingIOError, InterruptedError):
            sent = 0
        if sent < (len(buffers[0]) if len(buffers) == 1 else sum(map(len, buffers))):
            self._watch()
        return sent

    def _watch(self) -> None:
        if self._watch_fd < 0:
            self._watch_fd = os.dup(self._fd)
        self._loop.add_writer(self._watch_fd, self._writable)

    def _writable(self) -> None:
        self._loop.remove_writer(self._watch_fd)
        self._on_writable()

    def on_pause(self) -> None:
        """Not used: nothing goes through the transport."""

    def on_resume(self) -> None:
        """Not used: nothing goes through the transport."""

    def close(self) -> None:
        if self._watch_fd >= 0:
            self._loop.remove_writer(self._watch_fd)
            os.close(self._watch_fd)
            self._watch_fd = -1
        self._fd = -1


class TransportWriter:
    """Writes through the transport, at most a chunk beyond what its buffer allows."""

    def __init__(self, transport: asyncio.WriteTransport, on_writable: Callable[[], None]) -> None:
        self._transport = transport
        self._on_writable = on_writable
        self._paused = False
        self._wanted = False
        transport.set_write_buffer_limits(high=TRANSPORT_CHUNK_BYTES)

    def send(self, buffers: Buffers) -> int:
        sent = 0
        for buffer in buffers:
            if self._paused:
                break
            chunk = bytes(buffer[:TRANSPORT_CHUNK_BYTES])
            self._transport.write(chunk)
            sent += len(chunk)
            if len(chunk) < len(buffer):
                break
        if sent < sum(map(len, buffers)):
            self._wanted = True
            if not self._paused:
                asyncio.get_running_loop().call_soon(self._offer)
        return sent

    def _offer(self) -> None:
        if self._wanted and not self._paused:
            self._wanted = False
            self._on_writable()

    def on_pause(self) -> None:
        self._paused = True

    def on_resume(self) -> None:
        self._paused = False
        self._offer()

    def close(self) -> None:
        self._wanted = False
        self._paused = True


def outlet_of(
    loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, on_writable: Callable[[], None]
) -> SocketWriter:
    """Return where the bytes of a connection leave, and set its socket up. Raises OSError."""
    sock = transport.get_extra_info("socket")
    if sock is None or transport.get_extra_info("sslcontext") is not None:
        return TransportWriter(transport, on_writable)
    set_up(sock)
    return DescriptorWriter(loop, sock.fileno(), on_writable)
