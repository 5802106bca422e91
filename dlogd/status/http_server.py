"""HTTP/1.1 server for operators: strict limits, no framework.

Knows no page: `dlogd.status.pages` gives it the routes. Every connection has one timer: for a whole
request head, for the answer, for a reader that does not read, or for silence between requests.
`dlogd.status.http_room` says which connection gives way when there are too many.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

from dlogd.net import listen_sockets
from dlogd.net.connection_admission import address_of
from dlogd.runtime.tasks import Tasks
from dlogd.status.http_heads import (
    END_OF_HEAD,
    HttpError,
    Page,
    Request,
    Response,
    encode_response,
    parse_head,
    text_response,
)
from dlogd.status.http_hosts import HostCheck
from dlogd.status.http_room import Room, State
from dlogd.telemetry.http_metrics import HttpMetrics

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one client may cost."""

    head_bytes_max: int = 8192
    connections_max: int = 64
    connections_per_ip_max: int = 8
    requests_max: int = 100  # of one connection
    head_timeout_s: float = 5.0
    answer_timeout_s: float = 30.0
    idle_timeout_s: float = 75.0
    age_max_s: float = 600.0


class _Connection(asyncio.Protocol):
    """One client. At most one request is being answered; what follows it waits in `_received`."""

    def __init__(self, server: "HttpServer") -> None:
        self._server = server
        self._received = bytearray()
        self._task: asyncio.Task[Response] | None = None
        self._request: Request | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._draining = False
        self._requests_left = server.limits.requests_max
        self._ends_at_s = server.loop.time() + server.limits.age_max_s
        self.since_s = server.loop.time()
        self.peer = ""
        self.transport: asyncio.Transport | None = None

    @property
    def state(self) -> State:
        """What the connection does now."""
        if self._task is not None or self._draining:
            return State.BUSY
        return State.UNFINISHED if self._received else State.SILENT

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's do not derive from it
        self.transport = transport
        transport.set_write_buffer_limits(high=0)
        self.peer = address_of(str((transport.get_extra_info("peername") or ("",))[0]))
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
            self.since_s = self._server.loop.time()
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

    def give_way(self) -> None:
        """Close the connection, on which no request is under way."""
        self._disarm()
        if self.transport is not None:
            self.transport.close()

    def _arm(self, timeout_s: float) -> None:
        self._disarm()
        self._timer = self._server.loop.call_later(timeout_s, self.close)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _be_silent(self) -> None:
        """Wait for the next request, until the connection is too old."""
        self.since_s = self._server.loop.time()
        left_s = max(0.0, self._ends_at_s - self.since_s)
        self._arm(min(self._server.limits.idle_timeout_s, left_s))

    def _next_request(self) -> None:
        """Begin the next request if its head is whole."""
        limits = self._server.limits
        end = self._received.find(END_OF_HEAD)
        try:
            if max(end, len(self._received) if end < 0 else 0) > limits.head_bytes_max:
                raise HttpError(431, "request head too large")
            if end < 0:
                if not self._received:
                    self._be_silent()
                return
            head = bytes(self._received[:end])
            del self._received[: end + len(END_OF_HEAD)]
            request = parse_head(head)
            self._server.hosts.check(request, self.peer, self._server.loop.time())
        except HttpError as error:
            self._request = None
            self._answer(text_response(error.status, str(error)))
            return
        self._request = request
        self._requests_left -= 1
        self._arm(limits.answer_timeout_s)
        self._task = self._server.start_page(request)
        self._task.add_done_callback(self._on_page)

    def _on_page(self, task: asyncio.Task[Response]) -> None:
        self._task = None
        if task.cancelled() or self.transport is None:
            return
        # The failure itself has been logged by `dlogd.runtime.tasks`.
        failed = task.exception() is not None
        self._answer(text_response(500, "internal error") if failed else task.result())

    def _answer(self, response: Response) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        request = self._request
        keep_alive = request is not None and request.keep_alive and self._may_go_on()
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

    def _may_go_on(self) -> bool:
        return self._requests_left > 0 and self._server.loop.time() < self._ends_at_s


class HttpServer:
    """Listens on one address and answers from a table of pages.

    Owner: the event loop's thread. Life: `start` once, `close` once.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        pages: Mapping[str, Page],
        limits: Limits | None = None,
        *,
        names: Iterable[str] = ("localhost",),
        metrics: HttpMetrics | None = None,
    ) -> None:
        """`names`: what requests may call this node; IP addresses need no mention."""
        self.loop = loop
        self.limits = limits or Limits()
        self.metrics = metrics or HttpMetrics()
        self.hosts = HostCheck(names, self.metrics)
        self._pages = pages
        self._tasks = Tasks()
        self._room: Room[_Connection] = Room(self.metrics)
        self._server: asyncio.AbstractServer | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port, which the system chose when `port` is 0. Raises OSError."""
        self._server, bound = await listen_sockets.bind(
            self.loop, lambda: _Connection(self), host, port
        )
        return bound

    async def close(self) -> None:
        """Stop listening and cut all connections. Idempotent."""
        if self._server is not None:
            self._server.close()
        self._server = None
        for connection in self._room.connections():
            connection.close()
        await self._tasks.close()

    def add(self, connection: _Connection) -> bool:
        """Take a new connection in; False when there is no room."""
        return self._room.take(
            connection,
            max_count=self.limits.connections_max,
            per_ip_max=self.limits.connections_per_ip_max,
        )

    def remove(self, connection: _Connection) -> None:
        """Forget a connection that has ended."""
        self._room.leave(connection)

    def start_page(self, request: Request) -> asyncio.Task[Response]:
        """Begin to answer `request`."""
        return self._tasks.spawn(f"http {request.path[:80]!r}", self._page(request))

    async def _page(self, request: Request) -> Response:
        page = self._pages.get(request.path)
        if page is None:
            return text_response(404, "here: " + " ".join(self._pages))
        return await page(request)
