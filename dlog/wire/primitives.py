"""Variable-length numbers, strings and tagged fields of the flexible versions (KIP-482).

For the paths that are not hot: the hot ones in `produce` and `fetch` spell these out in place.
Readers take (buffer, position, end), return (value, next position), raise ProtocolError at `end`.
"""

from collections.abc import Iterator

from dlog.errors import ProtocolError

TAGS_MAX = 1024
"""More tagged fields than this in one place are refused: reading them would only cost time."""

STRING_BYTES_MAX = 0x7FFF
"""Longest string of the versions that are not flexible."""

_UVARINT_BYTES_MAX = 5


def append_uvarint(output: bytearray, value: int) -> None:
    """Append an unsigned varint, seven bits per byte, lowest first."""
    while value > 0x7F:
        output.append(value & 0x7F | 0x80)
        value >>= 7
    output.append(value)


def uvarint(value: int) -> bytes:
    """Return `value` as an unsigned varint."""
    output = bytearray()
    append_uvarint(output, value)
    return bytes(output)


def append_string(output: bytearray, text: str | None, flexible: bool) -> None:
    """Append a nullable string: compact, or with an int16 length."""
    if text is None:
        output += b"\x00" if flexible else b"\xff\xff"
        return
    raw = text.encode()
    if flexible:
        append_uvarint(output, len(raw) + 1)
    elif len(raw) <= STRING_BYTES_MAX:
        output += len(raw).to_bytes(2, "big")
    else:
        raise ValueError(f"a string of {len(raw)} bytes")
    output += raw


def append_count(output: bytearray, count: int, flexible: bool) -> None:
    """Append the count of an array: compact, or an int32."""
    if flexible:
        append_uvarint(output, count + 1)
    else:
        output += count.to_bytes(4, "big")


def read_uvarint(buffer: memoryview, position: int, end: int) -> tuple[int, int]:
    """Read an unsigned varint of at most 32 bits."""
    value = 0
    for count in range(_UVARINT_BYTES_MAX):
        if position + count >= end:
            raise ProtocolError("a number is cut")
        byte = buffer[position + count]
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                break
            return value, position + count + 1
    raise ProtocolError("a number has more than 32 bits")


def iter_tags(buffer: memoryview, position: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield (tag, start, end) of each tagged field, then (-1, p, p) with p behind them all.

    Raises ProtocolError when a field reaches beyond `end` or tags do not ascend.
    """
    count, position = read_uvarint(buffer, position, end)
    if count > TAGS_MAX:
        raise ProtocolError(f"{count} tagged fields")
    previous = -1
    for _ in range(count):
        tag, position = read_uvarint(buffer, position, end)
        size, position = read_uvarint(buffer, position, end)
        if size > end - position or tag <= previous:
            raise ProtocolError(f"tagged field {tag} with {size} bytes after {previous}")
        previous = tag
        yield tag, position, position + size
        position += size
    yield -1, position, position


def skip_tags(buffer: memoryview, position: int, end: int) -> int:
    """Return the position behind tagged fields, whatever they hold."""
    for _, _, after in iter_tags(buffer, position, end):
        position = after
    return position
