"""Asks a node's HTTP endpoint for /status: one GET on the client's own event loop."""

import asyncio
import json
import os
from typing import Any

from dlog.errors import ConnectFailedError, ProtocolError
from dlog.transport import Address

ANSWER_BYTES_MAX = 16 * 1024 * 1024


async def get_status(address: Address, timeout_s: float) -> dict[str, Any]:
    """Return the node's /status; raise ConnectFailedError or ProtocolError."""
    try:
        async with asyncio.timeout(timeout_s):
            answer = await _get(address, "/status")
    except OSError as error:
        raise ConnectFailedError(
            f"no answer from http://{address}/status: {_why(error)}"
        ) from error
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.split(b"\r\n", 1)[0].split(b" ")
    try:
        if words[1] != b"200":
            raise ProtocolError(f"http://{address}/status answers {words[1].decode()}")
        status: dict[str, Any] = json.loads(body)
    except (ValueError, IndexError):
        raise ProtocolError(f"what answers at http://{address}/status is no dlogd") from None
    return status


def _why(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "time-out"
    # Not asyncio's own words, which repeat the address.
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)


async def _get(address: Address, path: str) -> bytes:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        request = f"GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
        writer.write(request.encode())
        pieces: list[bytes] = []
        while sum(map(len, pieces)) < ANSWER_BYTES_MAX and (piece := await reader.read(1 << 16)):
            pieces.append(piece)
        return b"".join(pieces)
    finally:
        writer.close()
