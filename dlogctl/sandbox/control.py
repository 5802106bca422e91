"""The supervisor's control socket: one JSON object per line, a request and its answer.

    {"command": "restart", "node": 1}   ->   {"pid": 1234}   or   {"error": "..."}

Called by the supervisor (`serve`) and by `dlogctl sandbox restart` (`ask`). Whether a supervisor
lives is told by its lock on the directory, which ends with it and which nobody can remove.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from dlogctl.sandbox.layout import CONTROL_SOCKET

LINE_BYTES_MAX = 4096
PATH_BYTES_MAX = 100  # sun_path holds 108

Answer = Callable[[object], Awaitable[dict[str, Any]]]
"""Answers whatever JSON value somebody sent."""


@contextlib.contextmanager
def socket_path(directory: Path) -> Iterator[str]:
    """Give a name of the socket that fits into a socket address, however deep `directory` is."""
    path = str(directory / CONTROL_SOCKET)
    if len(os.fsencode(path)) <= PATH_BYTES_MAX:
        yield path
        return
    descriptor = os.open(directory, os.O_PATH)
    try:
        yield f"/proc/self/fd/{descriptor}/{CONTROL_SOCKET}"
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def claim(directory: Path) -> Iterator[None]:
    """Hold the lock of a sandbox in `directory`; raise BlockingIOError when another one has it."""
    # The daemons do not inherit it.
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def is_claimed(directory: Path) -> bool:
    """Return whether a supervisor lives in `directory`, reachable by its socket or not."""
    try:
        with claim(directory):
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False  # no such directory


async def serve(directory: Path, answer: Answer) -> asyncio.AbstractServer:
    """Listen in `directory`; a socket file that nobody listens on is replaced."""

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = json.loads(await reader.readline())
            writer.write(json.dumps(await answer(request)).encode() + b"\n")
            await writer.drain()
        except (ValueError, OSError):
            pass  # not our protocol, or the asker went away
        finally:
            writer.close()

    listening = _listen(directory)
    return await asyncio.start_unix_server(converse, sock=listening, limit=LINE_BYTES_MAX)


def _listen(directory: Path) -> socket.socket:
    """Bind the socket, for its owner alone; raise OSError."""
    with contextlib.suppress(FileNotFoundError):
        (directory / CONTROL_SOCKET).unlink()  # the directory is claimed: of one that was killed
    listening = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o177)
    try:
        with socket_path(directory) as path:
            listening.bind(path)
    except OSError:
        listening.close()
        raise
    finally:
        os.umask(mask)
    return listening


def ask(directory: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Ask the supervisor in `directory`; raise OSError where none listens."""
    with socket_path(directory) as path, socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile("rb") as lines:
            answer = lines.readline(LINE_BYTES_MAX)
    if not answer:
        raise ConnectionResetError("the sandbox ended before it answered")
    found: dict[str, Any] = json.loads(answer)
    return found
