"""A TCP proxy that does harm: between a client and a node, in the test's loop, on the loopback.

    async with Proxy(node_address) as proxy:
        ... connect to proxy.address ...
        proxy.cut_after(Direction.TO_CLIENT, 7)      # the next answer ends after 7 bytes

Every harm can be done and undone while connections are open. Nothing is left behind: `close` ends
all links and waits for them.
"""

import asyncio
import enum
import socket
import ssl
import struct
from dataclasses import dataclass
from typing import Self

from dlog.transport import Address

_CHUNK_BYTES = 64 * 1024
_LINGER_NOT = struct.pack("ii", 1, 0)  # close() sends a reset


class Direction(enum.Enum):
    """Which way bytes go."""

    TO_SERVER = enum.auto()
    TO_CLIENT = enum.auto()


@dataclass(slots=True)
class _Cut:
    """The links end after so many more bytes in one direction."""

    bytes_left: int
    reset: bool


class Link:
    """One connection of a client and, when the proxy wants, the one to the node."""

    def __init__(self, number: int, client: asyncio.StreamWriter) -> None:
        self.number = number
        self.client = client
        self.server: asyncio.StreamWriter | None = None
        self.is_silent = False
        # Ways on which bytes were swallowed: nothing may follow them, for TCP loses no middle.
        self.holed: set[Direction] = set()
        self.tasks: list[asyncio.Task[None]] = []

    def end(self, *, reset: bool = False) -> None:
        """Close both sides; with `reset` the hard way."""
        for writer in (self.client, self.server):
            if writer is None:
                continue
            if reset:
                if not writer.is_closing():
                    writer.get_extra_info("socket").setsockopt(
                        socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT
                    )
                writer.transport.abort()
            else:
                writer.close()

    def half_open(self) -> None:
        """Forget the node's side; the client's stays open and hears nothing any more."""
        self.is_silent = True
        if self.server is not None:
            self.server.close()


