"""Addresses as they are given on the command line.

Apart from `dlogctl.settings`, because `dlog.transport` brings asyncio and TLS with it: `--help` and
commands that work offline do without.
"""

from dlog.transport import Address


def parse_addresses(text: str) -> tuple[Address, ...]:
    """Parse `host:port,host:port`; raise ValueError with a message for people."""
    addresses = tuple(Address.parse(part) for part in text.split(",") if part.strip())
    if not addresses:
        raise ValueError("no address")
    return addresses
