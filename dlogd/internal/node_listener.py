"""Listener for requests between nodes: few connections, small frames, answers at once.

Nothing here waits: a request is answered before the next one of its connection is looked at, so
heartbeats are never behind anything. What a peer sends is bounded in size and number.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

from dlog.errors import ProtocolError
from dlog.wire.frame import FrameSplitter, RequestHeader, parse_request_header
from dlogd.internal import messages
from dlogd.internal.node_channel import Seals
from dlogd.net import foreign_protocols, listen_sockets
from dlogd.net.acceptor import Admitted
from dlogd.net.connection_admission import Place
from dlogd.net.peer_acceptor import PeerAcceptor
from dlogd.net.peer_refusals import PeerRefusals, Reason
from dlogd.runtime.log_events import Event

log = logging.getLogger(__name__)

FRAME_BYTES_MAX = 64 * 1024
CONNECTIONS_MAX = 4096
"""Proven or not."""
BACKLOG = 1024
COMPLAINTS_MAX = 20
COMPLAINTS_S = 60.0
"""So many warnings about peers in so much time; the rest is for `log.level: debug`."""
UNSENT_BYTES_MAX = 64 * 1024
"""Answers that a peer leaves untaken before its connection is closed."""


class RefusedHelloError(ProtocolError):
    """The hello is of another cluster; `answer` is the last frame that the peer gets."""

    def __init__(self, message: str, answer: bytes) -> None:
        super().__init__(message)
        self.answer = answer


class Service(Protocol):
    """Who answers."""

    def handle(
        self, connection: object, header: RequestHeader, buffer: memoryview, end: int
    ) -> bytes:
        """Answer a request with a whole frame; raise ProtocolError to close the connection."""

    def on_closed(self, connection: object) -> None:
        """Learn that the connection has ended, for whatever reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """What a peer must prove before it is served."""

    secret: bytes
    cluster_id: str
    new_nonce: Callable[[], bytes]

    def meet(self, header: RequestHeader, payload: memoryview) -> tuple[bytes, Seals]:
        """Answer a hello; return the frame and the keys.

        Raises RefusedHelloError for a peer of another cluster, ProtocolError for anything else.
        """
        if header.api_key != messages.HELLO or header.api_version != messages.VERSION:
            raise ProtocolError("a request before a hello")
        told = messages.decode_hello(payload, header.body_position, len(payload))
        if told != self.cluster_id:
            code = messages.INCONSISTENT_CLUSTER_ID
            raise RefusedHelloError(
                f"it is of cluster {told!r}",
                messages.encode_hello_refusal(code, header.correlation_id),
            )
        answer = messages.encode_hello_answer(self.new_nonce(), header.correlation_id)
        return answer, Seals(self.secret, bytes(payload), answer[4:], dialled=False)


class Adopter(Protocol):
    """Who takes over connections after the introduction: of followers, or for other requests."""

    def adopt(
        self, header: RequestHeader, payload: memoryview, peer: str
    ) -> tuple[bytes, asyncio.BufferedProtocol | None]:
        """Return an answer's frame and who goes on with the connection. Raises ProtocolError."""

    def stop(self) -> None:
        """Close all of them."""


class NodeListener:
    """One listening address. Life: `start`, then `stop` once."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        service: Service,
        *,
        idle_timeout_s: float,
        door: "Door | None" = None,
    ) -> None:
        """Without `door` anybody is served (tests)."""
        self.refused_total = 0
        self.adopters: dict[int, Adopter] = {}
        """By the type of the request that asks for it."""
        self.refusals = PeerRefusals("internal")
        self.service = service
        self.door = door
        self.idle_timeout_s = idle_timeout_s
        self._loop = loop
        self._server: asyncio.AbstractServer | None = None
        self._connections: dict[NodeConnection, None] = {}
        self.entrance = PeerAcceptor(self.refusals, self._now_us, self._admit)
        self._complaints = 0
        self._complaints_since_s = 0.0

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port, which the system chose when `port` is 0."""
        self.entrance.listen_at(host)
        self._server, bound = await listen_sockets.bind(
            self._loop, lambda: self.entrance.first, host, port, backlog=BACKLOG
        )
        return bound

    def _now_us(self) -> int:
        return int(self._loop.time() * 1e6)

    def _admit(self, place: Place[Admitted]) -> "NodeConnection":
        return NodeConnection(self._loop, self, place)

    async def stop(self) -> None:
        """Close the port and all connections.

        From then on a probe is refused, which proves this process dead: give the lease up before.
        """
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.abort(None)
        for adopter in self.adopters.values():
            adopter.stop()

    def on_open(self, connection: "NodeConnection") -> bool:
        """Account for a connection; False refuses it."""
        if len(self._connections) >= CONNECTIONS_MAX:
            self.refused_total += 1
            return False
        self._connections[connection] = None
        return True

    def complaint_level(self) -> int:
        """Return how loud to be about a peer: strangers can break the protocol all the time."""
        now_s = self._loop.time()
        if now_s - self._complaints_since_s >= COMPLAINTS_S:
            self._complaints, self._complaints_since_s = 0, now_s
        self._complaints += 1
        return logging.WARNING if self._complaints <= COMPLAINTS_MAX else logging.DEBUG

    def on_refused(self, connection: "NodeConnection", reason: Reason, detail: str) -> None:
        """Count a peer that is not served."""
        self.refusals.on_refused(reason, connection.host, self._now_us(), detail)

    def on_request(self, connection: "NodeConnection") -> None:
        """Learn that a connection is used: its peer has proven the secret."""
        if not connection.is_proven:
            connection.is_proven = True
            self.entrance.admission.prove(connection.place)

    def on_close(self, connection: "NodeConnection") -> None:
        """Forget a connection."""
        connection.place.leave()
        if connection in self._connections:
            del self._connections[connection]
            self.service.on_closed(connection)


