"""Offset index of a segment: sparse, offsets to byte positions, `<base offset>.idx`.

An entry is (relative offset u32, position u64), docs/formats/index.md: the batch at `position`
begins with offset base + relative. There is one per `index_interval_bytes` of log; the batch at
position 0 has none. Its header keeps the flushed mark. Never touches the segment itself.
"""

import struct
from bisect import bisect_right

from dlogd.storage.segment.sparse_index import IndexKind, SparseIndex

MAGIC = b"DLIX"
ENTRY = struct.Struct("<IQ")
KIND = IndexKind(".idx", MAGIC, ENTRY, "IQ")
RELATIVE_OFFSET_MAX = (1 << 32) - 1

Place = tuple[int, int]
"""Offset and position where a batch begins."""


class OffsetIndex(SparseIndex):
    """The offset index of a segment; answers None where the file is needed and not open."""

    __slots__ = ("_base_offset",)

    def __init__(self, base_offset: int, settled: int = 0) -> None:
        super().__init__(KIND, settled)
        self._base_offset = base_offset

    def count_before(self, position: int, offset: int) -> int | None:
        """Return how many entries name batches that begin before `position`, which has `offset`."""
        return self.count_below(position, column=1)

    def floor_offset(self, offset: int) -> Place | None:
        """Return the last known batch that begins at or before `offset`."""
        count = self.count_up_to(offset - self._base_offset, column=0)
        return None if count is None else self._place(count - 1)

    def floor_position(self, position: int) -> Place | None:
        """Return the last known batch that begins at or before `position`."""
        count = self.count_up_to(position, column=1)
        return None if count is None else self._place(count - 1)

    def after_position(self, position: int) -> Place | None:
        """Return the first indexed batch beyond `position`; the highest numbers when there is none.

        Highest: `RELATIVE_OFFSET_MAX` and 2**63 - 1, beyond any place in a segment.
        """
        count = self.count_up_to(position, column=1)
        if count is None:
            return None
        if count >= self.count:
            return self._base_offset + RELATIVE_OFFSET_MAX, (1 << 63) - 1
        return self._place(count)

    def boundary(self, start: int, limit: int) -> Place | None:
        """Return the last unsettled entry in (start, limit], or else the first beyond `start`.

        Of what is in memory: all that is not flushed yet. None when there is no entry.
        """
        positions = self._seconds
        first = bisect_right(positions, start)
        if first == len(positions):
            return None
        number = self._recent + max(first, bisect_right(positions, limit) - 1)
        return self._place(number)

    def _place(self, number: int) -> Place | None:
        if number < 0:
            return self._base_offset, 0
        found = self.entry(number)
        if found is None:
            return None
        return self._base_offset + found[0], found[1]
