"""Listening sockets; `[::]` means every interface, IPv6 and IPv4.

asyncio binds `::` to IPv6 alone. Here a wildcard of IPv6 gets a socket for each family, so peers
keep their plain addresses. On a host without IPv6 the port is bound for IPv4.
"""

import asyncio
import errno
import logging
from collections.abc import Callable
from typing import Any

from dlog.address import ANY_IPV4, is_any_ipv6

log = logging.getLogger(__name__)

ANY = ("::", ANY_IPV4)
ATTEMPTS_MAX = 20
"""Ports tried when the system chooses: one that is free for IPv4 may be taken for IPv6."""
_NO_IPV6 = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


async def bind(
    loop: asyncio.AbstractEventLoop,
    factory: Callable[[], asyncio.BaseProtocol],
    host: str,
    port: int,
    **options: Any,
) -> tuple[asyncio.AbstractServer, int]:
    """Bind the address; return the server and the port, which the system chose for `port` 0.

    Raises OSError when the address cannot be had. `options` are those of `loop.create_server`.
    """
    if not is_any_ipv6(host):
        return await _bound(loop, factory, host, port, options)
    for attempt in range(1, ATTEMPTS_MAX + 1):
        chosen = port or await _free_port(loop, factory)
        try:
            return await _bound(loop, factory, ANY, chosen, options)
        except OSError as error:
            if error.errno in _NO_IPV6:
                log.warning("Listening on IPv4 only because the host has no IPv6 port=%d", chosen)
                return await _bound(loop, factory, ANY_IPV4, chosen, options)
            if port or error.errno != errno.EADDRINUSE or attempt == ATTEMPTS_MAX:
                raise
    raise AssertionError("the last attempt returns or raises")


async def _bound(
    loop: asyncio.AbstractEventLoop,
    factory: Callable[[], asyncio.BaseProtocol],
    host: Any,
    port: int,
    options: dict[str, Any],
) -> tuple[asyncio.AbstractServer, int]:
    server: asyncio.AbstractServer = await loop.create_server(factory, host, port, **options)
    sockets = getattr(server, "sockets", None)
    return server, sockets[0].getsockname()[1] if sockets else port


async def _free_port(
    loop: asyncio.AbstractEventLoop, factory: Callable[[], asyncio.BaseProtocol]
) -> int:
    """Return a port that the system gave for IPv4 a moment ago."""
    server, port = await _bound(loop, factory, ANY_IPV4, 0, {"start_serving": False})
    server.close()
    return port