class NodeConnection(asyncio.Protocol):
    """One peer's connection, from accept to close."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, server: NodeListener, place: Place[Admitted]
    ) -> None:
        self.place = place
        self.is_proven = False
        self.peer = self.host = "?"
        self._loop = loop
        self._server = server
        self._splitter = FrameSplitter(FRAME_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._heard_s = loop.time()
        self._seals: Seals | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept, or refuse when there are enough."""
        self._transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("peername")
        if isinstance(name, tuple) and len(name) >= 2:
            self.host = str(name[0])
            self.peer = f"{self.host}:{name[1]}"
        if not self._server.on_open(self):
            self._transport.abort()
            return
        patience_s = min(self._server.idle_timeout_s, self._server.entrance.unproven_s)
        self._idle = self._loop.call_later(patience_s, self._expect_proof)

    def on_displaced(self) -> None:
        """Another address needs the place."""
        self.abort(None)

    def _expect_proof(self) -> None:
        if self.is_proven:
            self._close_idle()
        else:
            self._server.on_refused(self, Reason.SILENT, "")
            self.abort(None)

    def _watch(self, delay_s: float) -> None:
        self._idle = self._loop.call_later(delay_s, self._close_idle)

    def _close_idle(self) -> None:
        left_s = self._heard_s + self._server.idle_timeout_s - self._loop.time()
        if left_s <= 0:
            self.abort(None)
        else:
            self._watch(left_s)

    def data_received(self, data: bytes) -> None:
        """Answer each request that is whole."""
        self._heard_s = self._loop.time()
        try:
            for frame in self._splitter.feed(memoryview(data)):
                transport = self._transport
                if transport is None or transport.is_closing():
                    return
                self._take(transport, frame)
                if transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
                    raise ProtocolError("it does not take its answers")
        except ProtocolError as error:
            # Only what comes before a hello can be the beginning of another protocol.
            why = foreign_protocols.explained(error, b"" if self._seals else data)
            self.abort(Event("Closed connection of a node that broke the protocol", error=why))

    def _take(self, transport: asyncio.Transport, payload: memoryview) -> None:
        server, door = self._server, self._server.door
        if door is not None and self._seals is None:
            self._meet(transport, door, payload)
            return
        if self._seals is not None:
            payload = self._seals.unseal(payload)
        header = parse_request_header(payload, 0, len(payload))
        following = None
        adopter = server.adopters.get(header.api_key)
        if adopter is not None:
            if self._seals is None:
                raise ProtocolError("a node that proves nothing")
            answer, following = adopter.adopt(header, payload, self.peer)
        else:
            answer = server.service.handle(self, header, payload, len(payload))
        transport.write(answer if self._seals is None else self._seals.seal(answer))
        server.on_request(self)
        if following is not None:
            self._hand_over(transport, following)

    def _meet(self, transport: asyncio.Transport, door: Door, payload: memoryview) -> None:
        header = parse_request_header(payload, 0, len(payload))
        try:
            answer, self._seals = door.meet(header, payload)
        except RefusedHelloError as error:
            self._server.on_refused(self, Reason.CLUSTER, str(error))
            transport.write(error.answer)
            transport.close()
            return
        transport.write(answer)

    def _hand_over(self, transport: asyncio.Transport, to: asyncio.BufferedProtocol) -> None:
        """Let somebody else go on with the connection; its peer waits for the answer."""
        self._transport = None
        if self._idle is not None:
            self._idle.cancel()
        self._server.on_close(self)
        # Reading anew makes every kind of transport see what protocol it has now.
        transport.pause_reading()
        transport.set_protocol(to)
        to.connection_made(transport)
        transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        """Tell the service."""
        self._transport = None
        if self._idle is not None:
            self._idle.cancel()
        self._server.on_close(self)

    def abort(self, reason: Event | None) -> None:
        """Close at once; one log line when there is a reason worth it."""
        if reason is not None:
            log.log(self._server.complaint_level(), "%s peer=%s", reason, self.peer)
        self._server.on_close(self)
        if self._transport is not None:
            self._transport.abort()
