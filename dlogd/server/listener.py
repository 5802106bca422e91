"""Listener for clients: socket, limits, idle time, draining at the stop."""

import asyncio
import logging
from functools import partial

from dlogd.config.service_sections import ConnectionsConfig
from dlogd.net import listen_sockets
from dlogd.net.acceptor import Acceptor
from dlogd.net.connection_admission import Bounds, Place, Rate, Refusal, RefusalLines
from dlogd.net.disk_reader import HeldReads
from dlogd.net.foreign_clients import ForeignClients
from dlogd.net.frame_memory import Fall, FrameMemory
from dlogd.net.frame_reader import RECEIVE_BYTES
from dlogd.net.send_turns import SendTurns
from dlogd.net.unread_answers import UnreadAnswers
from dlogd.runtime import allocator, cycle_collector
from dlogd.runtime.clock import Clock
from dlogd.server.connection import Connection, Router
from dlogd.server.connection_limits import ConnectionLimits
from dlogd.server.slow_senders import FRAME_GRACE_S, SlowSenders
from dlogd.storage.io.io_engine import Engine
from dlogd.telemetry.admission_metrics import AdmissionMetrics
from dlogd.telemetry.metrics import ServerMetrics

log = logging.getLogger(__name__)

BACKLOG = 1024
CROWD_MIN = 1000
"""So many connections leave memory behind that is worth giving back."""
CROWD_STEP = 256
LEFT_S = 1.0
"""How long nobody hears that a client has left of whom nothing is read."""
HELD_READ_COUNT_MAX = 16
UNREAD_SHARE = 4
"""Part of `inflight.bytes.max` that large answers may take which nobody reads."""
NAME = "clients"
"""Of these listeners, in log lines and metrics about admission."""
BURST = 2
"""Attempts at once per allowed connection: after a restart all clients are back at once, and many
of them with a second connection."""
HINTS = {
    Refusal.ADDRESS_RATE: "raise connections.per_ip.rate or find out why the clients reconnect",
    Refusal.ADDRESS_FULL: "raise connections.per_ip.max",
    Refusal.RATE: "raise connections.rate or find out why the clients reconnect",
    Refusal.FULL: "raise connections.max",
    Refusal.DISPLACED: "raise connections.max",
}


def bounds_of(config: ConnectionsConfig) -> Bounds:
    """Return what the configuration admits."""
    return Bounds(
        count_max=config.max,
        per_address_max=config.per_ip_max,
        per_address_rate=Rate(per_s=config.per_ip_rate, burst=BURST * config.per_ip_max),
        rate=Rate(per_s=config.rate, burst=BURST * config.max),
    )


