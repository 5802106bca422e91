"""Addresses before a start: of this host, and free or held by the daemon that runs. Blocking."""

import errno
import socket
from collections.abc import Iterator

from dlogd.config.schema import Config
from dlogd.config.units import Address
from dlogd.preflight.findings import Finding, later, never
from dlogd.preflight.processes import listens

PRIVILEGED = 1024
"""Ports below belong to root (ip(7), ip_unprivileged_port_start)."""


def _own_controller(config: Config) -> Address | None:
    for each in config.controllers or ():
        if each.node_id == config.node.id:
            return each.address
    return None


def wanted(config: Config) -> list[tuple[str, Address]]:
    """Return key and address of everything that a start listens on."""
    found = [("listeners", each) for each in config.listeners]
    found.append(("http.address", config.http.address))
    if config.controllers is not None:
        found.append(("internal.listener", config.internal.listener))
        if config.metadata.listener is not None:
            found.append(("metadata.listener", config.metadata.listener))
        else:
            own = _own_controller(config)
            if own is not None:
                found.append(("controllers", own))
    return found


def problems(config: Config, process: int | None) -> Iterator[Finding]:
    """Say what is wrong with each address; `process` is the daemon that runs here, if one does."""
    for key, address in wanted(config):
        yield from _try(key, address, process)
    own = _own_controller(config)
    if own is not None and config.metadata.listener is not None:
        yield from _is_here(own)


def _resolved(address: Address) -> list[tuple[socket.AddressFamily, tuple[str, int]]]:
    found = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    return [(family, (str(place[0]), int(place[1]))) for family, _, _, _, place in found]


def _try(key: str, address: Address, process: int | None) -> Iterator[Finding]:
    try:
        places = _resolved(address)
    except OSError as error:
        yield never(
            f"{key}: {address.host} is not known here ({error.strerror}): write it into /etc/hosts"
            " or the DNS, or give its address"
        )
        return
    for family, place in places:
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(place)
                # A listener on a wildcard address shows only here.
                probe.listen(1)
        except OSError as error:
            yield from _refused(key, address, process, error)
            return


def _refused(key: str, address: Address, process: int | None, error: OSError) -> Iterator[Finding]:
    if error.errno == errno.EADDRINUSE:
        if process is None or not listens(process, address.port):
            yield later(
                f"{key}: port {address.port} of {address.host} is in use by another process (see"
                f" ss -ltnp 'sport = {address.port}'): stop that, or take another port"
            )
    elif error.errno == errno.EADDRNOTAVAIL:
        yield never(
            f"{key}: {address.host} is no address of this host (see ip addr): correct it, or wait"
            " for the network"
        )
    elif error.errno == errno.EACCES and address.port < PRIVILEGED:
        yield never(f"{key}: port {address.port} belongs to root: take one from 1024 on")
    else:
        yield never(f"{key}: {address} cannot be listened on: {error.strerror}")


def _is_here(own: Address) -> Iterator[Finding]:
    """The own entry of `controllers` must lead here, also where another address is listened on."""
    try:
        for family, place in _resolved(Address(own.host, 0)):
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.bind(place)
                return
    except OSError as error:
        yield never(
            f"controllers: {own.host}, the entry of this node, does not lead to this host"
            f" ({error.strerror}): correct it"
        )
