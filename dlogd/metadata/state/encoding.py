"""Encoding of metadata: big-endian integers, texts, lists.

Pure. Shared by commands, snapshots and the journal. There is one encoding of each value, so what
decodes encodes back to the same bytes. `Reader` never reads beyond its end, never allocates more
than the input can hold, and raises only `MalformedError`; so does `Writer` for what does not fit.

    u8 u16 u32 i32 i64   big-endian
    uuid                 16 bytes
    text                 u16 length, UTF-8
    optional text        u8 0, or u8 1 and a text
    pairs                u32 count, then key text and value text, keys strictly ascending
"""

import struct
from collections.abc import Mapping
from uuid import UUID

from dlog.errors import DlogError

_U8 = struct.Struct(">B")
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")

TEXT_BYTES_MAX = 0xFFFF


class MalformedError(DlogError):
    """Bytes that are not what they should be, or a value that has no encoding."""


class Writer:
    """Appends values to `data`."""

    def __init__(self) -> None:
        self.data = bytearray()

    def _pack(self, form: struct.Struct, value: int) -> None:
        try:
            self.data += form.pack(value)
        except struct.error as error:
            raise MalformedError(f"{value!r} does not fit: {error}") from None

    def u8(self, value: int) -> None:
        """Append one byte."""
        self._pack(_U8, value)

    def u16(self, value: int) -> None:
        """Append an unsigned 16-bit integer."""
        self._pack(_U16, value)

    def u32(self, value: int) -> None:
        """Append an unsigned 32-bit integer; all counts are such."""
        self._pack(_U32, value)

    def i32(self, value: int) -> None:
        """Append a signed 32-bit integer."""
        self._pack(_I32, value)

    def i64(self, value: int) -> None:
        """Append a signed 64-bit integer."""
        self._pack(_I64, value)

    def boolean(self, value: bool) -> None:
        """Append 0 or 1."""
        self.data.append(1 if value else 0)

    def uuid(self, value: UUID) -> None:
        """Append 16 bytes."""
        self.data += value.bytes

    def text(self, value: str) -> None:
        """Append a text of at most 65,535 bytes."""
        try:
            encoded = value.encode()
        except UnicodeEncodeError as error:
            raise MalformedError(f"{value[:80]!r} is no Unicode text: {error.reason}") from None
        if len(encoded) > TEXT_BYTES_MAX:
            raise MalformedError(f"a text of {len(encoded)} bytes is too long")
        self.data += _U16.pack(len(encoded))
        self.data += encoded

    def optional_text(self, value: str | None) -> None:
        """Append a text or its absence."""
        self.boolean(value is not None)
        if value is not None:
            self.text(value)

    def pairs(self, values: Mapping[str, str]) -> None:
        """Append a mapping, ordered by key (as UTF-8, which is the order of code points)."""
        self.u32(len(values))
        for key in sorted(values):
            self.text(key)
            self.text(values[key])


class Reader:
    """Reads values one after the other from `data[position:end]`."""

    def __init__(self, data: bytes | bytearray | memoryview, position: int = 0) -> None:
        self._data = bytes(data)
        self._position = position
        self._end = len(self._data)

    @property
    def left(self) -> int:
        """How many bytes have not been read."""
        return self._end - self._position

    def _take(self, length: int) -> int:
        """Step over `length` bytes and return where they begin."""
        position = self._position
        if length > self._end - position:
            raise MalformedError(f"ends at {self._end}, wanted {length} bytes at {position}")
        self._position = position + length
        return position

    def _unpack(self, form: struct.Struct) -> int:
        value: int = form.unpack_from(self._data, self._take(form.size))[0]
        return value

    def u8(self) -> int:
        """Read one byte."""
        return self._unpack(_U8)

    def u16(self) -> int:
        """Read an unsigned 16-bit integer."""
        return self._unpack(_U16)

    def u32(self) -> int:
        """Read an unsigned 32-bit integer."""
        return self._unpack(_U32)

    def i32(self) -> int:
        """Read a signed 32-bit integer."""
        return self._unpack(_I32)

    def i64(self) -> int:
        """Read a signed 64-bit integer."""
        return self._unpack(_I64)

    def count(self, item_bytes_min: int) -> int:
        """Read the count of a list whose items take at least so many bytes each."""
        count = self.u32()
        if count * item_bytes_min > self.left:
            raise MalformedError(f"a list of {count} items in {self.left} bytes")
        return count

    def boolean(self) -> bool:
        """Read 0 or 1."""
        value = self.u8()
        if value > 1:
            raise MalformedError(f"{value} is neither 0 nor 1")
        return value == 1

    def raw(self, length: int) -> bytes:
        """Read so many bytes as they are."""
        position = self._take(length)
        return self._data[position : position + length]

    def uuid(self) -> UUID:
        """Read 16 bytes."""
        return UUID(bytes=self.raw(16))

    def text(self) -> str:
        """Read a text."""
        raw = self.raw(self.u16())
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise MalformedError(f"a text is not UTF-8: {error.reason}") from None

    def optional_text(self) -> str | None:
        """Read a text or its absence."""
        return self.text() if self.boolean() else None

    def pairs(self) -> dict[str, str]:
        """Read a mapping, ordered by key."""
        values: dict[str, str] = {}
        last: bytes | None = None
        for _ in range(self.count(4)):
            key = self.text()
            encoded = key.encode()
            if last is not None and encoded <= last:
                raise MalformedError(f"key {key!r} is out of order")
            last = encoded
            values[key] = self.text()
        return values

    def expect_end(self) -> None:
        """Raise unless all has been read."""
        if self.left:
            raise MalformedError(f"{self.left} bytes too many")