class Proxy:
    """A listener that forwards to `upstream`, which may be set or changed later.

    With `tls` clients speak TLS to it; what it forwards is plain.
    """

    def __init__(
        self, upstream: Address | None = None, port: int = 0, tls: ssl.SSLContext | None = None
    ) -> None:
        self.upstream = upstream
        self._tls = tls
        self.address = Address("127.0.0.1", port)
        self.delay_s = 0.0
        """Every chunk is held for this long, both ways."""
        self.drip: tuple[int, float] | None = None
        """(bytes, seconds): answers arrive in pieces so small and so far apart."""
        self.links: list[Link] = []
        self.accepted_count = 0
        self.bytes_forwarded = {Direction.TO_SERVER: 0, Direction.TO_CLIENT: 0}
        self._server: asyncio.Server | None = None
        self._cuts: dict[Direction, _Cut] = {}
        self._swallowed: set[Direction] = set()
        self._reads = asyncio.Event()
        self._reads.set()
        self._healed = asyncio.Event()  # set and replaced: ends pauses
        self._moved = asyncio.Event()  # set and replaced at every change that a test may await
        self._hold_count = 0
        self._held: list[asyncio.Future[None]] = []

    async def start(self) -> None:
        """Listen; on the same port as before when it was stopped."""
        self._server = await asyncio.start_server(
            self._accept,
            self.address.host,
            self.address.port,
            limit=_CHUNK_BYTES,
            ssl=self._tls,
            # A test that needs the same port again and again keeps it bound meanwhile.
            reuse_port=True,
        )
        self.address = Address("127.0.0.1", self._server.sockets[0].getsockname()[1])

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop listening and end all links."""
        self.refuse()
        self.release()
        tasks = [task for link in self.links for task in link.tasks]
        for link in self.links:
            link.end(reset=True)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.links.clear()

    # Harm

    def refuse(self) -> None:
        """Refuse new connections, until `start`."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def cut_after(self, direction: Direction, byte_count: int, *, reset: bool = False) -> None:
        """Forward so many more bytes that way, then end that link; once."""
        self._cuts[direction] = _Cut(byte_count, reset)

    def cut(self, *, reset: bool = False) -> None:
        """End all links now."""
        for link in list(self.links):
            link.end(reset=reset)

    def swallow(self, *directions: Direction) -> None:
        """Throw away what goes these ways (none given: both); `heal` helps new links only."""
        self._swallowed.update(directions or tuple(Direction))

    def stall(self) -> None:
        """Read nothing any more, so that buffers fill, until `heal`."""
        self._reads.clear()

    def half_open(self) -> None:
        """End the node's side of all links; clients hear nothing of it."""
        for link in self.links:
            link.half_open()

    def hold(self, link_count: int) -> None:
        """Hold new links back until there are so many, then let the last one go first."""
        self._hold_count = link_count

    def release(self) -> None:
        """Let held links go, the last one first."""
        self._hold_count = 0
        while self._held:
            self._held.pop().set_result(None)

    def heal(self) -> None:
        """Do no harm to what comes; links that were hurt stay as they are."""
        self.delay_s = 0.0
        self.drip = None
        self._cuts.clear()
        self._swallowed.clear()
        self._reads.set()
        self._healed.set()
        self._healed = asyncio.Event()
        self.release()

    # What tests wait for

    @property
    def is_listening(self) -> bool:
        """Whether new connections are accepted."""
        return self._server is not None

    @property
    def open_count(self) -> int:
        """Links that have not ended."""
        return len(self.links)

    async def wait_accepted(self, count: int) -> None:
        """Return when so many connections were accepted since the start."""
        while self.accepted_count < count:
            await self._moved.wait()

    async def wait_forwarded(self, direction: Direction, byte_count: int) -> None:
        """Return when at least so many bytes went that way."""
        while self.bytes_forwarded[direction] < byte_count:
            await self._moved.wait()

    async def wait_ended(self) -> None:
        """Return when no link is left."""
        while self.links:
            await self._moved.wait()

    def _notify(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    # Links

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted_count += 1
        link = Link(self.accepted_count, writer)
        task = asyncio.current_task()
        assert task is not None
        link.tasks.append(task)
        self.links.append(link)
        self._notify()
        try:
            await self._hold()
            if self.upstream is None:
                return
            there, link.server = await asyncio.open_connection(
                self.upstream.host, self.upstream.port, limit=_CHUNK_BYTES
            )
            back = asyncio.ensure_future(self._pump(link, there, Direction.TO_CLIENT))
            link.tasks.append(back)
            await self._pump(link, reader, Direction.TO_SERVER)
            await back
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            link.end()
            self.links.remove(link)
            self._notify()

    async def _hold(self) -> None:
        if not self._hold_count:
            return
        turn = asyncio.get_running_loop().create_future()
        self._held.append(turn)
        if len(self._held) >= self._hold_count:
            self.release()
        await turn

    async def _pump(self, link: Link, reader: asyncio.StreamReader, way: Direction) -> None:
        writer = link.server if way is Direction.TO_SERVER else link.client
        assert writer is not None
        try:
            while True:
                await self._reads.wait()
                data = await reader.read(_CHUNK_BYTES)
                if not data:
                    break
                await self._reads.wait()
                if self.delay_s:
                    await self._pause(self.delay_s)
                if way in self._swallowed:
                    link.holed.add(way)
                if not link.is_silent and way not in link.holed:
                    await self._forward(link, writer, data, way)
        except ConnectionError:
            pass
        if not link.is_silent:
            link.end()

    async def _pause(self, seconds: float) -> None:
        """Let time pass, at most until `heal`."""
        try:
            await asyncio.wait_for(self._healed.wait(), seconds)
        except TimeoutError:
            pass

    async def _forward(
        self, link: Link, writer: asyncio.StreamWriter, data: bytes, way: Direction
    ) -> None:
        cut = self._cuts.get(way)
        if cut is not None:
            data = data[: cut.bytes_left]
            cut.bytes_left -= len(data)
        step, pause_s = (len(data), 0.0)
        if self.drip is not None and way is Direction.TO_CLIENT:
            step, pause_s = self.drip
        for start in range(0, len(data), step or 1):
            writer.write(data[start : start + step])
            await writer.drain()
            if pause_s and self.drip is not None:
                await self._pause(pause_s)
        self.bytes_forwarded[way] += len(data)
        self._notify()
        if cut is not None and not cut.bytes_left:
            self._cuts.pop(way, None)
            link.end(reset=cut.reset)
