"""One connection to one node: frames, correlation, a bound on requests in flight, deadlines.

Knows no message: callers give a function that encodes a request for a correlation id and get the
response frame back (without its length, header included). Answers come in the order of requests,
as the protocol promises; anything else closes the connection. Everything runs on the loop that is
passed in. TLS comes from an SSLContext, SASL from a hook that runs before the first caller.

`call` is awaited; `send_request` takes callbacks and needs no future, for those who send thousands.
"""

import asyncio
import os
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from ssl import SSLContext, SSLError
from typing import cast

from dlog.address import Address
from dlog.errors import (
    ConnectFailedError,
    DisconnectedError,
    ProtocolError,
    RequestTimedOutError,
    TransportError,
)
from dlog.outgoing import Outgoing
from dlog.pipeline import Encode, OnError, OnResponse, Pipeline, Request, TransportCounters
from dlog.wire.frame import FRAME_BYTES_MAX, FrameReceiver

__all__ = [
    "Address",
    "Connection",
    "ConnectionOptions",
    "Encode",
    "OnError",
    "OnResponse",
    "Request",
    "TransportCounters",
    "connect",
]

_CORRELATION_ID = struct.Struct(">i")

_CANNOT_ENCODE = (ValueError, TypeError, ArithmeticError, LookupError, struct.error)


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


def _again(
    error: TransportError | ProtocolError, *, was_sent: bool = True
) -> TransportError | ProtocolError:
    """Return the same error anew: one instance raised in many tasks gathers their tracebacks."""
    if was_sent:
        return type(error)(*error.args)
    # Whatever ended the connection: this request was not on it.
    unsent = DisconnectedError(*error.args)
    unsent.was_sent = False
    return unsent


def _reason_of(error: OSError | ValueError) -> str:
    # OpenSSL counts errors by itself; a ValueError is of a host name that is none.
    number = 0 if isinstance(error, SSLError | ValueError) else error.errno or 0
    said = os.strerror(number) if number > 0 else getattr(error, "strerror", "") or str(error)
    return said or "it ended the handshake without a word: perhaps it speaks no TLS"


