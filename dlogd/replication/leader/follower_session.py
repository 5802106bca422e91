"""The leader's side of a replication stream: one connection of one follower.

Appended records leave at once from tail memory, before this node's flush ends. Older records are
read from disk first; other partitions do not wait for them. A follower has at most WINDOW_BYTES
that it has not taken, and one frame of each disk. Owner: the event loop's thread.
"""

import asyncio
import logging
from collections.abc import Iterator
from typing import Protocol, cast

from dlog.errors import OffsetOutOfRangeError, ProtocolError, WireError
from dlog.types import NodeId
from dlogd.net.disk_reader import HeldReads
from dlogd.net.frame_memory import FrameMemory
from dlogd.net.frame_reader import FrameReader
from dlogd.net.reply_queue import ReplyQueue
from dlogd.net.reply_slot import Piece, release_pieces
from dlogd.net.socket_writer import SocketWriter, outlet_of
from dlogd.replication import protocol
from dlogd.replication.leader.disk_read_turns import DiskReadTurns
from dlogd.replication.leader.follower_partition import FollowerPartition, Taken
from dlogd.replication.leader.send_window import SendWindow
from dlogd.replication.protocol import Refusal, Subscription
from dlogd.runtime.clock import Clock
from dlogd.runtime.tasks import Tasks
from dlogd.storage.io.io_engine import Engine

log = logging.getLogger(__name__)

FRAME_BYTES = protocol.FRAME_BYTES
ROWS_MAX = 10_000
WATERMARK_DELAY_S = 0.01
"""How long a follower may not know of a new watermark when nothing else is sent."""
REQUEST_BYTES_MAX = 16 << 20


class SessionOwner(Protocol):
    """All feeds of a node, as one of them sees them."""

    engine: Engine
    clock: Clock
    tasks: Tasks
    frames: FrameMemory
    receive: bytearray
    held: HeldReads

    def wait_us(self, fed: FollowerPartition, size: int) -> int:
        """Return how long a follower has to wait for so many bytes."""

    def accept(
        self, feed: "FollowerSession", subscription: Subscription
    ) -> FollowerPartition | Refusal:
        """Let a follower begin, or say why not."""

    def on_progress(self, fed: FollowerPartition) -> None:
        """A follower has promised more."""

    def on_close(self, feed: "FollowerSession") -> None:
        """Forget a feed."""


