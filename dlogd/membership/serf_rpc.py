"""Connection to the RPC port of a Serf agent (protocol version 1).

A stream of msgpack maps in both directions, on loopback:

    request  := {Command, Seq} [body]
    response := {Seq, Error} [body]         body by command; also behind some errors
    event    := {Seq, Error} record         Seq is that of the `stream` command

Whatever is not this ends the connection. Knows nothing of members; `dlogd.membership.serf` calls.
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import Any, Self, cast

import msgpack

from dlog.errors import DlogError
from dlog.transport import Address

MESSAGE_BYTES_MAX = 16 * 1024 * 1024
"""More than the members of some ten thousand agents."""
CALLS_MAX = 16
VERSION = 1
EVENTS = "member-join,member-leave,member-failed,member-update,member-reap"

_WITH_BODY = frozenset({"members", "join", "stats"})

OnEvent = Callable[[], None]


class SerfError(DlogError):
    """The agent cannot be asked, or said something that is no answer: connect anew."""


class SerfRefusedError(SerfError):
    """The agent answered with an error; the connection is still good."""


class SerfRpc(asyncio.Protocol):
    """An open connection. Owner: the loop's thread. Life: `connect`, then `close`.

    Record contents of the event stream are passed over: events come late, twice and out of date
    (hashicorp/serf#555), so each one only says that the members are worth another look.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout_s: float) -> None:
        self.on_event: OnEvent | None = None
        self._loop = loop
        self._timeout_s = timeout_s
        self._transport: asyncio.Transport | None = None
        # Keys are bytes and nothing is decoded: tags may hold any bytes.
        self._unpacker = msgpack.Unpacker(
            raw=True, use_list=True, strict_map_key=True, max_buffer_size=MESSAGE_BYTES_MAX
        )
        self._sequence = 0
        self._stream_sequence = -1
        self._calls: dict[int, tuple[bool, asyncio.Future[Any]]] = {}
        # Who gets the next object, when it is a body: a call, or nobody (`None` inside).
        self._body_for: tuple[asyncio.Future[Any] | None] | None = None
        self._error_was_last = False
        self._failure: str | None = None
        self.closed: asyncio.Future[str] = loop.create_future()
        """Done with the reason when the connection has ended."""

    @classmethod
    async def connect(
        cls,
        loop: asyncio.AbstractEventLoop,
        address: Address,
        *,
        auth_key: str | None,
        timeout_s: float,
    ) -> Self:
        """Connect and make ourselves known; raise SerfError."""
        connection = cls(loop, timeout_s)
        usable = False
        try:
            async with asyncio.timeout(timeout_s):
                await loop.create_connection(lambda: connection, address.host, address.port)
                await connection.call("handshake", {"Version": VERSION})
                if auth_key is not None:
                    await connection.call("auth", {"AuthKey": auth_key})
            usable = True
        except TimeoutError:
            raise SerfError(f"no answer from the agent at {address} in time") from None
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise SerfError(f"cannot connect to the agent at {address}: {reason}") from error
        finally:
            if not usable:
                connection.close()
        return connection

    # -- commands

    async def members(self) -> list[dict[bytes, Any]]:
        """Return all members as the agent sees them."""
        body = await self.call("members")
        found = body.get(b"Members")
        if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
            raise self._fail_with("members without a list of them")
        return found

    async def set_tags(self, tags: Mapping[str, str], deleted: list[str]) -> None:
        """Set tags of the agent's own member; others stay, but for the deleted."""
        await self.call("tags", {"Tags": dict(tags), "DeleteTags": deleted})

    async def join(self, addresses: list[str]) -> int:
        """Join through these agents (`host:port`); return through how many it went."""
        body = await self.call("join", {"Existing": addresses, "Replay": False})
        count = body.get(b"Num")
        return count if isinstance(count, int) else 0

    async def own_name(self) -> str:
        """Return the name of the agent's own member."""
        body = await self.call("stats")
        agent = body.get(b"agent")
        name = agent.get(b"name") if isinstance(agent, dict) else None
        if not isinstance(name, bytes):
            raise self._fail_with("stats without the agent's name")
        return name.decode("utf-8", "replace")

    async def subscribe(self, on_event: OnEvent) -> None:
        """Call `on_event` after each member event from now on."""
        self.on_event = on_event
        self._stream_sequence = self._sequence + 1
        await self.call("stream", {"Type": EVENTS})

    async def call(self, command: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send a command and return its answer's body, {} for those that have none.

        Raises SerfRefusedError, and SerfError when the connection has failed or the time is over:
        it is closed then, for later answers could not be told from the late one's.
        """
        self._check_open()
        if len(self._calls) >= CALLS_MAX:
            raise SerfRefusedError(f"more than {CALLS_MAX} calls at once")
        self._sequence += 1
        sequence = self._sequence
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._calls[sequence] = (command in _WITH_BODY, answer)
        head = msgpack.packb({"Command": command, "Seq": sequence})
        # The agent's decoder is of msgpack's first specification: no `bin`, no `str8`.
        sent = b"" if body is None else msgpack.packb(dict(body), use_bin_type=False)
        assert self._transport is not None
        self._transport.write(head + sent)
        timer = self._loop.call_later(self._timeout_s, self._on_deadline, command, answer)
        try:
            return await answer
        finally:
            timer.cancel()
            self._calls.pop(sequence, None)

    def _on_deadline(self, command: str, answer: asyncio.Future[Any]) -> None:
        if not answer.done():
            self._fail(f"no answer to {command} in time")

    # -- what comes

    def _on_object(self, found: object) -> None:
        if not isinstance(found, dict):
            raise SerfError(f"the agent sent {type(found).__name__} where a map belongs")
        if self._body_for is not None:
            (answer,) = self._body_for
            self._body_for = None
            if answer is not None and not answer.done():
                answer.set_result(found)
            elif answer is None and self.on_event is not None:
                self.on_event()
        elif b"Seq" in found:
            self._on_header(found)
        elif self._error_was_last:
            self._error_was_last = False  # `join` says how far it came also when it failed
        else:
            raise SerfError("the agent sent a body that nobody waits for")

    def _on_header(self, header: dict[bytes, Any]) -> None:
        sequence, error = header.get(b"Seq"), header.get(b"Error", b"")
        if not isinstance(sequence, int) or not isinstance(error, bytes):
            raise SerfError("the agent sent a malformed header")
        self._error_was_last = bool(error)
        call = self._calls.pop(sequence, None)
        if call is None:
            if sequence != self._stream_sequence:
                raise SerfError(f"the agent answered {sequence}, which nobody asked")
            if not error:
                self._body_for = (None,)
            return
        has_body, answer = call
        if error:
            if not answer.done():
                answer.set_exception(SerfRefusedError(error.decode("utf-8", "replace")))
        elif has_body:
            self._body_for = (answer,)
        elif not answer.done():
            answer.set_result({})

    # -- the end

    def _check_open(self) -> None:
        if self._failure is not None:
            raise SerfError(self._failure)

    def _fail_with(self, reason: str) -> SerfError:
        self._fail(reason)
        return SerfError(reason)

    def _fail(self, reason: str) -> None:
        if self._failure is not None:
            return
        self._failure = reason
        if self._transport is not None:
            self._transport.abort()
        waiting = [answer for _, answer in self._calls.values()]
        if self._body_for is not None and self._body_for[0] is not None:
            waiting.append(self._body_for[0])
        for answer in waiting:
            if not answer.done():
                answer.set_exception(SerfError(reason))
        self._calls.clear()
        self._body_for = None
        if not self.closed.done():
            self.closed.set_result(reason)

    def close(self) -> None:
        """Close; calls under way fail. Idempotent."""
        self._fail("closed here")

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport (uvloop's do not derive from asyncio's)."""
        self._transport = cast(asyncio.Transport, transport)
        if self._failure is not None:
            transport.abort()  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        """Take bytes of any number of objects."""
        try:
            self._unpacker.feed(data)
            for each in self._unpacker:
                if self._failure is not None:
                    return
                self._on_object(each)
        except (msgpack.UnpackException, ValueError, TypeError, SerfError) as error:
            self._fail(str(error) or f"the agent sent no msgpack: {error!r}")

    def connection_lost(self, error: Exception | None) -> None:
        """Fail what waits."""
        self._fail(f"the agent closed the connection{f': {error}' if error else ''}")
        self._transport = None
