"""Requests of other nodes: Kafka's protocol on connections to the internal listener.

A node proves the cluster's secret before a connection is served here, so a request may see what
clients may not: records that are not committed yet, which mend damaged replicas.
Owner: the event loop's thread; made by `dlogd.node.broker`. The requests are rare, and so are the
connections: the bounds are small.
"""

import asyncio
from collections.abc import Callable

from dlog.errors import ProtocolError
from dlog.types import NodeId
from dlog.wire.frame import RequestHeader
from dlogd.internal import messages
from dlogd.metadata.state.image import ClusterImage
from dlogd.net.disk_reader import HeldReads
from dlogd.net.frame_memory import FrameMemory
from dlogd.net.frame_reader import RECEIVE_BYTES
from dlogd.net.send_turns import SendTurns
from dlogd.runtime.clock import Clock
from dlogd.server.connection import Connection, Router
from dlogd.server.connection_limits import ConnectionLimits
from dlogd.storage.io.io_engine import Engine
from dlogd.telemetry.metrics import ServerMetrics

CONNECTIONS_MAX = 64
FRAME_BYTES_MAX = 64 * 1024
FRAMES_BYTES_MAX = 1 << 20
REQUESTS_MAX = 4
IDLE_S = 30.0


class NodeRequests:
    """All such connections of a node. Life: `adopt` by the internal server, then `stop` once."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        engine: Engine,
        router: Router,
        clock: Clock,
        metrics: ServerMetrics,
        *,
        node_id: NodeId,
        image: Callable[[], ClusterImage],
    ) -> None:
        self.engine = engine
        self.router = router
        self.clock = clock
        self.metrics = metrics
        self.limits = ConnectionLimits(
            frame_bytes_max=FRAME_BYTES_MAX,
            inflight_requests_max=REQUESTS_MAX,
            receive=bytearray(RECEIVE_BYTES),
            frames=FrameMemory(FRAMES_BYTES_MAX),
            held=HeldReads(CONNECTIONS_MAX, SendTurns(loop, engine.give_way)),
        )
        self._loop = loop
        self._node_id = node_id
        self._image = image
        self._connections: dict[Connection, None] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._is_stopped = False

    def adopt(
        self, header: RequestHeader, payload: memoryview, peer: str
    ) -> tuple[bytes, asyncio.BufferedProtocol | None]:
        """Serve the requests of a node that has proved the secret. Raises ProtocolError."""
        request = messages.decode_replicate(payload, header.body_position, len(payload))
        if len(self._connections) >= CONNECTIONS_MAX:
            raise ProtocolError(f"nodes have {CONNECTIONS_MAX} connections for requests already")
        node = self._image().nodes.get(request.node_id)
        code = messages.NONE
        if request.leader_id != self._node_id:
            code = messages.NOT_LEADER_OR_FOLLOWER
        elif node is None or request.node_epoch < node.node_epoch:
            code = messages.STALE_BROKER_EPOCH
        answer = messages.encode_replicate_answer(
            code, header.correlation_id, messages.NODE_REQUESTS
        )
        if code != messages.NONE:
            return answer, None
        connection = Connection(self, self._loop)
        connection.is_node = True
        return answer, connection

    def on_open(self, connection: Connection) -> bool:
        """Account for a connection."""
        self._connections[connection] = None
        if self._sweep is None:
            self._sweep = self._loop.call_later(IDLE_S, self._close_idle)
        return not self._is_stopped

    def on_close(self, connection: Connection) -> None:
        """Forget a connection."""
        self._connections.pop(connection, None)

    def _close_idle(self) -> None:
        self._sweep = None
        now_us = self.clock.now_us()
        for connection in list(self._connections):
            if now_us - connection.received_us > IDLE_S * 1e6:
                connection.abort(None)
        if self._connections:
            self._sweep = self._loop.call_later(IDLE_S, self._close_idle)

    def stop(self) -> None:
        """Close all connections."""
        self._is_stopped = True
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in list(self._connections):
            connection.abort(None)