class FollowerSession(asyncio.BufferedProtocol):
    """One follower's connection, from the end of its introduction to its close."""

    def __init__(
        self,
        owner: SessionOwner,
        loop: asyncio.AbstractEventLoop,
        node_id: NodeId,
        node_epoch: int,
        peer: str,
    ) -> None:
        self.node_id = node_id
        self.node_epoch = node_epoch
        self.peer = peer
        self.heard_s = loop.time()
        self.sent_bytes_total = 0
        self._owner = owner
        self._loop = loop
        self._intake = FrameReader(owner.receive, owner.frames, REQUEST_BYTES_MAX)
        self._replies = ReplyQueue(owner.engine, owner.held, self._on_send_error, _ignore)
        self._transport: asyncio.Transport | None = None
        self._outlet: SocketWriter | None = None
        self._fed: dict[int, FollowerPartition] = {}
        self._marked: dict[FollowerPartition, None] = {}
        self._stale: dict[FollowerPartition, None] = {}  # they do not know the newest watermark
        self._stale_timer: asyncio.TimerHandle | None = None
        self._turns = DiskReadTurns()  # they wait until a frame that was read is taken
        self._is_scheduled = False
        self._window = SendWindow()

    # -- the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over a connection that was introduced."""
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        try:
            self._outlet = outlet_of(self._loop, transport, self._replies.on_writable)
        except OSError:
            self.abort("")
            return
        self._replies.attach(self._outlet)

    def connection_lost(self, error: Exception | None) -> None:
        """The follower has gone."""
        self.abort("")

    def abort(self, reason: str) -> None:
        """Close at once; one log line when there is a reason worth it. Idempotent."""
        transport, self._transport = self._transport, None
        if transport is None:
            return
        if reason:
            log.warning(
                "Closed replication stream node=%d peer=%s error=%s",
                self.node_id,
                self.peer,
                reason,
            )
        self._replies.close()
        transport.abort()
        self._intake.close()
        if self._stale_timer is not None:
            self._stale_timer.cancel()
        for fed in list(self._fed.values()):
            fed.leave()
        for each in (self._fed, self._marked, self._stale, self._turns):
            each.clear()
        self._owner.on_close(self)

    def pause_writing(self) -> None:
        """Transport's buffer is full."""
        if self._outlet is not None:
            self._outlet.on_pause()

    def resume_writing(self) -> None:
        """Transport's buffer has room."""
        if self._outlet is not None:
            self._outlet.on_resume()

    def _on_send_error(self, error: BaseException) -> None:
        broken = isinstance(error, (BrokenPipeError, ConnectionResetError))
        self.abort("" if broken else f"a failed send: {error}")

    # -- what the follower says

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the transport reads into."""
        return self._intake.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Handle what has arrived; nothing may be raised from here."""
        self.heard_s = self._loop.time()
        try:
            self._intake.received(nbytes)
            self._process()
        except ProtocolError as error:
            self.abort(f"the follower broke the protocol: {error}")
        except Exception as error:
            log.exception("A replication stream failed unexpectedly")
            self.abort(repr(error))

    def _process(self) -> None:
        intake = self._intake
        while self._transport is not None:
            frame = intake.next_frame()
            if frame is None:
                if intake.is_starved:
                    raise ProtocolError("its frames take more memory than there is")
                return
            buffer, start, end = frame
            self._take(memoryview(buffer), start, end)
            if not intake.has_more:
                return

    def _take(self, view: memoryview, start: int, end: int) -> None:
        kind, count, position = protocol.parse_kind(view, start, end)
        if kind == protocol.PROGRESS:
            taken, rows = protocol.parse_progress(view, position, end, count)
            self._window.on_taken(taken)
            if self._marked or self._turns.waiting:
                self._schedule()
            if not count:
                self._send_data([], [], 0, is_disk=False)  # to a sign of life, one of ours
            self._on_progress(rows)
        elif kind == protocol.SUBSCRIBE:
            self._on_subscribe(protocol.parse_subscribe(view, position, end, count))
        elif kind == protocol.UNSUBSCRIBE:
            for handle in protocol.parse_unsubscribe(view, position, end, count):
                fed = self._fed.pop(handle, None)
                if fed is not None:
                    self._forget(fed)
        else:
            raise ProtocolError(f"a frame of kind {kind}")

    def _on_progress(self, rows: Iterator[tuple[int, ...]]) -> None:
        now_ms = self._owner.clock.now_ms()
        for handle, promised, end, start in rows:
            fed = self._fed.get(handle)
            if fed is None:
                continue  # said before it heard that this has ended
            fed.on_progress(promised, end, start, now_ms)
            self._owner.on_progress(fed)
            if fed.has_more and not fed.is_marked:
                self.mark(fed)

    def _on_subscribe(self, subscriptions: list[Subscription]) -> None:
        refusals = []
        for each in subscriptions:
            if each.handle in self._fed:
                raise ProtocolError(f"handle {each.handle} was used before")
            found = self._owner.accept(self, each)
            if isinstance(found, Refusal):
                refusals.append(found)
                continue
            self._fed[each.handle] = found
            self.mark(found)  # it hears at least the watermark
            self._owner.on_progress(found)
        if refusals:
            self._send((protocol.encode_refused(refusals),))

    def mark(self, fed: FollowerPartition) -> None:
        """There is something to send about a partition, if it is fed still."""
        if self._fed.get(fed.handle) is not fed:
            return  # it ended within what led here, and would be looked at for ever
        fed.is_marked = True
        self._marked[fed] = None
        if not self._is_scheduled:
            self._schedule()

    def mark_watermark(self, fed: FollowerPartition) -> None:
        """The watermark of a partition has moved; it leaves with records, or a little later."""
        self._stale[fed] = None
        if self._stale_timer is None:
            self._stale_timer = self._loop.call_later(WATERMARK_DELAY_S, self._tell_watermarks)

    def _tell_watermarks(self) -> None:
        self._stale_timer = None
        stale, self._stale = self._stale, {}
        for fed in stale:
            if fed.has_news and not fed.is_marked:
                self.mark(fed)

    def refuse(self, fed: FollowerPartition, error: WireError) -> None:
        """A partition is not fed any more."""
        if self._fed.pop(fed.handle, None) is None:
            return
        self._forget(fed)
        if self._replies.is_sending_of(fed.partition.log.segments):
            # What is under way may lie where others write soon.
            self._loop.call_soon(self.abort, "")
            return
        refusal = Refusal(fed.handle, error.code, -1, -1, -1, -1)
        self._send((protocol.encode_refused((refusal,)),))

    def _forget(self, fed: FollowerPartition) -> None:
        fed.leave()  # else what is appended marks it again, and it is looked at for ever
        fed.is_marked = False
        self._marked.pop(fed, None)
        self._stale.pop(fed, None)
        self._turns.leave(fed)

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._owner.engine.defer(self._run)

    def _run(self) -> None:
        self._is_scheduled = False
        try:
            while self._transport and self._window.is_open and self._is_any_marked():
                self._send_frame()
        except Exception as error:
            log.exception("A replication stream failed unexpectedly")
            self.abort(repr(error))

    def _is_any_marked(self) -> bool:
        """Let the next of each disk be read, when it may be; return whether any is marked."""
        if self._turns.waiting and self._window.may_read:
            for fed in self._turns.next_ones():
                self.mark(fed)
        return bool(self._marked)

    def _send_frame(self) -> None:
        """Send one frame about what is marked, as far as there is something to send now."""
        rows: list[protocol.DataRow] = []
        pieces: list[Piece] = []
        size = 0
        # One by one: with one that cannot be refused, as its follower has gone, all others end.
        for fed in filter(self._marked.__contains__, list(self._marked)):
            if size >= FRAME_BYTES or len(rows) >= ROWS_MAX:
                break
            try:
                taken = fed.take(FRAME_BYTES - size, is_first=not size)
            except OffsetOutOfRangeError as error:
                self._refuse_range(fed, error)
                continue
            except WireError as error:
                self.refuse(fed, error)
                continue
            if size and taken is not None and not taken.bytes and fed.has_more:
                break  # its next batch does not fit: the next frame begins with it
            del self._marked[fed]
            fed.is_marked = False
            if taken is None:
                self._turns.leave(fed)
                self._owner.tasks.spawn("locate for follower", self._locate(fed))
                continue
            if self._comes_later(fed, taken):
                continue
            rows.append(fed.row(taken))
            size += taken.bytes
            pieces += taken.pieces()
            if fed.has_more:
                self.mark(fed)
        if rows:
            self._send_data(rows, pieces, size, is_disk=False)

    def _comes_later(self, fed: FollowerPartition, taken: Taken) -> bool:
        """Whether what was taken is not sent now; what becomes of it is arranged then."""
        if not (taken.bytes or fed.has_more or fed.has_news):
            self._turns.leave(fed)
            fed.put_back(taken)
            return True  # what was announced was not appended after all
        if taken.is_disk and not (self._window.may_read and self._turns.may_read(fed)):
            self._turns.wait(fed)
            fed.put_back(taken)
            return True
        if self._turns.waiting:
            self._turns.leave(fed)
        wait_us = self._owner.wait_us(fed, taken.bytes) if taken.bytes else 0
        if wait_us:
            fed.is_resting = True
            self._loop.call_later(wait_us / 1e6, self._go_on, fed)
            fed.put_back(taken)
        elif taken.is_disk:
            self._turns.begin(fed)
            self._owner.tasks.spawn("read for follower", self._read(fed, taken))
        return wait_us > 0 or taken.is_disk

    async def _read(self, fed: FollowerPartition, taken: Taken) -> None:
        """Read what was taken, and send it in a frame of its own."""
        found = await fed.load(taken)
        self._turns.end(fed)
        if isinstance(found, WireError):
            self.refuse(fed, found)
        elif self._fed.get(fed.handle) is fed:
            self._send_data([fed.row(taken)], found, taken.bytes, is_disk=True)
            if fed.has_more:
                self.mark(fed)
        else:
            release_pieces(found)
        self._schedule()

    def _go_on(self, fed: FollowerPartition) -> None:
        """A follower has waited for its share of what may be sent."""
        fed.is_resting = False
        self.mark(fed)

    async def _locate(self, fed: FollowerPartition) -> None:
        error = await fed.locate()
        if self._fed.get(fed.handle) is not fed:
            return
        if error is None:
            self.mark(fed)
        elif isinstance(error, OffsetOutOfRangeError):
            self._refuse_range(fed, error)
        else:
            self.refuse(fed, error)

    def _refuse_range(self, fed: FollowerPartition, error: WireError) -> None:
        """The log begins later by now than where the follower is."""
        plog = fed.partition.log
        if self._fed.pop(fed.handle, None) is None:
            return
        self._forget(fed)
        ends = (plog.log_start_offset, plog.log_end_offset)
        self._send((protocol.encode_refused((Refusal(fed.handle, error.code, -1, -1, *ends),)),))

    def _send_data(
        self, rows: list[protocol.DataRow], pieces: list[Piece], size: int, *, is_disk: bool
    ) -> None:
        self._window.on_sent(size, is_disk=is_disk)
        self.sent_bytes_total += size
        frame = (protocol.encode_data(rows, size), *pieces)
        copies = [each for each in frame if type(each) is bytes]
        self._send((b"".join(copies),) if len(copies) == len(frame) else frame)

    def _send(self, pieces: tuple[Piece, ...]) -> None:
        if len(pieces) == 1 and type(pieces[0]) is bytes:
            self._replies.reply(pieces[0])
            return
        self._replies.open().fill(pieces).drain()


def _ignore() -> None:
    """Nothing waits for room: the window bounds what is under way."""
