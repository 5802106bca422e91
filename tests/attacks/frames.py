"""Honest frames beside an attack, all of one size, and the addresses that they come from."""

import asyncio

from tests.attacks.scene import Victims

ATTACKER, NEIGHBOUR = "127.0.0.1", "127.0.3.1"
"""One honest client has the attacker's address, one has its own."""


def request_frame(body_bytes: int) -> bytes:
    """Return an ApiVersions request with as many bytes behind its header."""
    head = b"\0\x12\0\0\0\0\0\7\xff\xff"
    return (len(head) + body_bytes).to_bytes(4, "big") + head + bytes(body_bytes)


class Frames:
    """An honest client that sends frames of one size and waits for each answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, victims: Victims, source: str) -> "Frames":
        """Connect and ask for the versions first, as every client does."""
        streams = await asyncio.open_connection(*victims.address, local_addr=(source, 0))
        client = cls(*streams)
        await client.ask(0)
        return client

    async def ask(self, size: int, bytes_per_s: int = 0) -> None:
        """Send a frame with `size` bytes, if need be slowly, and wait for its answer."""
        frame = request_frame(size)
        step = bytes_per_s // 10 or len(frame)
        for start in range(0, len(frame), step):
            self._writer.write(frame[start : start + step])
            await self._writer.drain()
            if bytes_per_s:
                await asyncio.sleep(0.1)
        length = int.from_bytes(await self._reader.readexactly(4), "big")
        await self._reader.readexactly(length)

    def close(self) -> None:
        """Close at once."""
        self._writer.transport.abort()
