"""One connection to one node: frames, correlation, a bound on requests in flight, deadlines.

Knows no message: callers give a function that encodes a request for a correlation id and get the
response frame back (without its length, header included). Answers come in the order of requests,
as the protocol promises; anything else closes the connection. Everything runs on the loop that is
passed in. TLS comes from an SSLContext, SASL from a hook that runs before the first caller.
"""

import asyncio
import os
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
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


def _again(error: TransportError | ProtocolError) -> TransportError | ProtocolError:
    """Return the same error anew: one instance raised in many tasks gathers their tracebacks."""
    return type(error)(*error.args)


def _reason_of(error: OSError) -> str:
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error)


class _Call:
    """One request in flight, in the order in which they were sent."""

    __slots__ = ("correlation_id", "result", "timer")

    def __init__(self, correlation_id: int, result: "asyncio.Future[memoryview]") -> None:
        self.correlation_id = correlation_id
        self.result = result
        self.timer: asyncio.TimerHandle | None = None


class Connection(asyncio.Protocol):
    """An open connection; made by `connect`. Owner: the loop's thread. Life: until `close`.

    Invariant: at most `inflight_max` requests wait for an answer; further callers wait their turn.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, address: Address, options: ConnectionOptions
    ) -> None:
        self.address = address
        self.options = options
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._splitter = FrameSplitter(options.frame_bytes_max)
        self._calls: deque[_Call] = deque()
        self._turns: deque[asyncio.Future[None]] = deque()
        self._granted_count = 0  # turns given whose callers have not run yet
        self._correlation_id = 0
        self._writable = True
        self._failure: TransportError | ProtocolError | None = None
        self._closed: asyncio.Future[None] = loop.create_future()

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._failure is None

    @property
    def inflight_count(self) -> int:
        """Requests that wait for their answer."""
        return len(self._calls)

    async def call(self, encode: Encode, timeout_s: float | None = None) -> memoryview:
        """Send a request and return its response frame, header included.

        Raises DisconnectedError or RequestTimedOutError: whether the request took effect is unknown
        then. A time-out closes the connection, for what follows would wait behind the lost answer.
        """
        timeout_s = self.options.request_timeout_s if timeout_s is None else timeout_s
        deadline = self._loop.time() + timeout_s
        await self._take_turn(deadline)
        correlation_id = self._next_correlation_id()
        call = _Call(correlation_id, self._loop.create_future())
        call.timer = self._loop.call_at(deadline, self._on_deadline, call)
        self._calls.append(call)
        self._write(encode(correlation_id))
        try:
            return await call.result
        finally:
            call.timer.cancel()

    async def send(self, encode: Encode, timeout_s: float | None = None) -> None:
        """Send a request that has no response (produce with acks 0)."""
        timeout_s = self.options.request_timeout_s if timeout_s is None else timeout_s
        await self._take_turn(self._loop.time() + timeout_s)
        self._write(encode(self._next_correlation_id()))
        self._give_turns()

    def close(self) -> None:
        """Close; what is in flight fails with DisconnectedError. Idempotent."""
        self._fail(DisconnectedError(f"connection to {self.address} was closed here"))

    async def wait_closed(self) -> None:
        """Return when the connection has ended, for whatever reason."""
        await asyncio.shield(self._closed)

    # Turns: who may send next.

    async def _take_turn(self, deadline: float) -> None:
        self._check_open()
        if not self._turns and self._may_send():
            return
        turn = self._loop.create_future()
        self._turns.append(turn)
        timer = self._loop.call_at(deadline, self._on_turn_deadline, turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                # It was our turn: it is the next one's now.
                self._granted_count -= 1
                self._give_turns()
            raise
        finally:
            timer.cancel()
        self._granted_count -= 1
        self._check_open()

    def _may_send(self) -> bool:
        used = len(self._calls) + self._granted_count
        return self._writable and used < self.options.inflight_max

    def _give_turns(self) -> None:
        """Wake as many callers as may send now."""
        while self._turns and self._may_send():
            turn = self._turns.popleft()
            if not turn.done():
                turn.set_result(None)
                self._granted_count += 1

    def _on_turn_deadline(self, turn: "asyncio.Future[None]") -> None:
        if not turn.done():
            message = f"no free place on the connection to {self.address} in time"
            turn.set_exception(RequestTimedOutError(message))

    # Requests and responses.

    def _next_correlation_id(self) -> int:
        self._check_open()
        self._correlation_id = (self._correlation_id + 1) % _CORRELATION_ID_END
        return self._correlation_id

    def _check_open(self) -> None:
        if self._failure is not None:
            raise _again(self._failure)

    def _write(self, frame: Buffer) -> None:
        if self._transport is not None:
            self._transport.write(frame)

    def _on_deadline(self, call: _Call) -> None:
        if call.result.done():
            return
        error = RequestTimedOutError(f"no answer from {self.address} in time")
        call.result.set_exception(error)
        self._fail(DisconnectedError(f"connection to {self.address} given up: {error}"))

    def _on_frame(self, frame: memoryview) -> None:
        if len(frame) < _CORRELATION_ID.size or not self._calls:
            raise ProtocolError(f"{self.address} sent a response to no request")
        (correlation_id,) = _CORRELATION_ID.unpack_from(frame)
        call = self._calls[0]
        if call.correlation_id != correlation_id:
            raise ProtocolError(
                f"{self.address} answered request {correlation_id}, "
                f"but the next was {call.correlation_id}"
            )
        self._calls.popleft()
        if not call.result.done():  # else the caller was cancelled
            call.result.set_result(frame)

    def _fail(self, error: TransportError | ProtocolError) -> None:
        """End the connection; everybody who waits on it hears `error`."""
        if self._failure is not None:
            return
        self._failure = error
        if self._transport is not None:
            self._transport.abort()
        for call in self._calls:
            if call.timer is not None:
                call.timer.cancel()
            if not call.result.done():
                call.result.set_exception(_again(error))
        self._calls.clear()
        for turn in self._turns:
            if not turn.done():
                turn.set_exception(_again(error))
        self._turns.clear()
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
        try:
            for frame in self._splitter.feed(memoryview(data)):
                self._on_frame(frame)
        except ProtocolError as error:
            self._fail(error)
            return
        self._give_turns()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        reason = f": {error}" if error is not None else ""
        self._fail(DisconnectedError(f"connection to {self.address} was lost{reason}"))
        if not self._closed.done():
            self._closed.set_result(None)

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._give_turns()


async def connect(
    loop: asyncio.AbstractEventLoop, address: Address, options: ConnectionOptions | None = None
) -> Connection:
    """Open a connection; raise ConnectFailedError, whose cause says why."""
    options = options or ConnectionOptions()
    connection = Connection(loop, address, options)
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