class Connection(asyncio.BufferedProtocol):
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
        self._receiver = FrameReceiver(options.frame_bytes_max)
        self._pipeline = Pipeline(options.inflight_max)
        self._outgoing = Outgoing(loop)
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
    def failure(self) -> str | None:
        """Why it is not open any more; None while it is."""
        return None if self._failure is None else str(self._failure)

    @property
    def inflight_count(self) -> int:
        """Requests that wait for their answer."""
        return self._pipeline.inflight_count

    @property
    def first_inflight(self) -> Request | None:
        """The request that is answered next; None when nothing is in flight."""
        return self._pipeline.first_inflight

    @property
    def waiting_count(self) -> int:
        """Requests that wait for their turn."""
        return self._pipeline.waiting_count

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for anything on it."""
        return not (self.inflight_count + self.waiting_count) and self._outgoing.is_empty

    @property
    def has_ended(self) -> bool:
        """Whether the socket is closed, too."""
        return self._closed.done()

    @property
    def has_room(self) -> bool:
        """Whether a request would be sent at once."""
        return self._failure is None and self._may_send() and not self._pipeline.waiting_count

    def send_request(
        self,
        encode: Encode,
        on_response: OnResponse,
        on_error: OnError,
        deadline: float,
        *,
        answered: bool = True,
        is_wanted: Callable[[], bool] | None = None,
    ) -> Request:
        """Send a request, now or when it is its turn; `deadline` is in the loop's time.

        Exactly one of the callbacks is called later, from the loop. `on_error` gets
        DisconnectedError or RequestTimedOutError (whether the request took effect is unknown then
        if it `was_sent`), ProtocolError (the same; the connection is closed), or what `encode`
        raised. With `answered` false (produce with acks 0) `on_response` gets nothing, when its
        bytes have left. `is_wanted` is asked before a request that had to wait is sent.
        """
        request = Request(
            encode=encode,
            on_response=on_response,
            on_error=on_error,
            deadline=deadline,
            patience_s=max(0.0, deadline - self._loop.time()),
            answered=answered,
        )
        if is_wanted is not None:
            request.is_wanted = is_wanted
        if self._failure is not None:
            self._refuse(request, _again(self._failure, was_sent=False))
        elif self.has_room:
            self._start(request)
        else:
            self._pipeline.wait(request)
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
        result: asyncio.Future[memoryview] = self._loop.create_future()

        def on_response(frame: memoryview) -> None:
            if not result.done():
                result.set_result(frame)

        def on_error(error: Exception) -> None:
            if not result.done():
                result.set_exception(error)

        wait_s = self.options.request_timeout_s if timeout_s is None else timeout_s
        deadline = self._loop.time() + wait_s
        request = self.send_request(
            encode,
            on_response,
            on_error,
            deadline,
            answered=answered,
            is_wanted=lambda: not result.done(),
        )
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
        return self._writable and self._pipeline.has_room

    def _start(self, request: Request) -> None:
        """Encode and write a request whose turn it is."""
        frame = request.encode(self._pipeline.next_correlation_id)
        self._pipeline.start(request)
        self.counters.requests_sent += 1
        self.counters.bytes_sent += memoryview(frame).nbytes
        if request.answered:
            self._watch(request.deadline)
        else:
            self._outgoing.add(request, self._transport)
        if self._transport is not None:
            self._transport.write(frame)

    def _start_waiting(self) -> None:
        """Start as many requests as may be sent now."""
        while self._writable and (request := self._pipeline.take_waiting()) is not None:
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
            self._fail(DisconnectedError(f"{self.address} stopped reading"))
            return
        due = self._pipeline.expire(now)
        for request in due.unsent:
            late = RequestTimedOutError(f"too many requests in flight to {self.address}")
            late.was_sent = False
            self._refuse(request, late)
        message = f"no answer from {self.address} in time"
        for request in due.unanswered:
            self._refuse(request, RequestTimedOutError(message))
        if due.is_stuck:
            self._fail(DisconnectedError(f"closed the connection to {self.address}: {message}"))
            return
        if (upcoming := self._pipeline.next_deadline(now)) is not None:
            self._watch(upcoming)
        if not self._writable:
            self._watch(self._stalled_at)

    # Responses

    def _on_frame(self, frame: memoryview) -> None:
        if len(frame) < _CORRELATION_ID.size:
            raise ProtocolError(f"a response of {len(frame)} bytes")
        (correlation_id,) = _CORRELATION_ID.unpack_from(frame)
        request = self._pipeline.answer(correlation_id, self._loop.time())
        self.counters.responses_received += 1
        if request.is_over:  # the caller has left, or was told that it is too late
            return
        request.is_over = True
        try:
            request.on_response(frame)
        except ProtocolError as error:
            self._loop.call_soon(request.on_error, _again(error))
            raise

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
        for request in [*self._outgoing.clear(), *self._pipeline.clear()]:
            self._refuse(request, _again(error, was_sent=request.was_sent))
        if self._transport is None and not self._closed.done():
            self._closed.set_result(None)

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not of asyncio's class.
        stream = self._transport = cast(asyncio.Transport, transport)
        if self._failure is not None:
            stream.abort()

    def get_buffer(self, _sizehint: int) -> memoryview:
        return self._receiver.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.counters.bytes_received += nbytes
        try:
            for frame in self._receiver.received(nbytes):
                self._on_frame(frame)
        except ProtocolError as error:
            self._fail(ProtocolError(f"{self.address} sent invalid data: {error}"))
            return
        if (first := self._pipeline.first_deadline) is not None:
            self._watch(first)  # its deadline may have been extended
        self._start_waiting()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        reason = "" if error is None else f": {error}"
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
                server_hostname=address.tls_name if options.tls is not None else None,
            )
            if options.authenticate is not None:
                await options.authenticate(connection)
        usable = True
    except TimeoutError as error:
        raise ConnectFailedError(f"cannot connect to {address}: no answer in time") from error
    except (OSError, ValueError) as error:
        raise ConnectFailedError(f"cannot connect to {address}: {_reason_of(error)}") from error
    finally:
        if not usable:
            connection.close()
    return connection
