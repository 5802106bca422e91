"""Transport of one Raft node: listener, dials, one connection with each peer.

Two nodes may dial each other at once; both keep the connection that the higher node id dialled.
Peers that cannot be reached are dialled again after a growing pause with jitter. A connection that
brings nothing for a while is closed: a host without power sends no reset. Owner: the Raft loop.
"""

import asyncio
import logging
import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import replace
from uuid import UUID

from dlogd.metadata.raft.connection import Connection
from dlogd.metadata.raft.handshake import (
    NONCE_BYTES,
    OLDER_VERSION,
    PROTOCOL_VERSION,
    SECRET_BYTES_MIN,
    Hello,
    RefusedPeerError,
)
from dlogd.metadata.raft.messages import Message
from dlogd.metadata.raft.peer_log import NEVER_REACHED, UNPROVEN, PeerLog
from dlogd.metadata.raft.timings import RaftTimings
from dlogd.net import listen_sockets
from dlogd.net.acceptor import Admitted
from dlogd.net.connection_admission import Place
from dlogd.net.peer_acceptor import PeerAcceptor
from dlogd.net.peer_refusals import PeerRefusals, Reason
from dlogd.runtime.randomness import Randomness
from dlogd.runtime.tasks import Tasks

log = logging.getLogger(__name__)

BACKLOG = 1024
Target = tuple[str, int]
"""Host and port."""


