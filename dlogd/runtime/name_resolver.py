"""Resolver of host names, one lookup per name at a time, so a hung name server takes one thread.

asyncio gives each lookup a thread of a small pool, which stays taken for as long as the resolver
tries, also when nobody waits any more (resolv.conf(5): tens of seconds). Who dials again and again
at a name that nobody answers for would soon have all of them, and no other name could be found.
"""

import asyncio
import socket
from functools import partial
from typing import Any

Found = list[tuple[Any, ...]]


def share_lookups(loop: asyncio.AbstractEventLoop) -> None:
    """Let all who look a name up at the same time wait for one lookup.

    For asyncio's loops; others, such as uvloop's, have threads of their own.
    """
    if not isinstance(loop, asyncio.BaseEventLoop):
        return
    pending: dict[tuple[Any, ...], asyncio.Future[Found]] = {}

    def end(key: tuple[Any, ...], future: asyncio.Future[Found]) -> None:
        del pending[key]
        if not future.cancelled():
            future.exception()  # whoever waited has gone perhaps

    async def getaddrinfo(
        host: Any, port: Any, *, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> Found:
        key = (host, port, family, type, proto, flags)
        future = pending.get(key)
        if future is None:
            future = pending[key] = loop.run_in_executor(None, socket.getaddrinfo, *key)
            future.add_done_callback(partial(end, key))
        return await asyncio.shield(future)

    loop.getaddrinfo = getaddrinfo  # type: ignore[method-assign]
