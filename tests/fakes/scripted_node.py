"""A tiny server that a test scripts, and what its requests end with, for tests of connections."""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from dlog.transport import Address, Connection, ConnectionOptions, Request, connect

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def request(correlation_id: int, body: bytes = b"") -> bytes:
    """Frame a request; the test's server reads nothing but its correlation id."""
    return struct.pack(">ihhi", 8 + len(body), 0, 0, correlation_id) + body


def response(correlation_id: int, body: bytes = b"") -> bytes:
    return struct.pack(">ii", 4 + len(body), correlation_id) + body


async def read_request(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    (length,) = struct.unpack(">i", await reader.readexactly(4))
    frame = await reader.readexactly(length)
    return struct.unpack(">i", frame[4:8])[0], frame[8:]


@asynccontextmanager
async def node(handler: Handler, **options: Any) -> AsyncIterator[Connection]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
    loop = asyncio.get_running_loop()
    connection = await connect(loop, address, ConnectionOptions(**options))
    try:
        yield connection
    finally:
        connection.close()
        await connection.wait_closed()
        server.close()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        correlation_id, body = await read_request(reader)
        writer.write(response(correlation_id, body))


class Callbacks:
    """Takes what a request ends with; `done` is set when it has."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.errors: list[Exception] = []
        self.done = asyncio.Event()
        self.then: Callable[[], None] = lambda: None

    def on_response(self, frame: memoryview) -> None:
        self.frames.append(bytes(frame[4:]))
        self.then()
        self.done.set()

    def on_error(self, error: Exception) -> None:
        self.errors.append(error)
        self.done.set()

    def send(self, connection: Connection, body: bytes = b"", patience_s: float = 20) -> Request:
        deadline = asyncio.get_running_loop().time() + patience_s
        return connection.send_request(
            lambda cid: request(cid, body), self.on_response, self.on_error, deadline
        )
