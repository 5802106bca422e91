"""First bytes of other protocols on a port that expects frames.

Pure. The length field of a frame is read from the same four bytes: those of TLS are a frame of 352
MiB, `GET ` is one of 1.1 GiB. A listener that refuses the length asks here what the bytes are.
"""

from dataclasses import dataclass

from dlog.errors import ProtocolError

HEAD_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """A protocol that is not served at a port."""

    label: str
    """In metrics and log lines."""
    meaning: str
    """What the first bytes are, and what that says."""


TLS = Foreign(
    label="tls", meaning="the first bytes are those of TLS, and this port is not encrypted"
)
HTTP = Foreign(
    label="http", meaning="the first bytes are an HTTP request, and HTTP is served at http.address"
)
HTTP2 = Foreign(
    label="http2", meaning="the first bytes are those of HTTP/2, and HTTP is served at http.address"
)

_HTTP_HEADS = (b"GET ", b"POST", b"HEAD", b"PUT ", b"CONN", b"OPTI", b"DELE", b"PATC", b"TRAC")
_HTTP2_HEAD = b"PRI "
_TLS_HANDSHAKE = b"\x16\x03"


class ForeignProtocolError(ProtocolError):
    """The client speaks another protocol."""

    def __init__(self, foreign: Foreign) -> None:
        super().__init__(foreign.meaning)
        self.foreign = foreign


def recognise(head: bytes | bytearray | memoryview) -> Foreign | None:
    """Return the protocol that a connection begins with, None when it is none of these."""
    first = bytes(head[:HEAD_BYTES])
    if first.startswith(_TLS_HANDSHAKE):
        return TLS
    if first == _HTTP2_HEAD:
        return HTTP2
    return HTTP if first in _HTTP_HEADS else None


def check(head: bytes | bytearray | memoryview) -> None:
    """Raise ForeignProtocolError for the first bytes of another protocol."""
    foreign = recognise(head)
    if foreign is not None:
        raise ForeignProtocolError(foreign)


def explained(error: Exception, head: bytes | bytearray | memoryview) -> str:
    """Return what is wrong with a stream: the other protocol, if it is one, else the error."""
    foreign = recognise(head)
    return str(error) if foreign is None else foreign.meaning
