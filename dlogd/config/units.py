"""Values with units, as people write them: sizes, durations, shares, addresses.

Pure. Every `parse_…` raises `ValueError` with a message that says what is wanted; every `format_…`
gives the shortest text that parses back to the same value.
"""

import re
from dataclasses import dataclass
from decimal import Decimal

from dlog.address import ANY_IPV4, is_any_ipv6, without_scheme

_BYTE_UNITS = {
    "": 1,
    "b": 1,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
_BYTE_FORMATS = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))

_DURATION_UNITS_MS = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
_DURATION_FORMATS_MS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000))

_NUMBER_AND_UNIT = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*)\Z")
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}\Z")
_SHARE = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,3})?)\s*%\Z")
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,252}[A-Za-z0-9])?\.?\Z")
_LABEL_LENGTH_MAX = 63
_IPV6_LITERAL = re.compile(r"[0-9A-Fa-f:.]{2,45}(%[A-Za-z0-9._-]{1,16})?\Z")

UNLIMITED = -1
"""What a limit holds where there is none."""

PORT_MAX = 65_535
NODE_ID_MAX = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a TCP port; prints as `host:port`."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def is_wildcard(self) -> bool:
        """Whether the host means every interface, which nobody can connect to by name."""
        return self.host == ANY_IPV4 or self.is_any_ipv6

    @property
    def is_any_ipv6(self) -> bool:
        """Whether the host is `::`, which takes every interface of IPv4 as well."""
        return is_any_ipv6(self.host)


@dataclass(frozen=True, slots=True)
class NodeAt:
    """A node and where it is reached; prints as `id@host:port`."""

    node_id: int
    address: Address

    def __str__(self) -> str:
        return f"{self.node_id}@{self.address}"


