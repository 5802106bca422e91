"""One connection to one node: frames, correlation, a bound on requests in flight, deadlines.

Knows no message: callers give a function that encodes a request for a correlation id and get the
response frame back (without its length, header included). Answers come in the order of requests,
as the protocol promises; anything else closes the connection. Everything runs on the loop that is
passed in. TLS comes from an SSLContext, SASL from a hook that runs before the first caller.

Two forms of the same: `call` is awaited; `send_request` takes callbacks and needs no coroutine and
no future, for those who send thousands.
"""

import asyncio
import os
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from ssl import SSLContext
from typing import Self

from dlog.checksum import Buffer
from dlog.errors import (
    ConnectFailedError,
    DisconnectedError,
    ProtocolError,
    RequestTimedOutError,
    TransportError,
)
from dlog.wire.frame import FRAME_BYTES_MAX, FrameSplitter

_CORRELATION_ID = struct.Struct(">i")
_CORRELATION_ID_END = 1 << 31

Encode = Callable[[int], Buffer]
"""Returns the whole frame of a request for the given correlation id."""

OnResponse = Callable[[memoryview], None]
"""Takes the response frame, header included; may raise ProtocolError, nothing else."""

OnError = Callable[[Exception], None]
"""Takes why there is no response; must not raise."""

_EMPTY = memoryview(b"")
_CANNOT_ENCODE = (ValueError, TypeError, ArithmeticError, LookupError, struct.error)


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """Where a node listens; prints as `host:port`."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `host:port` or `[ipv6]:port`; raise ValueError with a message for people."""
        host, colon, port = text.strip().rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ValueError(f"{text!r}: an IPv6 address stands in brackets")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"{text!r} is not host:port")
        return cls(host, int(port))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """How to connect and how much to wait for."""

    client_id: str | None = "dlog"
    inflight_max: int = 5
    connect_timeout_s: float = 10.0
    request_timeout_s: float = 30.0
    frame_bytes_max: int = FRAME_BYTES_MAX
    tls: SSLContext | None = None
    # Runs on a new connection before anybody else may use it (SASL); raises to refuse it.
    authenticate: "Callable[[Connection], Awaitable[None]] | None" = None


@dataclass(slots=True)
class TransportCounters:
    """What went through connections; may be shared by many of them. Each only grows."""

    requests_sent: int = 0
    responses_received: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0

    def as_dict(self) -> dict[str, int]:
        """Return all by name."""
        return asdict(self)


def _again(error: TransportError | ProtocolError) -> TransportError | ProtocolError:
    """Return the same error anew: one instance raised in many tasks gathers their tracebacks."""
    return type(error)(*error.args)


def _reason_of(error: OSError) -> str:
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error)