class Listener:
    """All connections of one address. Life: `bind`, `serve`, then `stop` once."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        engine: Engine,
        router: Router,
        clock: Clock,
        metrics: ServerMetrics,
        admission: AdmissionMetrics,
        *,
        frame_bytes_max: int,
        inflight_bytes_max: int,
        inflight_requests_max: int,
        bounds: Bounds,
        idle_timeout_s: float,
    ) -> None:
        self._loop = loop
        self.engine = engine
        self.router = router
        self.clock = clock
        self.metrics = metrics
        self.limits = ConnectionLimits(
            frame_bytes_max=frame_bytes_max,
            inflight_requests_max=inflight_requests_max,
            receive=bytearray(RECEIVE_BYTES),
            frames=FrameMemory(inflight_bytes_max, has_shares=True),
            held=HeldReads(
                HELD_READ_COUNT_MAX,
                SendTurns(loop, engine.give_way),
                UnreadAnswers(inflight_bytes_max // UNREAD_SHARE, self._on_given_up),
            ),
        )
        self.limits.foreign = ForeignClients(partial(admission.on_foreign, NAME))
        self._admission_metrics = admission
        self._entrance = Acceptor(NAME, bounds, clock.now_us, self._make, self._on_refused, HINTS)
        self._unread_lines = RefusalLines()
        self._idle_timeout_s = idle_timeout_s
        self._connections: dict[Connection, None] = {}
        self._fall = Fall(CROWD_MIN)
        self._lateness = SlowSenders(loop, clock, metrics, self.limits.frames, self._connections)
        self._server: asyncio.AbstractServer | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._left_sweep: asyncio.TimerHandle | None = None
        self._accepting = False

    @property
    def connection_count(self) -> int:
        """How many clients are connected."""
        return len(self._connections)

    async def bind(self, host: str, port: int) -> int:
        """Bind the address; return the port, which the system chose when `port` is 0."""
        self._server, bound = await listen_sockets.bind(
            self._loop,
            lambda: self._entrance,
            host,
            port,
            backlog=BACKLOG,
            start_serving=False,
        )
        return bound

    async def serve(self) -> None:
        """Accept clients from now on."""
        assert self._server is not None
        self._accepting = True
        self._schedule_sweep()
        self._left_sweep = self._loop.call_later(LEFT_S, self._close_left)
        await self._server.start_serving()

    def reconfigure(self, config: ConnectionsConfig) -> None:
        """Take over reloaded limits; connections that stand are left alone."""
        self._entrance.admission.reconfigure(bounds_of(config))
        self._idle_timeout_s = config.idle_timeout_ms / 1000

    def _make(self, place: Place[Connection]) -> Connection:
        return Connection(self, self._loop, place)

    def _on_refused(self, name: str, reason: Refusal) -> None:
        self.metrics.connections_refused_total += 1
        self._admission_metrics.on_refused(name, reason.value)

    def on_open(self, connection: Connection) -> bool:
        """Account for a new connection; refuse it while stopping."""
        if not self._accepting:
            return False
        self.metrics.connections_total += 1
        self.metrics.connections += 1
        self._connections[connection] = None
        if not len(self._connections) % CROWD_STEP:
            cycle_collector.follow(len(self._connections))
        return True

    def on_close(self, connection: Connection) -> None:
        """Forget a connection."""
        if self._connections.pop(connection, 0) == 0:
            return
        self.metrics.connections -= 1
        self._account(connection, self.clock.now_us())

    def _on_given_up(self, host: str) -> None:
        """A connection is closed that did not read its answers."""
        self.metrics.connections_unread_total += 1
        address, count = self._unread_lines.count(host, self.clock.now_us())
        if count:
            log.warning(
                "Closed connections that did not read large answers address=%s count=%d",
                address,
                count,
            )

    def _schedule_sweep(self) -> None:
        pause_s = min(FRAME_GRACE_S, self._idle_timeout_s) / 3
        self._sweep = self._loop.call_later(pause_s, self._close_idle)

    def _close_left(self) -> None:
        for connection in [each for each in self._connections if not each.is_reading]:
            connection.close_if_left()
        self._left_sweep = self._loop.call_later(LEFT_S, self._close_left)

    def _close_idle(self) -> None:
        now_us = self.clock.now_us()
        for connection in list(self._connections):
            self._account(connection, now_us)
            if not self._lateness.close_if_late(connection, now_us) and self._is_idle(
                connection, now_us
            ):
                self.metrics.connections_idle_total += 1
                connection.abort(None)
        cycle_collector.follow(len(self._connections))
        has_emptied = self._fall.has_come(len(self._connections))
        if self.limits.frames.has_fallen() or has_emptied:
            allocator.give_back()
        self._schedule_sweep()

    def _account(self, connection: Connection, now_us: int) -> None:
        """Count what went in and out since the last time."""
        seen = connection.seen
        received = connection.received_bytes - seen.received_bytes
        sent = connection.replies.bytes_sent - seen.sent_bytes
        seen.received_bytes += received
        self.metrics.received_bytes_total += received
        if sent:
            seen.sent_bytes += sent
            seen.sent_us = now_us
            self.metrics.sent_bytes_total += sent

    def _is_idle(self, connection: Connection, now_us: int) -> bool:
        """Tell whether neither side has sent anything for long, and no answer is owed."""
        quiet_us = now_us - max(connection.received_us, connection.seen.sent_us)
        return quiet_us > self._idle_timeout_s * 1e6 and not connection.replies.is_owing

    async def stop(self, drain_s: float) -> None:
        """Stop accepting, let replies in flight leave for up to `drain_s`, then close the rest."""
        self._accepting = False
        if self._server is not None:
            self._server.close()
        for sweep in (self._sweep, self._left_sweep):
            if sweep is not None:
                sweep.cancel()
        self._lateness.stop()
        deadline = self._loop.time() + drain_s
        for connection in list(self._connections):
            connection.quiesce()
        while (left_s := deadline - self._loop.time()) > 0:
            owing = [c for c in self._connections if c.is_open and len(c.replies)]
            if not owing:
                break
            await owing[0].wait_idle(left_s)
        for connection in list(self._connections):
            connection.abort(None)
