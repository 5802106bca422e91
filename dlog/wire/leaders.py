"""Current leader and its endpoints in responses of Produce and Fetch (KIP-951).

Both stand in tagged fields, in one form for Produce 10 and Fetch 12 (leader) or 16 (endpoints).
"""

import struct
from collections.abc import Sequence

from dlog.wire.primitives import append_count, append_string, append_uvarint, iter_tags
from dlog.wire.reader import Reader

CurrentLeader = tuple[int, int]
"""(node id, leader epoch)."""

NodeEndpoint = tuple[int, str, int, str | None]
"""(node id, host, port, rack)."""

ENDPOINTS_TAG = 0
_ENDPOINTS_MAX = 100_000
_LEADER = struct.Struct(">ii")
_INT32 = struct.Struct(">i")


def append_leader(output: bytearray, tag: int, leader: CurrentLeader) -> None:
    """Append one tagged field with the leader; the count of fields is the caller's."""
    append_uvarint(output, tag)
    output += b"\x09"  # size: two numbers and their own empty tagged fields
    output += _LEADER.pack(*leader)
    output += b"\x00"


def parse_leader(buffer: memoryview, position: int, end: int) -> CurrentLeader:
    """Read the content of that tagged field."""
    node_id, leader_epoch = Reader(buffer, position, end, flexible=True).numbers(_LEADER)
    return node_id, leader_epoch


def endpoints_tags(endpoints: Sequence[NodeEndpoint]) -> bytes:
    """Return the tagged fields that end a response: the endpoints, or none."""
    if not endpoints:
        return b"\x00"
    content = bytearray()
    append_count(content, len(endpoints), True)
    for node_id, host, port, rack in endpoints:
        content += _INT32.pack(node_id)
        append_string(content, host, True)
        content += _INT32.pack(port)
        append_string(content, rack, True)
        content += b"\x00"
    output = bytearray((1, ENDPOINTS_TAG))
    append_uvarint(output, len(content))
    return bytes(output + content)


def parse_endpoints_tags(
    buffer: memoryview, position: int, end: int
) -> tuple[list[NodeEndpoint], int]:
    """Read the tagged fields that end a response; return the endpoints and the next position."""
    endpoints: list[NodeEndpoint] = []
    for tag, start, after in iter_tags(buffer, position, end):
        if tag == ENDPOINTS_TAG:
            endpoints = _parse_endpoints(Reader(buffer, start, after, flexible=True))
        position = after
    return endpoints, position


def _parse_endpoints(reader: Reader) -> list[NodeEndpoint]:
    endpoints: list[NodeEndpoint] = []
    for _ in range(reader.count(_ENDPOINTS_MAX)):
        (node_id,) = reader.numbers(_INT32)
        host = reader.string()
        (port,) = reader.numbers(_INT32)
        rack = reader.nullable_string()
        reader.tags()
        endpoints.append((node_id, host, port, rack))
    return endpoints
