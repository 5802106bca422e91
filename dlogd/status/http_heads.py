"""Heads of HTTP/1.1 requests and responses as bytes, without sockets: GET and HEAD, no bodies.

Pure. `dlogd.status.http_server` reads and writes them; `dlogd.status.http_hosts` judges the hosts
that a request names.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import unquote, urlsplit

TEXT = "text/plain; charset=utf-8"
END_OF_HEAD = b"\r\n\r\n"
_METHODS = ("GET", "HEAD")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One parsed request head; header names are in lower case."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    keep_alive: bool
    authorities: tuple[str, ...] = ()
    """Whom the request is for: of an absolute target, and of the `Host` header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """What a page answers."""

    body: bytes
    status: int = 200
    content_type: str = TEXT


Page = Callable[[Request], Awaitable[Response]]


class HttpError(Exception):
    """A request that is answered with an error status; the connection ends after it."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def _headers_of(lines: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise HttpError(400, "malformed header")
        if name.lower() == "host" and "host" in headers:
            raise HttpError(400, "more than one Host header")
        headers[name.lower()] = value.strip()
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        raise HttpError(413, "a request here has no body")
    return headers


def _split_target(target: str) -> tuple[tuple[str, ...], str, str]:
    """Return authorities, path and query of a target; raise HttpError."""
    if target.startswith("/") and not target.startswith("//"):
        path, _, query = target.partition("#")[0].partition("?")
        return (), path, query
    try:
        url = urlsplit(target)
    except ValueError:
        raise HttpError(400, "malformed target") from None
    if url.scheme not in ("http", "https") or not url.netloc:
        raise HttpError(400, "malformed target: wanted a path such as /metrics")
    return (url.netloc,), url.path, url.query


def parse_head(head: bytes) -> Request:
    """Parse a request head without its empty line; raise HttpError."""
    lines = head.decode("latin-1").split("\r\n")
    parts = lines[0].split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise HttpError(400, "not an HTTP/1 request")
    method, target, version = parts
    headers = _headers_of(lines[1:])
    if method not in _METHODS:
        raise HttpError(405, "only GET and HEAD")
    authorities, path, query = _split_target(target)
    host = headers.get("host")
    if host is None and version != "HTTP/1.0":
        raise HttpError(400, "no Host header: HTTP/1.1 needs one")
    connection = headers.get("connection", "").lower()
    keep_alive = connection != "close" if version == "HTTP/1.1" else connection == "keep-alive"
    return Request(
        method=method,
        path=unquote(path),
        query=query,
        headers=headers,
        keep_alive=keep_alive,
        authorities=authorities if host is None else (*authorities, host),
    )


def encode_response(response: Response, *, keep_alive: bool, with_body: bool = True) -> bytes:
    """Encode status line, headers and, unless it answers HEAD, the body."""
    head = (
        f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}\r\n"
        f"Content-Type: {response.content_type}\r\n"
        f"Content-Length: {len(response.body)}\r\n"
        "Cache-Control: no-store\r\n"
        "X-Content-Type-Options: nosniff\r\n"
        f"{'Allow: GET, HEAD' + chr(13) + chr(10) if response.status == 405 else ''}"
        f"Connection: {'keep-alive' if keep_alive else 'close'}\r\n\r\n"
    )
    return head.encode("latin-1") + (response.body if with_body else b"")


def text_response(status: int, text: str) -> Response:
    """Return a line of plain text."""
    return Response(status=status, body=text.encode() + b"\n")
