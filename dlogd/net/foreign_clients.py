"""Answers and log lines for clients that break the protocol or speak another one.

Clients that speak TLS or HTTP try again for ever. Each is counted, and an address gets one log line
a minute for each protocol. Owner: the event loop's thread; a listener has one.
"""

import contextlib
from collections.abc import Callable

from dlog.errors import ProtocolError
from dlogd.net.connection_admission import RefusalLines
from dlogd.net.foreign_protocols import HTTP, HTTP2, TLS, ForeignProtocolError
from dlogd.net.socket_writer import SocketWriter
from dlogd.runtime.log_events import Event

_HTTP_HINT = "ask http.address for pages; clients of Kafka use this port"
_HINTS = {
    TLS.label: "set security.protocol=PLAINTEXT in the client, or connect by a proxy with TLS",
    HTTP.label: _HTTP_HINT,
    HTTP2.label: _HTTP_HINT,
}
_BODY = b"This port speaks the protocol of Kafka, not HTTP.\n"
HTTP_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"X-Content-Type-Options: nosniff\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
)
"""Nothing in it comes from the request."""


class ForeignClients:
    """Lines and counts of clients that make no sense."""

    def __init__(self, on_foreign: Callable[[str], None] = lambda _label: None) -> None:
        """`on_foreign`: counts a client by the label of its protocol."""
        self._on_foreign = on_foreign
        self._broken = RefusalLines()
        self._lines = {label: RefusalLines() for label in _HINTS}

    def parting(
        self, error: ProtocolError, fresh: SocketWriter | None, host: str, now_us: int
    ) -> Event | None:
        """Return the log line, if one is due, and tell the client what it can read.

        `fresh`: where bytes leave, unless an answer is on its way. The kernel takes a small answer
        at once, so the caller may abort the connection then.
        """
        if not isinstance(error, ForeignProtocolError):
            _, count = self._broken.count(host, now_us)
            line = Event(
                "Closed connection of a client that broke the protocol",
                count=count,
                error=str(error),
            )
            return line if count else None
        label = error.foreign.label
        self._on_foreign(label)
        _, count = self._lines[label].count(host, now_us)
        line = Event(
            "Closed connection of another protocol",
            protocol=label,
            count=count,
            error=str(error),
            hint=_HINTS[label],
        )
        if fresh is not None and error.foreign is HTTP:
            with contextlib.suppress(OSError):  # the client has gone already
                fresh.send((HTTP_ANSWER,))
        return line if count else None
