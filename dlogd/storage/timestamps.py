"""Which offset a timestamp stands for (ListOffsets): the first record at or after it.

The time index says where to begin, heads of batches which batch it is; that one is decoded, off the
event loop, because a batch tells only its largest timestamp.
"""

from collections.abc import AsyncIterator
from functools import partial
from typing import NamedTuple

from dlog.batch import records
from dlog.batch.header import LENGTH_OVERHEAD_BYTES
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
                size = fields[1] + LENGTH_OVERHEAD_BYTES
                data = await self._reader.bytes_of(segment, position, size)
                found = await self._state.services.engine.run(
                    partial(_first_record, data, timestamp_ms, self._state.log_start_offset)
                )
                if found is not None:
                    return TimestampOffset(
                        found.timestamp_ms, Offset(found.offset), LeaderEpoch(fields[2])
                    )
        return None

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


def _first_record(data: bytes, timestamp_ms: int, start_offset: int) -> records.Record | None:
    for record in records.decode(data):
        if record.timestamp_ms >= timestamp_ms and record.offset >= start_offset:
            return record
    return None
