"""Connection of one client: bytes in, requests to the router, replies out in order.

Owner: the event loop's thread; made by `dlogd.server.listener`. Reading stops while the client may
not send more (replies not taken, too many requests in flight, no memory for a large frame or for
appends), so that a client's haste is felt by itself alone. Once aborted, a connection takes nothing
more: neither what has arrived behind the last request nor another log line.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol, cast

from dlog.errors import ProtocolError
from dlogd.net.connection_admission import Place, address_of
from dlogd.net.frame_reader import FrameReader
from dlogd.net.reply_queue import ReplyQueue
from dlogd.net.reply_slot import ReplySlot
from dlogd.net.socket_writer import SocketWriter, has_left, outlet_of
from dlogd.runtime.clock import Clock
from dlogd.runtime.log_events import Event
from dlogd.server.connection_limits import ConnectionLimits, Seen
from dlogd.server.entry_budget import Room
from dlogd.server.refused_batches import RefusedBatches
from dlogd.server.request_budget import RequestBudget
from dlogd.server.session import Session
from dlogd.storage.io.io_engine import Engine
from dlogd.telemetry.metrics import ServerMetrics

log = logging.getLogger(__name__)


class Router(Protocol):
    """Who handles requests."""

    def handle(self, connection: "Connection", buffer: bytearray, start: int, end: int) -> None:
        """Handle the request in `buffer[start:end]`, which is only valid during this call.

        A handler that cannot go on calls `connection.stall`. Raises ProtocolError for nonsense: the
        connection is then closed.
        """


class Owner(Protocol):
    """The listener, as a connection sees it."""

    @property
    def router(self) -> Router:
        """Who handles requests."""

    @property
    def engine(self) -> Engine:
        """Where ranges of segments are read."""

    @property
    def metrics(self) -> ServerMetrics:
        """Counters of the listener."""

    @property
    def clock(self) -> Clock:
        """Given time."""

    @property
    def limits(self) -> ConnectionLimits:
        """Bounds and shared memory."""

    def on_open(self, connection: "Connection") -> bool:
        """Account for a new connection; False refuses it."""

    def on_close(self, connection: "Connection") -> None:
        """Forget a connection."""


class Connection(asyncio.BufferedProtocol):
    """A client's connection, from accept to close."""

    def __init__(
        self,
        owner: Owner,
        loop: asyncio.AbstractEventLoop,
        place: "Place[Connection] | None" = None,
    ) -> None:
        """`place`: None where admission has no say, as with nodes that have proven themselves."""
        limits = owner.limits
        self._place = place
        self._owner = owner
        self._loop = loop
        self._router = owner.router
        self._inflight_max = limits.inflight_requests_max
        self._metrics = owner.metrics
        address = None if place is None else place.address
        self.intake = FrameReader(limits.receive, limits.frames, limits.frame_bytes_max, address)
        self._frames = limits.frames
        self._transport: asyncio.Transport | None = None
        self._outlet: SocketWriter | None = None
        self.is_open = False
        """Whether the connection still stands."""
        self.is_reading = True
        """Whether the client may send: it is to blame when nothing comes."""
        self._resume: Callable[[], None] | None = None
        self._frame_start = 0
        self._processing = False
        self._quiet = False
        self._idle: asyncio.Future[None] | None = None
        self.answering = RequestBudget(limits.frames, owner.metrics)
        self._vain: dict[asyncio.Task[None] | Room, None] = {}
        self.is_fetching = False
        """Whether a Fetch of the client is under way; the next one waits for its answer."""
        self.on_fetched: Callable[[], None] | None = None
        """Called once, when that answer is made."""
        self.replies = ReplyQueue(owner.engine, limits.held, self._on_send_error, self._on_progress)
        self.refused = RefusedBatches()
        self.peer = self.address = "?"
        self.session = Session()
        self.client_id = ""
        self.is_node = False
        """Whether the peer has proved that it is a node of this cluster."""
        self.received_bytes = 0
        self._clock = owner.clock
        self.received_us = self._clock.now_us()
        """When bytes came last (`Clock.now_us`)."""
        self.seen = Seen(self.received_us)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the socket up, or refuse it when the listener stops."""
        transport = cast(asyncio.Transport, transport)  # uvloop's do not derive from it
        self._transport = transport
        name = transport.get_extra_info("peername")
        if isinstance(name, tuple) and len(name) >= 2:
            self.address, self.peer = address_of(str(name[0])), f"{name[0]}:{name[1]}"
            self.session = Session(address=self.peer, network=self.address)
        if not self._owner.on_open(self):
            self.intake.close()
            self._leave()
            self._transport = None
            self.replies.close()
            transport.abort()
            return
        self.is_open = True
        try:
            self._outlet = outlet_of(self._loop, transport, self.replies.on_writable)
        except OSError:
            self.abort(None)  # the client has gone already
            return
        self.replies.attach(self._outlet, self.address)

    def connection_lost(self, exc: Exception | None) -> None:
        """Give everything back."""
        if self._transport is None:
            return
        self.is_open = False
        self._set_reading(True)
        self._transport = None
        self._resume = None
        self.on_fetched = None
        self._outlet = None
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
        self.replies.close()
        for task in list(self._vain):
            task.cancel()
        self.answering.release()
        self._frames.forget(self._on_frame_memory, self.intake.share)
        self.intake.close()
        self._leave()
        self._owner.on_close(self)

    def _leave(self) -> None:
        if self._place is not None:
            self._place.leave()

    def frame_age_us(self, now_us: int) -> int:
        """Return for how long the client has owed the rest of a frame; 0: it owes none.

        Time in which this node did not read does not count.
        """
        begun_us = self.seen.begun_us
        if not begun_us or not self.is_reading or not self.intake.is_mid_frame:
            return 0
        return now_us - begun_us

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the transport reads into."""
        return self.intake.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Handle what has arrived; nothing may be raised from here."""
        self.received_us = self._clock.now_us()
        self.received_bytes += nbytes
        try:
            self.intake.received(nbytes)
            self._process()
        except ProtocolError as error:
            self.break_off(error)
        except Exception as error:  # noqa: BLE001 - a bug must cost one connection, not the daemon
            self._on_bug(error)

    def _process(self) -> None:
        intake = self.intake
        seen = self.seen
        handle = self._router.handle
        is_full = self.replies.is_full
        inflight_max = self._inflight_max
        self._processing = True
        try:
            while self._resume is None and self.is_open:
                if is_full(inflight_max) or self.answering.is_enough:
                    intake.park()
                    break
                frame = intake.next_frame()
                if frame is None:
                    if intake.is_mid_frame and not seen.begun_us:
                        seen.begun_us = seen.first_us = self.received_us
                    if intake.is_starved:
                        self._frames.when_available(
                            self._on_frame_memory, intake.share, grows=intake.holds_memory
                        )
                    break
                seen.begun_us = 0
                buffer, self._frame_start, end = frame
                handle(self, buffer, self._frame_start, end)
                if not intake.has_more:
                    if intake.kept_bytes and self._resume is None:
                        intake.let_go()  # a stalled request still holds its frame
                    break
        finally:
            self._processing = False
        self._update_reading()

    def _update_reading(self) -> None:
        wanted = (
            self._resume is None
            and not self._quiet
            and not self.replies.is_full(self._inflight_max)
            and not self.intake.is_starved
            and not self.answering.is_enough
        )
        if wanted is not self.is_reading:
            self._set_reading(wanted)

    def _set_reading(self, wanted: bool) -> None:
        transport = self._transport
        if wanted is self.is_reading or transport is None:
            return
        self.is_reading = wanted
        now_us = self._clock.now_us()
        if not wanted:
            self.seen.paused_us = now_us
            self._metrics.paused_connections += 1
            transport.pause_reading()
            return
        self._metrics.paused_connections -= 1
        if self.seen.begun_us:
            self.seen.begun_us += now_us - self.seen.paused_us
        if self.is_open:
            transport.resume_reading()

    def settle(self, slot: ReplySlot, data: bytes) -> None:
        """Answer a request that `answering` has counted."""
        self.answering.end()
        self.replies.settle(slot, data)
        self._on_progress()  # it may wait behind another, but there is room for one more

    def end_fetch(self) -> None:
        """The answer of the Fetch under way is made: let the next one begin."""
        self.is_fetching = False
        on_fetched, self.on_fetched = self.on_fetched, None
        if on_fetched is not None:
            on_fetched()

    def end_with(self, task: asyncio.Task[None] | Room) -> None:
        """Cancel what is in vain when the connection ends before it."""
        self._vain[task] = None
        task.add_done_callback(self._vain.pop)

    def stall(self, resume: Callable[[], None]) -> tuple[bytearray, int]:
        """Keep the present frame and stop reading until `unstall` calls `resume`.

        Returns the frame's buffer, now its own, and how far positions in it have moved.
        """
        buffer, start, _ = self.intake.hold()
        shift = start - self._frame_start
        self._frame_start = start
        self._resume = resume
        return buffer, shift

    def unstall(self) -> None:
        """Let the stalled request go on, then what has arrived behind it."""
        resume, self._resume = self._resume, None
        self.close_if_left()
        if resume is None or not self.is_open:
            return

        def go_on() -> None:
            resume()
            if self._quiet:
                return
            self._process()

        self.guard(go_on)

    def close_if_left(self) -> None:
        """Close, and drop all requests that wait, when the client has left and nothing is read.

        Not while an answer leaves: a client may have closed only the end that it sends from.
        """
        transport = None if self.is_reading else self._transport
        if transport is not None and not self.replies.is_sending and has_left(transport):
            self.abort(None)

    def guard(self, work: Callable[[], object]) -> None:
        """Do `work` for this connection; what it raises ends the connection and nothing else."""
        try:
            work()
        except ProtocolError as error:
            self.break_off(error)
        except Exception as error:  # noqa: BLE001 - a bug must cost one connection, not the daemon
            self._on_bug(error)

    def break_off(self, error: ProtocolError) -> None:
        """Close the connection of a client whose request made no sense."""
        self._metrics.connections_broken_total += 1
        foreign = self._owner.limits.foreign
        fresh = None if self.replies.is_owing else self._outlet
        self.abort(foreign.parting(error, fresh, self.address, self.received_us))

    def _on_bug(self, error: Exception) -> None:
        self._metrics.callback_errors_total += 1
        log.debug("Traceback of a failed request", exc_info=True)
        self.abort(Event("Closed connection after an unexpected error", error=repr(error)))

    def _on_progress(self) -> None:
        replies = self.replies
        if not replies.is_owing:
            self.answering.release()
        if self._idle is not None and not len(replies) and not self._idle.done():
            self._idle.set_result(None)
        if self._processing or self._quiet or self._resume is not None:
            return
        if self.is_reading:
            if replies.is_sending:
                self._update_reading()  # the answer was not ready at once, and is not taken now
            return
        if self.is_open:
            self.guard(self._process)

    def quiesce(self) -> None:
        """Take no further request; replies in flight still leave."""
        self._quiet = True
        self._set_reading(False)

    async def wait_idle(self, timeout_s: float) -> None:
        """Return when no reply is owed, the connection is closed, or the time is over."""
        if len(self.replies) and self.is_open:
            self._idle = self._loop.create_future()
            await asyncio.wait((self._idle,), timeout=timeout_s)

    def _on_frame_memory(self) -> bool:
        if not self.is_open:
            return True
        found = self.intake.retry()
        if found:
            self._update_reading()
        return found

    def pause_writing(self) -> None:
        """Transport's buffer is full."""
        if self._outlet is not None:
            self._outlet.on_pause()

    def resume_writing(self) -> None:
        """Transport's buffer has room."""
        if self._outlet is not None:
            self._outlet.on_resume()

    def eof_received(self) -> bool:
        """Close when the client has finished sending, as Kafka does."""
        return False

    def _on_send_error(self, error: BaseException) -> None:
        broken = isinstance(error, (BrokenPipeError, ConnectionResetError))
        self.abort(
            None if broken else Event("Closed connection after a failed send", error=repr(error))
        )

    def on_displaced(self) -> None:
        """Close at once: the listener is full, and another address has fewer connections."""
        self.abort(None)

    def abort(self, reason: Event | None) -> None:
        """Close at once; one log line when there is a reason worth it."""
        transport = self._transport
        if transport is None or not self.is_open:
            return
        self.is_open = False
        if reason is not None:
            log.warning("%s peer=%s client_id=%s", reason, self.peer, self.client_id)
        # Nothing may be sent on a descriptor that the transport is about to give up.
        self.replies.close()
        transport.abort()