class Request:
    """One request on a connection: waiting for its turn, in flight, or over.

    Exactly one of its callbacks is called, once, unless it is cancelled before.
    """

    __slots__ = (
        "answered",
        "correlation_id",
        "deadline",
        "encode",
        "is_over",
        "on_error",
        "on_response",
        "patience_s",
        "result",
    )

    def __init__(
        self,
        encode: Encode,
        on_response: OnResponse,
        on_error: OnError,
        deadline: float,
        patience_s: float,
        answered: bool,
    ) -> None:
        self.encode = encode
        self.on_response = on_response
        self.on_error = on_error
        self.deadline = deadline
        # What the node gets for the answer when this is first in line only after its deadline.
        self.patience_s = patience_s
        self.answered = answered
        self.correlation_id = -1
        self.is_over = False
        self.result: asyncio.Future[memoryview] | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether somebody still waits for the answer."""
        return not self.is_over and (self.result is None or not self.result.done())

    def cancel(self) -> None:
        """Call nobody back. A request in flight keeps its place until its answer or deadline."""
        self.is_over = True


class Connection(asyncio.Protocol):
    """An open connection; made by `connect`. Owner: the loop's thread. Life: until `close`.

    Invariant: at most `inflight_max` requests wait for an answer; further ones wait their turn.
    Invariant: while anything waits, a timer runs that ends it at its deadline.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        address: Address,
        options: ConnectionOptions,
        counters: TransportCounters | None = None,
    ) -> None:
        self.address = address
        self.options = options
        self.counters = counters or TransportCounters()
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._splitter = FrameSplitter(options.frame_bytes_max)
        self._inflight: deque[Request] = deque()
        self._waiting: deque[Request] = deque()
        self._correlation_id = 0
        self._writable = True
        self._stalled_at = 0.0  # when a peer that takes no bytes is given up
        self._timer: asyncio.TimerHandle | None = None
        self._failure: TransportError | ProtocolError | None = None
        self._closed: asyncio.Future[None] = loop.create_future()

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._failure is None

    @property
    def inflight_count(self) -> int:
        """Requests that wait for their answer."""
        return len(self._inflight)

    @property
    def waiting_count(self) -> int:
        """Requests that wait for their turn."""
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for anything on it."""
        return not self._inflight and not self._waiting

    @property
    def has_ended(self) -> bool:
        """Whether the socket is closed, too."""
        return self._closed.done()

    @property
    def has_room(self) -> bool:
        """Whether a request would be sent at once."""
        return not self._waiting and self._may_send() and self._failure is None

    def send_request(
        self,
        encode: Encode,
        on_response: OnResponse,
        on_error: OnError,
        deadline: float,
        *,
        answered: bool = True,
    ) -> Request:
        """Send a request, now or when it is its turn; `deadline` is in the loop's time.

        Exactly one of the callbacks is called later, from the loop. `on_error` gets
        DisconnectedError or RequestTimedOutError (whether the request took effect is unknown
        then), ProtocolError (this connection is closed), or what `encode` raised. With `answered`
        false (produce with acks 0) `on_response` gets nothing, when the request was written.
        """
        patience_s = max(0.0, deadline - self._loop.time())
        request = Request(encode, on_response, on_error, deadline, patience_s, answered)
        if self._failure is not None:
            self._refuse(request, _again(self._failure))
        elif not self._waiting and self._may_send():
            self._start(request)
        else:
            self._waiting.append(request)
            self._watch(deadline)
        return request

    async def call(self, encode: Encode, timeout_s: float | None = None) -> memoryview:
        """Send a request and return its response frame, header included.

        Raises what `send_request` hands to `on_error`.
        """
        return await self._exchange(encode, timeout_s, answered=True)

    async def send(self, encode: Encode, timeout_s: float | None = None) -> None:
        """Send a request that has no response (produce with acks 0)."""
        await self._exchange(encode, timeout_s, answered=False)

    async def _exchange(
        self, encode: Encode, timeout_s: float | None, *, answered: bool
    ) -> memoryview:
        timeout_s = self.options.request_timeout_s if timeout_s is None else timeout_s
        result: asyncio.Future[memoryview] = self._loop.create_future()

        def on_response(frame: memoryview) -> None:
            if not result.done():
                result.set_result(frame)

        def on_error(error: Exception) -> None:
            if not result.done():
                result.set_exception(error)

        deadline = self._loop.time() + timeout_s
        request = self.send_request(encode, on_response, on_error, deadline, answered=answered)
        request.result = result
        try:
            return await result
        finally:
            request.cancel()

    def close(self) -> None:
        """Close; what is in flight fails with DisconnectedError. Idempotent."""
        self._fail(DisconnectedError(f"connection to {self.address} was closed here"))

    async def wait_closed(self) -> None:
        """Return when the connection has ended, for whatever reason."""
        await asyncio.shield(self._closed)

    # Requests

    def _may_send(self) -> bool:
        return self._writable and len(self._inflight) < self.options.inflight_max

    def _start(self, request: Request) -> None:
        """Encode and write a request whose turn it is."""
        correlation_id = (self._correlation_id + 1) % _CORRELATION_ID_END
        frame = request.encode(correlation_id)
        self._correlation_id = request.correlation_id = correlation_id
        self.counters.requests_sent += 1
        self.counters.bytes_sent += memoryview(frame).nbytes
        if request.answered:
            self._inflight.append(request)
            self._watch(request.deadline)
        else:
            self._loop.call_soon(_finish, request)
        if self._transport is not None:
            self._transport.write(frame)

    def _start_waiting(self) -> None:
        """Start as many requests as may be sent now."""
        while self._waiting and self._may_send():
            request = self._waiting.popleft()
            if not request.is_wanted:
                continue
            try:
                self._start(request)
            except _CANNOT_ENCODE as error:
                self._refuse(request, error)

    def _refuse(self, request: Request, error: Exception) -> None:
        """Tell why there is no response, from the loop: a callback may send the next request."""
        if not request.is_over:
            request.is_over = True
            self._loop.call_soon(request.on_error, error)

    # Deadlines

    def _watch(self, deadline: float) -> None:
        """See to it that the timer fires at `deadline` or before."""
        if self._timer is not None:
            if self._timer.when() <= deadline:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._on_timer, deadline)

    def _on_timer(self, deadline: float) -> None:
        """End what is due, and watch what is due next."""
        self._timer = None
        now = max(deadline, self._loop.time())  # timers may fire early by the clock's resolution
        if not self._writable and self._stalled_at <= now:
            self._fail(DisconnectedError(f"{self.address} takes no bytes"))
            return
        self._end_waiting(now)
        if self._inflight and self._inflight[0].deadline <= now:
            # What follows would wait behind the lost answer.
            timed_out = RequestTimedOutError(f"no answer from {self.address} in time")
            self._refuse(self._inflight[0], timed_out)
            reason = f"connection to {self.address} given up: {timed_out}"
            self._end_inflight(now)
            self._fail(DisconnectedError(reason))
            return
        self._end_inflight(now)
        due = [request.deadline for request in self._inflight if request.deadline > now]
        due += [request.deadline for request in self._waiting]
        if not self._writable:
            due.append(self._stalled_at)
        if due:
            self._watch(min(due))

    def _end_waiting(self, now: float) -> None:
        """Refuse what is due and was not sent: nothing is lost, and the connection stays."""
        kept: deque[Request] = deque()
        for request in self._waiting:
            if request.deadline > now:
                kept.append(request)
            else:
                message = f"no free place on the connection to {self.address} in time"
                self._refuse(request, RequestTimedOutError(message))
        self._waiting = kept

    def _end_inflight(self, now: float) -> None:
        """Refuse what is due; the connection stays: those in front of it may still be answered."""
        for request in self._inflight:
            if request.deadline <= now:
                message = f"no answer from {self.address} in time"
                self._refuse(request, RequestTimedOutError(message))

    # Responses

    def _on_frame(self, frame: memoryview) -> None:
        if len(frame) < _CORRELATION_ID.size or not self._inflight:
            raise ProtocolError(f"{self.address} sent a response to no request")
        (correlation_id,) = _CORRELATION_ID.unpack_from(frame)
        request = self._inflight[0]
        if request.correlation_id != correlation_id:
            raise ProtocolError(
                f"{self.address} answered request {correlation_id}, "
                f"but the next was {request.correlation_id}"
            )
        self._inflight.popleft()
        self.counters.responses_received += 1
        if self._inflight:
            self._renew_first()
        if request.is_over:  # the caller has left, or was told that it is too late
            return
        request.is_over = True
        try:
            request.on_response(frame)
        except ProtocolError as error:
            self._loop.call_soon(request.on_error, _again(error))
            raise

    def _renew_first(self) -> None:
        """Give a request its time that is over and only now first in line: others held it up."""
        first = self._inflight[0]
        now = self._loop.time()
        if first.deadline <= now:
            first.deadline = now + first.patience_s
            self._watch(first.deadline)

    def _fail(self, error: TransportError | ProtocolError) -> None:
        """End the connection; everybody who waits on it hears `error`."""
        if self._failure is not None:
            return
        self._failure = error
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()
        for request in (*self._inflight, *self._waiting):
            self._refuse(request, _again(error))
        self._inflight.clear()
        self._waiting.clear()
        if self._transport is None and not self._closed.done():
            self._closed.set_result(None)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not isinstance(transport, asyncio.Transport):
            raise TypeError(f"not a stream transport: {transport!r}")
        self._transport = transport
        if self._failure is not None:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        self.counters.bytes_received += len(data)
        try:
            for frame in self._splitter.feed(memoryview(data)):
                self._on_frame(frame)
        except ProtocolError as error:
            self._fail(error)
            return
        self._start_waiting()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        reason = f": {error}" if error is not None else ""
        self._fail(DisconnectedError(f"connection to {self.address} was lost{reason}"))
        if not self._closed.done():
            self._closed.set_result(None)

    def pause_writing(self) -> None:
        self._writable = False
        self._stalled_at = self._loop.time() + self.options.request_timeout_s
        self._watch(self._stalled_at)

    def resume_writing(self) -> None:
        self._writable = True
        self._start_waiting()


def _finish(request: Request) -> None:
    if not request.is_over:
        request.is_over = True
        request.on_response(_EMPTY)


async def connect(
    loop: asyncio.AbstractEventLoop,
    address: Address,
    options: ConnectionOptions | None = None,
    counters: TransportCounters | None = None,
) -> Connection:
    """Open a connection; raise ConnectFailedError, whose cause says why."""
    options = options or ConnectionOptions()
    connection = Connection(loop, address, options, counters)
    usable = False
    try:
        async with asyncio.timeout(options.connect_timeout_s):
            await loop.create_connection(
                lambda: connection,
                address.host,
                address.port,
                ssl=options.tls,
                server_hostname=address.host if options.tls is not None else None,
            )
            if options.authenticate is not None:
                await options.authenticate(connection)
        usable = True
    except TimeoutError as error:
        raise ConnectFailedError(f"cannot connect to {address}: no answer in time") from error
    except OSError as error:
        raise ConnectFailedError(f"cannot connect to {address}: {_reason_of(error)}") from error
    finally:
        if not usable:
            connection.close()
    return connection
