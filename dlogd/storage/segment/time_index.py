"""Time index of a segment: sparse, timestamps to offsets, `<base offset>.tdx`.

An entry is (timestamp_ms i64, relative offset u32), docs/formats/index.md: all records below offset
base + relative have timestamps <= timestamp_ms. Entries are written in the rhythm of the offset
index; a closed segment has a last one at its end, so that its largest timestamp is known.
"""

import struct

from dlogd.storage.segment.sparse_index import IndexKind, SparseIndex

MAGIC = b"DLTX"
ENTRY = struct.Struct("<qI")
KIND = IndexKind(".tdx", MAGIC, ENTRY, "qI")
NO_TIMESTAMP = -1


class TimeIndex(SparseIndex):
    """The time index of a segment; answers None where the file is needed and not open."""

    __slots__ = ("_base_offset",)

    def __init__(self, base_offset: int, settled: int = 0) -> None:
        super().__init__(KIND, settled)
        self._base_offset = base_offset

    def count_before(self, position: int, offset: int) -> int | None:
        """Return how many entries name batches that begin before `position`, which has `offset`."""
        return self.count_below(offset - self._base_offset, column=1)

    def older_than(self, timestamp_ms: int) -> int | None:
        """Return an offset below which no record has a timestamp >= `timestamp_ms`."""
        count = self.count_below(timestamp_ms, column=0)
        if count is None:
            return None
        if count == 0:
            return self._base_offset
        found = self.entry(count - 1)
        return None if found is None else self._base_offset + found[1]
