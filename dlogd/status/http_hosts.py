"""Hosts that an HTTP request may name: IP addresses, `localhost`, and names of this node.

A web page of a stranger can point a name of its own at this node's address (DNS rebinding), and the
browser of an operator then sends requests for that name. Such a name is none of this node's.
`dlogd.status.http_server` asks before each page.
"""

import ipaddress
import logging
import re
from collections.abc import Iterable

from dlogd.config.schema import Config
from dlogd.status.http_heads import HttpError, Request
from dlogd.telemetry.http_metrics import HttpMetrics

log = logging.getLogger(__name__)

KEY = "http.hosts"
LOG_INTERVAL_S = 60.0
ADDRESSES_MAX = 1000
SHOWN_CHARS_MAX = 100
_AUTHORITY = re.compile(r"(?:\[([^\[\]@/]+)\]|([^\[\]@/:]+))(?::[0-9]{0,5})?")


def names_of(config: Config, host_name: str) -> frozenset[str]:
    """Return the names that requests to this node may use, in lower case."""
    advertised = config.advertised.address
    own = [config.http.address, *config.listeners, *([advertised] if advertised else [])]
    return frozenset(
        _plain(name)
        for name in ("localhost", host_name, *(each.host for each in own), *config.http.hosts)
        if name
    )


def _plain(name: str) -> str:
    return name.lower().removesuffix(".")


def _is_ip_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def host_of(authority: str) -> str:
    """Return the host of `host`, `host:port` or `[ipv6]:port`; raise HttpError."""
    match = _AUTHORITY.fullmatch(authority)
    if match is None or (match[1] is not None and not _is_ip_address(match[1])):
        raise HttpError(400, f"malformed host {authority[:SHOWN_CHARS_MAX]!r}: wanted host:port")
    return str(match[1] or match[2])


class HostCheck:
    """Refuses requests for hosts of others, counts them, and logs each client once a minute.

    Owner: the event loop's thread.
    """

    def __init__(self, names: Iterable[str], metrics: HttpMetrics) -> None:
        self.names = frozenset(map(_plain, names))
        self._metrics = metrics
        self._logged: dict[str, tuple[float, int]] = {}  # when last, and how many since then

    def check(self, request: Request, peer: str, now_s: float) -> None:
        """Raise HttpError when a host that the request names is none of this node's."""
        for authority in request.authorities:
            host = host_of(authority)
            if _plain(host) in self.names or _is_ip_address(host):
                continue
            shown = host[:SHOWN_CHARS_MAX]
            self._metrics.hosts_refused_total += 1
            self._log(shown, peer, now_s)
            raise HttpError(
                421,
                f"this node is not called {shown!r}; ask by its IP address, or add the name to"
                f" {KEY} in the node's configuration",
            )

    def _log(self, host: str, peer: str, now_s: float) -> None:
        since, count = self._logged.pop(peer, (now_s - LOG_INTERVAL_S, 0))
        if now_s - since < LOG_INTERVAL_S:
            self._logged[peer] = (since, count + 1)
            return
        if len(self._logged) >= ADDRESSES_MAX:
            del self._logged[next(iter(self._logged))]
        self._logged[peer] = (now_s, 0)
        log.warning(
            "Refused HTTP requests for a foreign host peer=%s host=%r count=%d",
            peer,
            host,
            count + 1,
        )
