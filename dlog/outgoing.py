"""Requests without an answer (produce with acks 0), until their bytes have left.

What is still in the transport's buffer is lost when the connection is closed, so that such a
request is done only when the operating system has all of it. asyncio tells that of no write: it is
looked at again and again while something is left, which is rare.
"""

import asyncio
from collections import deque

from dlog.errors import RequestTimedOutError
from dlog.pipeline import Request

LOOK_S = 0.005

_NOTHING = memoryview(b"")


class Outgoing:
    """Unanswered requests of one connection, in order. Owner: its connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._requests: deque[Request] = deque()
        self._timer: asyncio.Handle | None = None

    @property
    def is_empty(self) -> bool:
        """Whether everything has left."""
        return not self._requests

    def add(self, request: Request, transport: asyncio.WriteTransport | None) -> None:
        """Take a request that is being written; it is told from the loop."""
        self._requests.append(request)
        if self._timer is None:
            self._timer = self._loop.call_soon(self._look, transport)

    def clear(self) -> list[Request]:
        """Take out what has not left."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        left = list(self._requests)
        self._requests.clear()
        return left

    def _expire(self) -> None:
        now = self._loop.time()
        for request in self._requests:
            if request.deadline <= now and not request.is_over:
                request.is_over = True
                request.on_error(RequestTimedOutError("the node stopped reading"))

    def _look(self, transport: asyncio.WriteTransport | None) -> None:
        if transport is not None and transport.get_write_buffer_size():
            self._expire()
            self._timer = self._loop.call_later(LOOK_S, self._look, transport)
            return
        self._timer = None
        for request in self.clear():
            if not request.is_over:
                request.is_over = True
                request.on_response(_NOTHING)
