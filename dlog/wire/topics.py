"""Topic keys as they stand in requests: names or ids, bytes to objects and back, remembered.

A broker sees the same few names millions of times, so decoding is a dictionary look-up. The caches
are bounded in entries and in bytes, for their keys come from the peer.
"""

from uuid import UUID

from dlog.errors import ProtocolError
from dlog.wire.primitives import append_string, read_uvarint

TopicKey = str | UUID
"""A topic's name, or its id from Produce 13 and Fetch 13 on."""

NAME_BYTES_MAX = 249
_CACHE_ENTRIES_MAX = 16_384

names: dict[bytes, str] = {}
"""UTF-8 bytes to name; hot paths look here first and call `decode_name` on a miss."""

ids: dict[bytes, UUID] = {}
"""Sixteen bytes to topic id; hot paths look here first and call `decode_id` on a miss."""


def decode_name(raw: bytes) -> str:
    """Decode a name and remember it; raises UnicodeDecodeError."""
    name = raw.decode()
    if len(raw) <= NAME_BYTES_MAX:
        if len(names) >= _CACHE_ENTRIES_MAX:
            names.clear()
        names[raw] = name
    return name


def decode_id(raw: bytes) -> UUID:
    """Make a topic id of sixteen bytes and remember it."""
    topic_id = UUID(bytes=raw)
    if len(ids) >= _CACHE_ENTRIES_MAX:
        ids.clear()
    ids[raw] = topic_id
    return topic_id


def read_key(view: memoryview, position: int, end: int, by_id: bool) -> tuple[TopicKey, int]:
    """Read a topic key of a flexible version: a compact string, or sixteen bytes.

    `view` ends at `end`. Raises ProtocolError.
    """
    if by_id:
        after = position + 16
        if after > end:
            raise ProtocolError("a topic id is cut")
        raw = bytes(view[position:after])
        return ids.get(raw) or decode_id(raw), after
    size, position = read_uvarint(view, position, end)
    after = position + size - 1
    if size == 0 or after > end:
        raise ProtocolError("a topic's name is null or cut")
    raw = bytes(view[position:after])
    try:
        return names.get(raw) or decode_name(raw), after
    except UnicodeDecodeError:
        raise ProtocolError("a topic's name is not UTF-8") from None


def append_key(output: bytearray, topic: TopicKey, flexible: bool) -> None:
    """Append a topic key; its type decides between id and name."""
    if isinstance(topic, UUID):
        output += topic.bytes
    else:
        append_string(output, topic, flexible)
