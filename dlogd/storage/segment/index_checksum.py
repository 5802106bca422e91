"""Checksum of index entries in the head of an index file.

    bytes   field
    20-23   CRC-32C of the vouched entries, then of their count as u32
    40-43   count of the vouched entries u32: the first so many of the file
    44-47   CRC-32C of bytes 20-23 and 40-43, then of the last vouched entry

Little-endian; docs/formats/index.md. All zero: no entry is vouched for. The sum runs along with the
entries as they are written, so a bit that rots in the file later is never taken into it.
"""

import struct
from typing import NamedTuple

from dlog.checksum import crc32c

ENTRY_BYTES = 12

_COUNT = struct.Struct("<I")
_GUARDED = struct.Struct("<II")


class IndexChecksum(NamedTuple):
    """Number, CRC and last entry of the first entries of an index."""

    total: int = 0
    crc: int = 0
    last: bytes = bytes(ENTRY_BYTES)

    def plus(self, data: bytes | bytearray | memoryview) -> "IndexChecksum":
        """Return the sum with these whole entries behind."""
        if not data:
            return self
        total = self.total + len(data) // ENTRY_BYTES
        return IndexChecksum(total, crc32c(data, self.crc), bytes(data[-ENTRY_BYTES:]))

    def stored(self) -> "StoredSum":
        """Return what is written to the head."""
        if not self.total:
            return NOTHING_STORED
        crc = crc32c(_COUNT.pack(self.total), self.crc)
        guard = crc32c(self.last, crc32c(_GUARDED.pack(crc, self.total)))
        return StoredSum(self.total, crc, guard)


class StoredSum(NamedTuple):
    """What stands in the head, to be compared."""

    total: int
    crc: int
    guard: int

    def ends_with(self, count: int, last: bytes) -> bool:
        """Return whether `count` entries are vouched for, the last of which is `last`."""
        if not count:
            return self == NOTHING_STORED
        guard = crc32c(last, crc32c(_GUARDED.pack(self.crc, self.total)))
        return (self.total, self.guard) == (count, guard)


NOTHING_STORED = StoredSum(0, 0, 0)
