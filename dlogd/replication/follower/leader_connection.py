"""Connection of a follower to one leader: an introduction, then replication frames.

Owner: the event loop's thread; made by `dlogd.replication.follower.leader_fetcher`. Nothing is
known of partitions here. Frames are handed over where they lie; who cannot take one now says so,
and nothing more is read until it goes on: what the leader has sent then waits in its own window.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol, cast

from dlog.errors import DlogError, ProtocolError, TransportError
from dlogd.net.frame_memory import FrameMemory
from dlogd.net.frame_reader import RECEIVE_BYTES, FrameReader

log = logging.getLogger(__name__)

FRAME_BYTES_MAX = (1 << 31) - 1
"""A frame holds at least one batch, however large (rule L5); memory follows what has arrived."""
FRAMES_BYTES_MAX = 64 << 20


class Introduction(Protocol):
    """How both sides prove that they belong to the cluster."""

    def hello(self) -> bytes:
        """Return the first frame."""

    def reply(self, payload: memoryview) -> bytes | None:
        """Take a frame of the leader; return the next one to send, None when it was the last.

        Raises ProtocolError when the leader is not the wanted node.
        """


class ConnectionMemory:
    """What all links of a node receive into."""

    def __init__(self) -> None:
        self.receive = bytearray(RECEIVE_BYTES)
        self.frames = FrameMemory(FRAMES_BYTES_MAX)


TakeFrame = Callable[[bytearray, int, int], bool]
"""Takes the frame in [start, end) of a buffer; False: not all of it now, see
`LeaderConnection.hold`.
"""


class LeaderConnection(asyncio.BufferedProtocol):
    """One connection. `ready` is done when the introduction is over, `closed` at the end."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        memory: ConnectionMemory,
        introduction: Introduction,
        take: TakeFrame,
    ) -> None:
        self._loop = loop
        self._frames = memory.frames
        self._intake = FrameReader(memory.receive, memory.frames, FRAME_BYTES_MAX)
        self._introduction: Introduction | None = introduction
        self._take = take
        self._transport: asyncio.Transport | None = None
        self._is_held = False
        self._is_reading = True
        self._is_blocked = False
        self.heard_s = loop.time()
        self.ready: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[Exception | None] = loop.create_future()
        self.on_writable: Callable[[], None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether frames can be sent."""
        return self._transport is not None

    @property
    def is_held(self) -> bool:
        """Whether nothing is read because the last frame could not be taken."""
        return self._is_held

    @property
    def may_send(self) -> bool:
        """Whether the leader takes what is sent."""
        return self._transport is not None and not self._is_blocked

    def send(self, frame: bytes) -> None:
        """Send a whole frame, or drop it when the connection has ended."""
        if self._transport is not None:
            self._transport.write(frame)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Introduce this node."""
        self._transport = cast(asyncio.Transport, transport)
        assert self._introduction is not None
        self._transport.write(self._introduction.hello())

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the transport reads into."""
        return self._intake.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Handle what has arrived; nothing may be raised from here."""
        self.heard_s = self._loop.time()
        try:
            self._intake.received(nbytes)
            self._process()
        except DlogError as error:
            self.close(error)
        except Exception as error:
            log.exception("Replication failed unexpectedly")
            self.close(ProtocolError(repr(error)))  # which is tried again as any other

    def _process(self) -> None:
        intake = self._intake
        while self._transport is not None and not self._is_held:
            frame = intake.next_frame()
            if frame is None:
                if intake.is_starved:
                    self._frames.when_available(
                        self._on_memory, intake.share, grows=intake.holds_memory
                    )
                break
            buffer, start, end = frame
            if self._introduction is not None:
                self._introduce(memoryview(buffer)[start:end])
            elif not self._take(buffer, start, end):
                assert self._is_held, "who does not take a frame holds it"
            elif not intake.has_more:
                break
        self._update_reading()

    def _introduce(self, payload: memoryview) -> None:
        assert self._introduction is not None
        following = self._introduction.reply(payload)
        if following is not None:
            self.send(following)
            return
        self._introduction = None
        if not self.ready.done():
            self.ready.set_result(None)

    def hold(self) -> tuple[bytearray, int]:
        """Keep the present frame and read no more until `go_on`.

        Returns the frame's buffer and where in it the frame begins, from now on.
        """
        buffer, start, _ = self._intake.hold()
        self._is_held = True
        return buffer, start

    def go_on(self) -> None:
        """The held frame was taken: go on with what has arrived behind it."""
        self._is_held = False
        if self._transport is None:
            return
        self.heard_s = self._loop.time()
        try:
            self._process()
        except DlogError as error:
            self.close(error)

    def _on_memory(self) -> bool:
        if self._transport is None:
            return True
        found = self._intake.retry()
        if found:
            self._update_reading()
        return found

    def _update_reading(self) -> None:
        transport = self._transport
        wanted = not self._is_held and not self._intake.is_starved
        if transport is None or wanted is self._is_reading:
            return
        self._is_reading = wanted
        if wanted:
            transport.resume_reading()
        else:
            transport.pause_reading()

    def pause_writing(self) -> None:
        """The leader does not take what is sent."""
        self._is_blocked = True

    def resume_writing(self) -> None:
        """It does again."""
        self._is_blocked = False
        if self.on_writable is not None:
            self.on_writable()

    def close(self, error: Exception | None = None) -> None:
        """Close at once. Idempotent."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        self._end(error)

    def connection_lost(self, error: Exception | None) -> None:
        """The connection has ended."""
        self._transport = None
        self._end(error or TransportError("the leader closed the connection"))

    def _end(self, error: Exception | None) -> None:
        if self.closed.done():
            return
        self._frames.forget(self._on_memory, self._intake.share)
        self._intake.close()
        if not self.ready.done():
            self.ready.set_exception(error or ProtocolError("closed before the introduction"))
        self.closed.set_result(error)
