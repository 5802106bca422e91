"""Requests to an HTTP server as plain bytes, and what comes back."""

import asyncio

from dlogd.status.http_heads import Request, Response, text_response

HOST = "127.0.0.1"


async def exchange(port: int, sent: bytes) -> bytes:
    """Send bytes and read until the server ends the connection."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(sent)
        return await asyncio.wait_for(reader.read(), 5)
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


def get(path: str, **headers: str) -> bytes:
    """Return a request for a page."""
    lines = [f"GET {path} HTTP/1.1", "Host: 127.0.0.1", *(f"{k}: {v}" for k, v in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def live(_request: Request) -> Response:
    """Answer as the page does that says that the process lives."""
    return text_response(200, "live")
