"""A small HTTP/1.1 server for operators: GET and HEAD, no bodies, strict limits, no framework.

Knows no page: `dlogd.status.pages` gives it the routes. Every connection has one timer: for a whole
request head, for the answer, for a reader that does not read, or for silence between requests.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import cast
from urllib.parse import unquote, urlsplit

from dlogd.tasks import Tasks

log = logging.getLogger(__name__)

TEXT = "text/plain; charset=utf-8"
_END_OF_HEAD = b"\r\n\r\n"
_METHODS = ("GET", "HEAD")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one client may cost."""

    head_bytes_max: int = 8192
    connections_max: int = 64
    head_timeout_s: float = 5.0
    answer_timeout_s: float = 30.0
    idle_timeout_s: float = 75.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One parsed request head; header names are in lower case."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    keep_alive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """What a page answers."""

    body: bytes
    status: int = 200
    content_type: str = TEXT


Page = Callable[[Request], Awaitable[Response]]


class HttpError(Exception):
    """A request that is answered with an error status; the connection ends after it."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def parse_head(head: bytes) -> Request:
    """Parse a request head without its empty line; raise HttpError."""
    lines = head.decode("latin-1").split("\r\n")
    parts = lines[0].split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise HttpError(400, "not an HTTP/1 request")
    method, target, version = parts
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise HttpError(400, "malformed header")
        headers[name.lower()] = value.strip()
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        raise HttpError(413, "a request here has no body")
    if method not in _METHODS:
        raise HttpError(405, "only GET and HEAD")
    try:
        url = urlsplit(target)
    except ValueError:
        raise HttpError(400, "malformed target") from None
    connection = headers.get("connection", "").lower()
    keep_alive = connection != "close" if version == "HTTP/1.1" else connection == "keep-alive"
    return Request(
        method=method,
        path=unquote(url.path),
        query=url.query,
        headers=headers,
        keep_alive=keep_alive,
    )


def encode_response(response: Response, *, keep_alive: bool, with_body: bool = True) -> bytes:
    """Encode status line, headers and, unless it answers HEAD, the body."""
    head = (
        f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}\r\n"
        f"Content-Type: {response.content_type}\r\n"
        f"Content-Length: {len(response.body)}\r\n"
        "Cache-Control: no-store\r\n"
        "X-Content-Type-Options: nosniff\r\n"
        f"{'Allow: GET, HEAD' + chr(13) + chr(10) if response.status == 405 else ''}"
        f"Connection: {'keep-alive' if keep_alive else 'close'}\r\n\r\n"
    )
    return head.encode("latin-1") + (response.body if with_body else b"")


def text_response(status: int, text: str) -> Response:
    """Return a line of plain text."""
    return Response(status=status, body=text.encode() + b"\n")


class _Connection(asyncio.Protocol):
    """One client. At most one request is being answered; what follows it waits in `_received`."""

    def __init__(self, server: "HttpServer") -> None:
        self._server = server
        self._received = bytearray()
        self._task: asyncio.Task[Response] | None = None
        self._request: Request | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._draining = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's do not derive from it
        self.transport = transport
        transport.set_write_buffer_limits(high=0)
        if self._server.add(self):
            self._arm(self._server.limits.head_timeout_s)
        else:
            transport.abort()

    def connection_lost(self, _error: Exception | None) -> None:
        self._disarm()
        self._server.remove(self)
        if self._task is not None:
            self._task.cancel()
        self.transport = None

    def data_received(self, data: bytes) -> None:
        if not self._received and self._task is None and not self._draining:
            self._arm(self._server.limits.head_timeout_s)
        self._received += data
        if self._task is None and not self._draining:
            self._next_request()
        elif len(self._received) > self._server.limits.head_bytes_max and self.transport:
            self.transport.pause_reading()

    def pause_writing(self) -> None:
        self._draining = True

    def resume_writing(self) -> None:
        self._draining = False
        if self.transport is not None and not self.transport.is_closing():
            self._next_request()

    def close(self) -> None:
        """End at once, whatever is under way."""
        if self.transport is not None:
            self.transport.abort()

    def _arm(self, timeout_s: float) -> None:
        self._disarm()
        self._timer = self._server.loop.call_later(timeout_s, self.close)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _next_request(self) -> None:
        """Begin the next request if its head is whole."""
        limits = self._server.limits
        end = self._received.find(_END_OF_HEAD)
        try:
            if max(end, len(self._received) if end < 0 else 0) > limits.head_bytes_max:
                raise HttpError(431, "request head too large")
            if end < 0:
                if not self._received:
                    self._arm(limits.idle_timeout_s)
                return
            head = bytes(self._received[:end])
            del self._received[: end + len(_END_OF_HEAD)]
            self._request = parse_head(head)
        except HttpError as error:
            self._request = None
            self._answer(text_response(error.status, str(error)))
            return
        self._arm(limits.answer_timeout_s)
        self._task = self._server.start_page(self._request)
        self._task.add_done_callback(self._on_page)

    def _on_page(self, task: asyncio.Task[Response]) -> None:
        self._task = None
        if task.cancelled() or self.transport is None:
            return
        # The failure itself has been logged by `dlogd.tasks`.
        failed = task.exception() is not None
        self._answer(text_response(500, "internal error") if failed else task.result())

    def _answer(self, response: Response) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        request = self._request
        keep_alive = request is not None and request.keep_alive
        with_body = request is None or request.method == "GET"
        self._request = None
        self._arm(self._server.limits.answer_timeout_s)
        self.transport.write(encode_response(response, keep_alive=keep_alive, with_body=with_body))
        if not keep_alive:
            self.transport.close()
            return
        self.transport.resume_reading()
        if not self._draining:
            self._next_request()


class HttpServer:
    """Listens on one address and answers from a table of pages.

    Owner: the event loop's thread. Life: `start` once, `close` once.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        pages: Mapping[str, Page],
        limits: Limits | None = None,
    ) -> None:
        self.loop = loop
        self.limits = limits or Limits()
        self.refused_count = 0
        self._pages = pages
        self._tasks = Tasks()
        self._connections: dict[_Connection, None] = {}
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port, which the system chose when `port` is 0. Raises OSError."""
        self._server = await self.loop.create_server(lambda: _Connection(self), host, port)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        """Stop listening and cut all connections. Idempotent."""
        if self._server is not None:
            self._server.close()
        self._server = None
        for connection in list(self._connections):
            connection.close()
        await self._tasks.close()

    def add(self, connection: _Connection) -> bool:
        """Take a new connection in; False when there are too many."""
        if len(self._connections) >= self.limits.connections_max:
            self.refused_count += 1
            return False
        self._connections[connection] = None
        return True

    def remove(self, connection: _Connection) -> None:
        """Forget a connection that has ended."""
        self._connections.pop(connection, None)

    def start_page(self, request: Request) -> asyncio.Task[Response]:
        """Begin to answer `request`."""
        return self._tasks.spawn(f"http {request.path[:80]!r}", self._page(request))

    async def _page(self, request: Request) -> Response:
        page = self._pages.get(request.path)
        if page is None:
            return text_response(404, "here: " + " ".join(self._pages))
        return await page(request)
