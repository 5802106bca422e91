"""Address of a node: host and port, as transport, clients, command line and daemon share it.

Pure; shared by transport, clients, command line and daemon.
"""

import ipaddress
import re
from dataclasses import dataclass
from typing import Self

ANY_IPV4 = "0.0.0.0"
"""The host that means every interface of IPv4."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9_+.-]{0,31})://(.*)\Z", re.DOTALL)
_PLAIN = "PLAINTEXT"
_TLS = ("SSL", "TLS")
_SHOWN_CHARS_MAX = 100


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """Where a node listens; prints as `host:port`."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `host:port` or `[ipv6]:port`, perhaps behind `PLAINTEXT://`.

        Raises ValueError with a message for people.
        """
        host, colon, port = without_scheme(text).rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ValueError(f"{text!r}: an IPv6 address stands in brackets")
        # Python refuses to read numbers of thousands of digits, in words of its own.
        is_short = port.isdecimal() and len(port) <= 5
        if not colon or not host or not is_short or not 0 < int(port) < 65536:
            raise ValueError(f"{text!r} is not host:port")
        return cls(host, int(port))

    @property
    def tls_name(self) -> str:
        """The host as certificates have it: without the final dot of a full domain name."""
        return self.host.removesuffix(".")


def without_scheme(text: str) -> str:
    """Return what stands behind `PLAINTEXT://`, as Kafka's files write addresses.

    Raises ValueError for another scheme, with what to write instead.
    """
    stripped = text.strip()
    match = _SCHEME.match(stripped)
    if match is None:
        return stripped
    scheme, rest = match[1].upper(), match[2]
    if scheme == _PLAIN:
        return rest
    shown = rest[:_SHOWN_CHARS_MAX] or "host:port"
    head = f"the scheme {match[1]} of {text[:_SHOWN_CHARS_MAX]!r}"
    if scheme in _TLS:
        raise ValueError(
            f"{head} asks for TLS, which dlog's listeners do not have."
            f" Write {shown}; behind a proxy with TLS, turn TLS on by the client's own option"
        )
    if scheme.startswith("SASL"):
        raise ValueError(
            f"{head} asks for SASL, which dlog does not have."
            " Write host:port of a listener without authentication"
        )
    raise ValueError(f"{head} is none of Kafka's. Write the address alone: {shown}")


def is_any_ipv6(host: str) -> bool:
    """Whether the host is the wildcard of IPv6, however it is written."""
    try:
        return ":" in host and ipaddress.IPv6Address(host).is_unspecified
    except ValueError:
        return False
