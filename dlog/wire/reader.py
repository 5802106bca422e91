"""Cursor over a message, for parsers off the hot path.

Each method reads one thing at the position, moves behind it, and raises ProtocolError where the
bytes end too early or make no sense. Counts are bounded by the caller, because each element that an
array announces costs memory of ours.
"""

import struct
from collections.abc import Iterator
from typing import Any

from dlog.errors import ProtocolError
from dlog.rows import unpack_rows
from dlog.wire import topics as topic_keys
from dlog.wire.primitives import read_uvarint, skip_tags
from dlog.wire.topics import TopicKey

ENTRIES_MAX = 100_000
"""Default budget of array entries in one message."""

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


class Reader:
    """Reads [position, end) of a buffer; `flexible` says how lengths are written."""

    __slots__ = ("buffer", "end", "entries_left", "flexible", "position")

    def __init__(
        self,
        buffer: memoryview,
        position: int,
        end: int,
        *,
        flexible: bool,
        entries_max: int = ENTRIES_MAX,
    ) -> None:
        self.buffer = buffer
        self.position = position
        self.end = min(end, len(buffer))
        self.flexible = flexible
        self.entries_left = entries_max

    def numbers(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Read the fixed-size fields of `layout`."""
        after = self.position + layout.size
        if after > self.end:
            raise ProtocolError("a number is cut")
        found = layout.unpack_from(self.buffer, self.position)
        self.position = after
        return found

    def rows(self, layout: struct.Struct, count: int) -> Iterator[tuple[Any, ...]]:
        """Read `count` rows of fixed size at once."""
        start = self.position
        after = start + count * layout.size
        if after > self.end:
            raise ProtocolError("an array is cut")
        self.position = after
        return unpack_rows(layout, self.buffer[start:after])

    def _length(self, legacy: struct.Struct) -> int:
        """Read a length or count; -1 is null."""
        if self.flexible:
            value, self.position = read_uvarint(self.buffer, self.position, self.end)
            return value - 1
        (value,) = self.numbers(legacy)
        if value < -1:
            raise ProtocolError(f"a length of {value}")
        return int(value)

    def count(self, count_max: int) -> int:
        """Read an array's count, at most `count_max`; null counts as empty."""
        count = self._length(_INT32)
        if count > count_max:
            raise ProtocolError(f"an array of {count}")
        return max(count, 0)

    def entries(self) -> int:
        """Read an array's count, -1 for null, and charge it to the budget of the message.

        Each entry has at least one byte, so a count above the rest of the message is a lie.
        """
        count = self._length(_INT32)
        if count > self.end - self.position or count > self.entries_left:
            raise ProtocolError(f"an array of {count}")
        self.entries_left -= count
        return count

    def nullable_bytes(self) -> bytes | None:
        """Copy nullable bytes out."""
        size = self._length(_INT32)
        if size < 0:
            return None
        start = self.position
        if size > self.end - start:
            raise ProtocolError("bytes are cut")
        self.position = start + size
        return self.buffer[start : self.position].tobytes()

    def whole_bytes(self) -> bytes:
        """Copy bytes out that must not be null."""
        data = self.nullable_bytes()
        if data is None:
            raise ProtocolError("bytes are null")
        return data

    def span(self) -> tuple[int, int]:
        """Skip nullable bytes and return where they are; null is empty."""
        size = max(self._length(_INT32), 0)
        start = self.position
        if size > self.end - start:
            raise ProtocolError("bytes are cut")
        self.position = start + size
        return start, self.position

    def nullable_string(self) -> str | None:
        """Read a nullable string."""
        size = self._length(_INT16)
        if size < 0:
            return None
        start = self.position
        if size > self.end - start:
            raise ProtocolError("a string is cut")
        self.position = start + size
        try:
            return str(self.buffer[start : self.position], "utf-8")
        except UnicodeDecodeError:
            raise ProtocolError("a string is not UTF-8") from None

    def string(self) -> str:
        """Read a string that must not be null."""
        text = self.nullable_string()
        if text is None:
            raise ProtocolError("a string is null")
        return text

    def topic_key(self, by_id: bool) -> TopicKey:
        """Read a topic's name or id."""
        size = 16 if by_id else self._length(_INT16)
        start = self.position
        if not 0 <= size <= self.end - start:
            raise ProtocolError("a topic's name or id is null or cut")
        self.position = start + size
        raw = bytes(self.buffer[start : self.position])
        if by_id:
            return topic_keys.ids.get(raw) or topic_keys.decode_id(raw)
        try:
            return topic_keys.names.get(raw) or topic_keys.decode_name(raw)
        except UnicodeDecodeError:
            raise ProtocolError("a topic's name is not UTF-8") from None

    def tags(self) -> None:
        """Skip tagged fields; nothing where the version has none."""
        if self.flexible:
            self.position = skip_tags(self.buffer, self.position, self.end)

    def finish(self) -> None:
        """Raise unless everything was read."""
        if self.position != self.end:
            raise ProtocolError(f"{self.end - self.position} bytes after the message")
