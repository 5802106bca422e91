"""Raft transports of nodes, and strangers who connect to them by raw sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from dlogd.metadata.raft.handshake import Hello
from dlogd.metadata.raft.messages import Message
from dlogd.metadata.raft.timings import RaftTimings
from dlogd.metadata.raft.transport import RaftTransport
from tests.fakes.randomness import SeededRandomness

HOST = "127.0.0.1"
SECRET = b"0123456789abcdef0123456789abcdef"
TIMINGS = RaftTimings(handshake_s=0.5, reconnect_min_s=0.01, reconnect_max_s=0.05)


def hello_of(node_id: int, wanted_id: int = -1, *, cluster: str = "c", version: int = 2) -> Hello:
    """Return the first message of a node."""
    return Hello(
        cluster=cluster,
        node_id=node_id,
        directory_id=UUID(int=abs(node_id)),
        wanted_id=wanted_id,
        nonce=bytes([abs(node_id)]) * 32,
        version=version,
    )


class Side:
    """One node's transport, and which peers it has."""

    def __init__(self, node_id: int, secret: bytes = SECRET) -> None:
        self.up: list[int] = []
        self.messages: list[tuple[int, Message]] = []
        self.kept: list[Stranger] = []
        self.changed = asyncio.Event()
        self.transport = RaftTransport(
            hello=hello_of(node_id),
            secret=secret,
            randomness=SeededRandomness(node_id),
            timings=TIMINGS,
            on_up=self._on_up,
            on_down=lambda _: None,
            on_message=lambda node_id, message: self.messages.append((node_id, message)),
        )

    def _on_up(self, node_id: int, _directory_id: UUID) -> None:
        self.up.append(node_id)
        self.changed.set()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["Side"]:
        """Listen until the end of the block."""
        await self.transport.start(HOST, 0)
        try:
            yield self
        finally:
            await self.transport.close()


class Stranger:
    """A raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def of(cls, side: Side) -> "Stranger":
        """Connect to a side."""
        return cls(*await asyncio.open_connection(HOST, side.transport.port))

    def send(self, body: bytes) -> None:
        """Send a frame."""
        self.writer.write(len(body).to_bytes(4, "big") + body)

    async def frame(self) -> bytes:
        """Return the next frame."""
        size = int.from_bytes(await self.reader.readexactly(4), "big")
        return await self.reader.readexactly(size)

    async def rest(self) -> bytes:
        """Return everything until the other side closes."""
        try:
            return await self.reader.read()
        finally:
            self.writer.close()