class RaftTransport:
    """Connections by node id. Life: `start` once, `close` once."""

    def __init__(
        self,
        *,
        hello: Hello,
        secret: bytes,
        randomness: Randomness,
        timings: RaftTimings,
        on_up: Callable[[int, UUID], None],
        on_down: Callable[[int], None],
        on_message: Callable[[int, Message], None],
        server_tls: ssl.SSLContext | None = None,
        client_tls: ssl.SSLContext | None = None,
    ) -> None:
        if len(secret) < SECRET_BYTES_MIN:
            raise ValueError(f"The secret needs at least {SECRET_BYTES_MIN} bytes")
        self._hello = hello
        self._secret = secret
        self._rng, self._entropy = randomness.rng, randomness.entropy
        self._timings = timings
        self._on_up, self._on_down, self._on_message = on_up, on_down, on_message
        self._server_tls, self._client_tls = server_tls, client_tls
        self._server: asyncio.AbstractServer | None = None
        self._tasks = Tasks()
        self._targets: dict[int, tuple[Target, ...]] = {}
        self._diallers: dict[int, asyncio.Task[None]] = {}
        self._connections: dict[int, Connection] = {}
        self._strangers: dict[Connection, asyncio.TimerHandle] = {}
        self._watches: dict[Connection, asyncio.TimerHandle] = {}
        self._complaints = PeerLog()
        self.refusals = PeerRefusals("raft")
        self.entrance = PeerAcceptor(self.refusals, _now_us, self._accept)
        # Of the handshake, with nodes that did not answer the newest one the last time.
        self._versions: dict[int, int] = {}
        self._troubles: dict[int, str] = {}  # of those that are dialled
        self._closed = False
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Listen; raises OSError when the port is taken."""
        loop, tls = asyncio.get_running_loop(), self._server_tls
        self.entrance.listen_at(host)
        self._server, self.port = await listen_sockets.bind(
            loop, lambda: self.entrance.first, host, port, backlog=BACKLOG, ssl=tls
        )

    def set_targets(self, targets: Mapping[int, tuple[Target, ...]]) -> None:
        """Dial these nodes, at each of their places in turn; no longer those that are not named."""
        if self._closed:
            return
        wanted = {n: address for n, address in targets.items() if n != self._hello.node_id}
        for node_id in [n for n in self._diallers if wanted.get(n) != self._targets.get(n)]:
            self._diallers.pop(node_id).cancel()
        self._targets = wanted
        self.entrance.set_known(host for places in wanted.values() for host, _ in places)
        for node_id in sorted(wanted.keys() - self._diallers.keys()):
            self._diallers[node_id] = self._tasks.spawn(f"dial {node_id}", self._dial(node_id))

    def trouble(self, node_id: int) -> str:
        """Say why there is no connection with a node that is dialled."""
        return self._troubles.get(node_id, NEVER_REACHED)

    def send(self, node_id: int, message: Message) -> None:
        """Send to a node, if it is connected."""
        connection = self._connections.get(node_id)
        if connection is not None:
            connection.send(message)

    def drop(self, node_id: int, reason: str) -> None:
        """Close the connection with a node, for what it has sent."""
        connection = self._connections.get(node_id)
        if connection is not None:
            self.on_refused(connection, reason)
            self._forget(connection)
            connection.abort()

    # -- dialling

    async def _dial(self, node_id: int) -> None:
        timings, pause_s = self._timings, self._timings.reconnect_min_s
        if node_id > self._hello.node_id:
            # The other side dials as well; usually one of the two is enough.
            await asyncio.sleep(timings.reconnect_max_s * self._rng.random())
        attempt = 0
        while not self._closed:
            if node_id in self._connections:
                pause_s = timings.reconnect_min_s
            else:
                places = self._targets[node_id]
                await self._try(node_id, places[attempt % len(places)])
                attempt += 1
                # Also when somebody answered: it may be one that refuses us.
                pause_s = min(pause_s * 2, timings.reconnect_max_s)
            await asyncio.sleep(pause_s * (0.5 + self._rng.random()))

    async def _try(self, node_id: int, place: Target) -> None:
        """Dial once. The handshake goes on by itself."""
        host, port = place
        hello = self._new_hello(node_id, self._versions.get(node_id, PROTOCOL_VERSION))
        connection = Connection(self, self._secret, hello)
        loop = asyncio.get_running_loop()
        try:
            # Not `wait_for`, which loses a cancellation that comes with the connection (3.11).
            async with asyncio.timeout(self._timings.handshake_s):
                await loop.create_connection(lambda: connection, host, port, ssl=self._client_tls)
        except (OSError, TimeoutError, ValueError) as error:
            # A ValueError is of a host name that is none.
            log.debug("Could not reach Raft peer=%d error=%r", node_id, error)
            self._troubles[node_id] = f"{host}:{port}: {_reason(error)}"
            return
        if not connection.authenticated:
            # Until it has, or is refused.
            self._troubles.setdefault(node_id, f"{host}:{port}: {UNPROVEN}")
        self._await_proof(connection)

    def _new_hello(self, wanted_id: int, version: int = PROTOCOL_VERSION) -> Hello:
        nonce = self._entropy.token(NONCE_BYTES)
        return replace(self._hello, wanted_id=wanted_id, nonce=nonce, version=version)

    def _accept(self, place: Place[Admitted]) -> Connection:
        connection = Connection(self, self._secret, self._new_hello(-1), place)
        self._await_proof(connection)
        return connection

    def _await_proof(self, connection: Connection) -> None:
        if not connection.authenticated and not connection.closed:
            patience_s = self._timings.handshake_s
            if not connection.dialled:
                patience_s = min(patience_s, self.entrance.unproven_s)
            self._strangers[connection] = asyncio.get_running_loop().call_later(
                patience_s, self._end_unproven, connection
            )

    def _end_unproven(self, connection: Connection) -> None:
        if not connection.dialled:
            self._refuse(connection, Reason.SILENT)
        connection.abort()

    def _refuse(self, connection: Connection, reason: Reason, detail: object = "") -> None:
        """Count a peer that dialled and proved nothing."""
        self.refusals.on_refused(reason, connection.peer_host, _now_us(), str(detail))

    # -- what connections call

    def on_authenticated(self, connection: Connection) -> None:
        """Keep the connection, unless there is a better one."""
        timer = self._strangers.pop(connection, None)
        if timer is not None:
            timer.cancel()
        if connection.place is not None:
            self.entrance.admission.prove(connection.place)
        node_id = connection.peer_id
        present = self._connections.get(node_id)
        if present is not None and self._is_twin(connection, present):
            self.on_refused(connection, "a node with this node.id and another directory is here")
            connection.abort()
            return
        if self._closed or (present is not None and not self._is_better(connection, present)):
            connection.abort()
            return
        if present is not None:
            self._forget(present)
            present.abort()
        if connection.version == OLDER_VERSION:
            log.info("Raft peer speaks an older handshake; upgrade it peer=%d", node_id)
        self._connections[node_id] = connection
        self._troubles.pop(node_id, None)
        self._watch(connection, connection.received_count, connection.sent_count)
        self._complaints.on_connected(node_id, asyncio.get_running_loop().time())
        self._on_up(node_id, connection.peer_directory)

    def _is_twin(self, connection: Connection, present: Connection) -> bool:
        """Whether somebody else with the same id is connected, and lives.

        Otherwise the two would replace each other for ever, and neither could work.
        """
        if connection.peer_directory == present.peer_directory:
            return False
        silent_s = asyncio.get_running_loop().time() - present.heard_s
        return silent_s < self._timings.silence_s

    def _is_better(self, connection: Connection, present: Connection) -> bool:
        if connection.dialled == present.dialled:
            return True
        higher_dialled = self._hello.node_id > connection.peer_id
        return connection.dialled == higher_dialled

    def on_message(self, connection: Connection, message: Message) -> None:
        """Hand on what came by the connection that is kept."""
        if self._connections.get(connection.peer_id) is connection:
            self._on_message(connection.peer_id, message)

    def on_refused(self, connection: Connection, reason: object) -> None:
        """Say so, once in a while."""
        why = reason.reason if isinstance(reason, RefusedPeerError) else Reason.MALFORMED
        if connection.dialled and connection.version == OLDER_VERSION and why is Reason.VERSION:
            return  # the next attempt speaks the newest version
        if connection.dialled or connection.authenticated:
            now_s = asyncio.get_running_loop().time()
            peer, host = connection.peer_id, connection.peer_host
            self._complaints.on_refused(peer, host, str(reason), now_s)
        else:
            self._refuse(connection, why, reason)
        if connection.peer_id in self._targets:
            self._troubles[connection.peer_id] = str(reason)

    def on_closed(self, connection: Connection) -> None:
        """Forget the connection."""
        timer = self._strangers.pop(connection, None)
        if timer is not None:
            timer.cancel()
        if connection.place is None:
            self._choose_version(connection)
        else:
            connection.place.leave()
        self._forget(connection)

    def _choose_version(self, connection: Connection) -> None:
        """Speak the older version next if the node answered the newest one with nothing at all."""
        node_id = connection.peer_id
        if not connection.answered and connection.version == PROTOCOL_VERSION:
            self._versions[node_id] = OLDER_VERSION
        else:
            self._versions.pop(node_id, None)

    def _forget(self, connection: Connection) -> None:
        timer = self._watches.pop(connection, None)
        if timer is not None:
            timer.cancel()
        if self._connections.get(connection.peer_id) is connection:
            del self._connections[connection.peer_id]
            now_s = asyncio.get_running_loop().time()
            trouble = self._complaints.on_disconnected(connection.peer_id, now_s)
            if connection.peer_id in self._targets:
                # Who was refused here has a more exact one.
                self._troubles.setdefault(connection.peer_id, trouble)
            self._on_down(connection.peer_id)

    def _watch(self, connection: Connection, received: int, sent: int, silent: int = 0) -> None:
        """Every while: ping when nothing was sent, close when nothing has come for long."""
        self._watches[connection] = asyncio.get_running_loop().call_later(
            self._timings.ping_s, self._look, connection, received, sent, silent
        )

    def _look(self, connection: Connection, received: int, sent: int, silent: int) -> None:
        silent = silent + 1 if connection.received_count == received else 0
        if silent * self._timings.ping_s >= self._timings.silence_s:
            log.info("Raft peer is silent peer=%d", connection.peer_id)
            self._forget(connection)
            connection.abort()
            return
        if connection.sent_count == sent:
            connection.ping()
        self._watch(connection, connection.received_count, connection.sent_count, silent)

    def abort(self) -> None:
        """Be gone from the network at once. Idempotent."""
        self._closed = True
        if self._server is not None:
            self._server.close()
            self._server = None
        for dialler in self._diallers.values():
            dialler.cancel()
        self._diallers.clear()
        for connection in [*self._strangers, *self._connections.values()]:
            connection.abort()

    async def close(self) -> None:
        """Close all and wait for it. Idempotent."""
        self.abort()
        await self._tasks.close()


def _now_us() -> int:
    return int(asyncio.get_running_loop().time() * 1e6)


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, ValueError):
        return str(error)
    return os.strerror(error.errno) if error.errno else str(error)
