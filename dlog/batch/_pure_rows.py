"""Arrow columns read row by row, in Python: the twin of csrc/append_columns.c."""

from dlog.checksum import Buffer

BinaryData = tuple[Buffer, Buffer, Buffer | None, int]
"""Bounds, bytes in a row, bitmap of what is not null, number of nulls; see `dlog.batch._pure`."""

HeaderData = tuple[Buffer, BinaryData, BinaryData]
"""Bounds of the lists, then keys and values of all headers in a row."""

RawHeader = tuple[bytes, bytes | None]


class BinaryRows:
    """A binary column that is read; raises ValueError for bounds that make no sense."""

    def __init__(self, parts: BinaryData) -> None:
        if not isinstance(parts, tuple) or len(parts) != 4:
            raise TypeError("a column must be a tuple of four")
        self._bounds = int32s(parts[0])
        self._data = memoryview(parts[1])
        self._validity = None if parts[2] is None else memoryview(parts[2]).cast("B")
        self.rows = len(self._bounds) - 1
        if self.rows < 0 or (
            self._validity is not None and len(self._validity) < self.rows + 7 >> 3
        ):
            raise ValueError("a column's buffer is too short")

    def at(self, row: int) -> bytes | None:
        """Return the bytes at a row that is there."""
        if self._validity is not None and not self._validity[row >> 3] >> (row & 7) & 1:
            return None
        start, end = self._bounds[row], self._bounds[row + 1]
        if not 0 <= start <= end <= self._data.nbytes:
            raise ValueError("a column's bounds make no sense")
        return bytes(self._data[start:end])


class HeaderRows:
    """The headers of each row."""

    def __init__(self, parts: HeaderData) -> None:
        if not isinstance(parts, tuple) or len(parts) != 3:
            raise TypeError("headers must be a tuple of three")
        self._bounds = int32s(parts[0])
        self._keys = BinaryRows(parts[1])
        self._values = BinaryRows(parts[2])
        self.rows = len(self._bounds) - 1

    def at(self, row: int) -> list[RawHeader]:
        """Return the headers at a row that is there, keys in UTF-8."""
        first, end = self._bounds[row], self._bounds[row + 1]
        if not 0 <= first <= end <= min(self._keys.rows, self._values.rows):
            raise ValueError("the headers' bounds make no sense")
        found = []
        for i in range(first, end):
            key, value = self._keys.at(i), self._values.at(i)
            if key is None:
                raise ValueError("a header's key is null")
            found.append((key, value))
        return found


def int32s(buffer: Buffer) -> memoryview:
    """Return the whole int32 numbers in a buffer."""
    octets = memoryview(buffer).cast("B")
    return octets[: len(octets) & ~3].cast("i")


def int64s(buffer: Buffer) -> memoryview:
    """Return the whole int64 numbers in a buffer."""
    octets = memoryview(buffer).cast("B")
    return octets[: len(octets) & ~7].cast("q")