@dataclass(frozen=True, slots=True)
class DiskReserve:
    """Space of a disk that appends leave free: bytes, or a share; `auto` is the smaller of two."""

    bytes: int | None = None
    percent: Decimal | None = None

    def of(self, total_bytes: int) -> int:
        """Return the reserve of a file system of `total_bytes`, bytes."""
        if self.bytes is not None:
            return self.bytes
        if self.percent is not None:
            return int(total_bytes * self.percent / 100)
        return min(1 << 30, total_bytes // 20)


def _scale(text: str, units: dict[str, int], wanted: str) -> int:
    match = _NUMBER_AND_UNIT.match(text.strip())
    if match is None or match[2].lower() not in units:
        raise ValueError(f"{text!r} is not {wanted}")
    value = Decimal(match[1]) * units[match[2].lower()]
    if value != int(value):
        raise ValueError(f"{text!r} is not a whole number of {'bytes' if '' in units else 'ms'}")
    return int(value)


def parse_bytes(text: str) -> int:
    """Parse `4096`, `64MiB`, `1.5 GiB`, `100MB`."""
    return _scale(text, _BYTE_UNITS, "a size: a number of bytes, or with KiB, MiB, GiB, TiB")


def parse_bytes_or_unlimited(text: str) -> int:
    """Parse a size, or `-1` / `unlimited` for none."""
    return UNLIMITED if text.strip() in ("-1", "unlimited") else parse_bytes(text)


def format_bytes(value: int) -> str:
    """Format bytes with the largest unit that divides them."""
    for unit, size in _BYTE_FORMATS:
        if value > 0 and value % size == 0:
            return f"{value // size}{unit}"
    return str(value)


def parse_duration_ms(text: str) -> int:
    """Parse `250ms`, `1s`, `10min`, `12h`, `7d`; a unit is needed, but for `0`."""
    if text.strip() == "0":
        return 0
    return _scale(text, _DURATION_UNITS_MS, "a duration: a number with ms, s, min, h, d or w")


def parse_duration_ms_or_unlimited(text: str) -> int:
    """Parse a duration, or `-1` / `unlimited` for none."""
    return UNLIMITED if text.strip() in ("-1", "unlimited") else parse_duration_ms(text)


def parse_milliseconds(text: str) -> int:
    """Parse a duration; a bare number is milliseconds (for keys that end in `.ms`)."""
    return int(text) if _INTEGER.match(text.strip()) else parse_duration_ms(text)


def format_duration_ms(value: int) -> str:
    """Format milliseconds with the largest unit that divides them."""
    for unit, size in _DURATION_FORMATS_MS:
        if value > 0 and value % size == 0:
            return f"{value // size}{unit}"
    return f"{value}ms" if value > 0 else str(value)


def parse_integer(text: str) -> int:
    """Parse a whole decimal number."""
    if not _INTEGER.match(text.strip()):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def parse_boolean(text: str) -> bool:
    """Parse `true` or `false` (and YAML's other words for them)."""
    word = text.strip().lower()
    if word in ("true", "yes", "on"):
        return True
    if word in ("false", "no", "off"):
        return False
    raise ValueError(f"{text!r} is neither true nor false")


def format_boolean(value: bool) -> str:
    """Format as YAML does."""
    return "true" if value else "false"


def parse_text(text: str) -> str:
    """Parse a non-empty text without control characters."""
    stripped = text.strip()
    if not stripped or not stripped.isprintable():
        raise ValueError("must be a text that is not empty and has no control characters")
    return stripped


def parse_disk_reserve(text: str) -> DiskReserve:
    """Parse `auto`, a size, or a share such as `5%`."""
    stripped = text.strip()
    if stripped == "auto":
        return DiskReserve()
    if match := _SHARE.match(stripped):
        percent = Decimal(match[1])
        if percent >= 100:
            raise ValueError(f"{text!r} leaves no space for logs")
        return DiskReserve(percent=percent)
    try:
        return DiskReserve(bytes=parse_bytes(stripped))
    except ValueError:
        raise ValueError(f"{text!r} is neither auto, nor a size, nor a share such as 5%") from None


def format_disk_reserve(value: DiskReserve) -> str:
    """Format as `parse_disk_reserve` reads it."""
    if value.bytes is not None:
        return format_bytes(value.bytes)
    return "auto" if value.percent is None else f"{value.percent}%"


def _split_address(text: str) -> tuple[str, str | None]:
    """Split `host`, `host:port`, `[v6]` or `[v6]:port`, perhaps behind `PLAINTEXT://`."""
    text = without_scheme(text)
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or not _IPV6_LITERAL.match(host) or (rest and not rest.startswith(":")):
            raise ValueError(f"{text!r} is not an address: wanted [ipv6]:port")
        return host, rest[1:] if rest else None
    host, colon, port = text.partition(":")
    if not _HOST_NAME.match(host) or not all(
        0 < len(label) <= _LABEL_LENGTH_MAX for label in host.removesuffix(".").split(".")
    ):
        raise ValueError(f"{text!r} is not an address: wanted host:port or [ipv6]:port")
    return host, port if colon else None


def _port_of(text: str, port: str) -> int:
    if not (port.isascii() and port.isdigit()) or int(port) > PORT_MAX:
        raise ValueError(f"{text!r} has no port from 0 to {PORT_MAX}")
    return int(port)


def parse_host(text: str) -> str:
    """Parse a host name or an IP address, without a port."""
    host, port = _split_address(text.strip())
    if port is not None:
        raise ValueError(f"{text!r} has a port: wanted a host alone")
    return host


def parse_address(text: str) -> Address:
    """Parse `host:port`, `[ipv6]:port`; port 0 lets the system choose one."""
    host, port = _split_address(text)
    if port is None:
        raise ValueError(f"{text!r} is not an address: wanted host:port or [ipv6]:port")
    return Address(host, _port_of(text, port))


def parse_node_at(text: str) -> NodeAt:
    """Parse `id@host:port`."""
    number, at, address = text.strip().partition("@")
    if not at or not (number.isascii() and number.isdigit()) or int(number) > NODE_ID_MAX:
        raise ValueError(f"{text!r} is not a node: wanted id@host:port")
    found = parse_address(address)
    if found.is_wildcard or not found.port:
        raise ValueError(f"{text!r} is not an address that other nodes can connect to")
    return NodeAt(int(number), found)


def parse_advertised_address(text: str) -> Address:
    """Parse `host` or `host:port`; without a port it is 0, the listener's own."""
    host, port = _split_address(text)
    address = Address(host, 0 if port is None else _port_of(text, port))
    if address.is_wildcard:
        raise ValueError(f"{text!r} is not an address that clients can connect to")
    return address


def format_advertised_address(value: Address) -> str:
    """Format as `parse_advertised_address` reads it."""
    return str(value) if value.port else str(value).removesuffix(":0")
