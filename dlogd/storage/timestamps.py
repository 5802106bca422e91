"""Which offset a timestamp stands for (ListOffsets): the first record at or after it.

The time index says where to begin, heads of batches which batch it is; that one is decoded, off the
event loop, because a batch tells only its largest timestamp.
"""

from collections.abc import AsyncIterator
from functools import partial
from typing import NamedTuple

from dlog.batch import records
from dlog.batch.header import LENGTH_OVERHEAD_BYTES, decode_header, verify_crc
from dlog.errors import CorruptMessageError, UnsupportedCompressionTypeError
from dlog.types import LeaderEpoch, Offset
from dlogd.storage.log_state import LogState
from dlogd.storage.reader import LogReader
from dlogd.storage.segment import Segment


class TimestampOffset(NamedTuple):
    """A record found by time."""

    timestamp_ms: int
    offset: Offset
    leader_epoch: LeaderEpoch


class TimestampSearch:
    """Searches in one log."""

    __slots__ = ("_reader", "_state")

    def __init__(self, state: LogState, reader: LogReader) -> None:
        self._state = state
        self._reader = reader

    async def first_at(self, timestamp_ms: int) -> TimestampOffset | None:
        """Return the first record with this timestamp or a later one."""
        return await self._reader.guard(self._first_at(timestamp_ms))

    async def _first_at(self, timestamp_ms: int) -> TimestampOffset | None:
        state = self._state
        for segment in list(state.segments):
            if (
                segment.max_timestamp_ms < timestamp_ms
                or state.end_offset_of(segment) <= state.log_start_offset
            ):
                continue
            found = await self._first_in(segment, timestamp_ms)
            if found is not None:
                return found
        return None

    async def first_newest(self) -> TimestampOffset | None:
        """Return the first of the records with the largest timestamp."""
        return await self._reader.guard(self._first_newest())

    async def _first_newest(self) -> TimestampOffset | None:
        state = self._state
        newest = -1
        for segment in list(state.segments):
            if state.end_offset_of(segment) <= state.log_start_offset:
                continue
            if segment.max_timestamp_ms > newest:
                in_segment = segment.max_timestamp_ms
                if segment.base_offset < state.log_start_offset:
                    # What counts for the segment may be trimmed already.
                    in_segment = await self._newest_in(segment)
                newest = max(newest, in_segment)
        return await self._first_at(newest) if newest >= 0 else None

    async def _first_in(self, segment: Segment, timestamp_ms: int) -> TimestampOffset | None:
        await self._reader.open(segment)
        offset = segment.times.older_than(timestamp_ms)
        start = max(offset or segment.base_offset, self._state.log_start_offset)
        async for fields, position in self._batches(segment, start):
            if fields[8] >= timestamp_ms:
                found = await self._first_of(segment, position, fields, timestamp_ms)
                if found is not None:
                    return found
        return None

    async def _first_of(
        self, segment: Segment, position: int, fields: tuple[int, ...], timestamp_ms: int
    ) -> TimestampOffset | None:
        state = self._state
        async with state.services.unpacking:
            data = await self._reader.bytes_of(segment, position, fields[1] + LENGTH_OVERHEAD_BYTES)
            search = partial(_first_record, data, timestamp_ms, state.log_start_offset)
            found = await state.services.engine.run(search)
        if found is None:
            return None
        return TimestampOffset(found[0], Offset(found[1]), LeaderEpoch(fields[2]))

    async def _newest_in(self, segment: Segment) -> int:
        newest = -1
        async for fields, _ in self._batches(segment, self._state.log_start_offset):
            newest = max(newest, fields[8])
        return newest

    async def _batches(
        self, segment: Segment, offset: int
    ) -> AsyncIterator[tuple[tuple[int, ...], int]]:
        """Yield (fields, position) of the batches from the one that holds `offset` on."""
        await self._reader.open(segment)
        place = segment.index.floor_offset(offset)
        position = place[1] if place is not None else 0
        while position < segment.tail.end:
            following = segment.index.after_position(position)
            end = segment.tail.end
            if following is not None and following[1] < end:
                end = following[1]
            for fields in await self._reader.heads(segment, position, end):
                if fields[0] + fields[6] >= offset:
                    yield fields, position
                position += fields[1] + LENGTH_OVERHEAD_BYTES


def _first_record(data: bytes, timestamp_ms: int, start_offset: int) -> tuple[int, int] | None:
    """Return timestamp and offset of the first such record of a batch.

    Nobody has looked into the batch since its producer made it. Where that was nonsense, it is the
    batch that is found: who reads on from there is told what is wrong with it.
    """
    try:
        for record in records.iterate(data, name_errors="replace"):
            if record.timestamp_ms >= timestamp_ms and record.offset >= start_offset:
                return record.timestamp_ms, record.offset
    except (CorruptMessageError, UnsupportedCompressionTypeError):
        header = decode_header(data)
        if not verify_crc(data, 0, header.batch_bytes):
            raise
        return header.max_timestamp_ms, max(header.base_offset, start_offset)
    return None
