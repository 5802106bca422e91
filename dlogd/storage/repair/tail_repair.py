"""Repair of the end of a damaged range whose start retention has deleted.

No replica gives out what is below the log's start, so nobody has all of such a place. What is still
part of the log ends where the place ends: its bytes are counted from there. Before them comes one
batch without records, so that whoever walks along the file finds heads in a row.
"""

from dlog.batch.header import (
    BASE_OFFSET,
    BATCH_STRUCT,
    CRC_START,
    HEADER_BYTES,
    LAST_DELTA,
    LENGTH_OVERHEAD_BYTES,
    MAGIC,
    size_of,
)
from dlog.checksum import crc32c
from dlog.errors import CorruptMessageError
from dlogd.storage.log.partition_log import PartitionLog
from dlogd.storage.repair.segment_repair import SegmentRepair
from dlogd.storage.segment.bad_ranges import BadRange

_NONE = -1  # no timestamp, no producer


def filler(base_offset: int, next_offset: int, size: int, leader_epoch: int) -> bytes:
    """Return a batch of `size` bytes, at least a head, that has these offsets and no record."""
    fields = (
        *(base_offset, size - LENGTH_OVERHEAD_BYTES, leader_epoch, MAGIC, 0, 0),
        *(next_offset - base_offset - 1, _NONE, _NONE, _NONE, _NONE, _NONE, 0),
    )
    batch = bytearray(BATCH_STRUCT.pack(*fields))
    batch += bytes(size - HEADER_BYTES)
    batch[CRC_START - 4 : CRC_START] = crc32c(memoryview(batch)[CRC_START:]).to_bytes(4, "big")
    return bytes(batch)


class TailRepair(SegmentRepair):
    """As `SegmentRepair`, of the batches from the one on that has the log's start."""

    def __init__(self, opened: PartitionLog, place: BadRange, first_offset: int) -> None:
        """`first_offset`, where the log starts, lies within the place."""
        super().__init__(opened, place)
        assert place.first_offset < first_offset < place.next_offset
        self.next_offset = first_offset
        self._base_offset = _NONE  # of the first batch, once it is known
        self._data = bytearray()

    async def take(self, data: bytes) -> None:
        """Keep the whole batches of `data` that belong here: where they go is known at the end."""
        if self._base_offset == _NONE:
            self._base_offset = self._first_in(data)
            if self._base_offset == _NONE:
                return
            self.next_offset = self._base_offset
        start, end = self._fitting(data)
        self._data += data[start:end]
        if len(self._data) > self._place.end_position - self._place.position:
            raise CorruptMessageError(
                f"What another replica has is larger than the place in {self._place.path}"
            )

    def _first_in(self, data: bytes) -> int:
        """Return where the batch begins that has the first offset; -1 when it is not in `data`."""
        position = 0
        while len(data) - position >= HEADER_BYTES:
            fields = BATCH_STRUCT.unpack_from(data, position)
            if fields[BASE_OFFSET] + fields[LAST_DELTA] >= self.next_offset:
                if self._place.first_offset <= fields[BASE_OFFSET] <= self.next_offset:
                    return int(fields[BASE_OFFSET])
                break
            position += max(size_of(fields), HEADER_BYTES)
        return _NONE

    async def finish(self) -> None:
        """Write all of it, read it, and forget the damage; CorruptMessageError if it is bad."""
        place = self._place
        size = place.end_position - place.position - len(self._data)
        if not self.is_whole or not (
            size >= HEADER_BYTES if self._base_offset > place.first_offset else size == 0
        ):
            raise CorruptMessageError(f"What was read does not fill the place in {place.path}")
        head = b""
        if size:
            epoch = BATCH_STRUCT.unpack_from(self._data)[2]
            head = filler(place.first_offset, self._base_offset, size, epoch)
        await self._write(head + self._data)
        await super().finish()
