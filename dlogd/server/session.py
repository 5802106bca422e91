"""Session of one connection: what handlers may know of the client, kept between requests."""

from dataclasses import dataclass

CLIENT_ID_CHARACTERS_MAX = 100
"""Longer client ids are cut where they are kept or logged."""


@dataclass(slots=True, kw_only=True)
class Session:
    """State of one connection for handlers, from its first request to its last. Owned by it."""

    address: str = "?"  # host:port, for log lines
    network: str = "?"  # by which bounds and turns count: the host, or its IPv6 /64
    listener: str = ""  # by which the peer came; answers name nodes' addresses on the same one
