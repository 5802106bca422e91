"""Lookup by timestamp (ListOffsets): the first record at or after a time.

Records count, and not what the head of a batch says of them. `TimestampLearner` says where to
begin; from there on each batch is decoded, off the event loop, until one has the record.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from dlog.batch.record_times import first_record, newest_record
from dlog.errors import KafkaStorageError
from dlog.types import LeaderEpoch, Offset
from dlogd.storage.log.log_jobs import LogJobs
from dlogd.storage.log.log_reader import LogReader
from dlogd.storage.log.log_state import LogState
from dlogd.storage.log.timestamp_learner import PIECE_BYTES, TimestampLearner
from dlogd.storage.segment.batch_times import Find, Sought, seek
from dlogd.storage.segment.segment import Segment, SegmentState


class TimestampOffset(NamedTuple):
    """A record found by time."""

    timestamp_ms: int
    offset: Offset
    leader_epoch: LeaderEpoch


class TimestampSearch:
    """Searches in one log."""

    __slots__ = ("_reader", "_state", "learner")

    def __init__(self, state: LogState, reader: LogReader, maintenance: LogJobs) -> None:
        self._state = state
        self._reader = reader
        self.learner = TimestampLearner(state, reader, maintenance)

    async def first_at(self, timestamp_ms: int, owner: str) -> TimestampOffset | None:
        """Return the first record with this timestamp or a later one.

        `owner`: who asks; owners take turns at unpacking.
        """
        return await self._reader.guard(self._first_at(timestamp_ms, owner))

    async def _first_at(self, timestamp_ms: int, owner: str) -> TimestampOffset | None:
        for segment in self._segments():
            try:
                found = await self._first_in(segment, timestamp_ms, owner)
            except KafkaStorageError:
                if segment.state is not SegmentState.DROPPED:
                    raise
                continue  # Retention was faster: all of its records are deleted.
            if found is not None:
                return found
        return None

    def _segments(self) -> list[Segment]:
        """Return the segments that hold records which may be read, oldest first."""
        state = self._state
        return [
            segment
            for segment in state.segments
            if state.end_offset_of(segment) > state.log_start_offset
        ]

    async def first_newest(self, owner: str) -> TimestampOffset | None:
        """Return the first of the records with the largest timestamp."""
        return await self._reader.guard(self._first_newest(owner))

    async def _first_newest(self, owner: str) -> TimestampOffset | None:
        newest_ms = -1
        # The newest segment first: of the oldest one a part may be deleted, which costs a search.
        for segment in reversed(self._segments()):
            try:
                newest_ms = max(newest_ms, await self._newest_in(segment, newest_ms, owner))
            except KafkaStorageError:
                if segment.state is not SegmentState.DROPPED:
                    raise
        return await self._first_at(newest_ms, owner) if newest_ms >= 0 else None

    async def _newest_in(self, segment: Segment, above_ms: int, owner: str) -> int:
        """Return the largest timestamp of the segment's records; at most `above_ms` is vague."""
        learner, start_offset = self.learner, self._state.log_start_offset
        newest_ms = learner.newest_ms(segment)
        if newest_ms is None:
            await learner.learn(segment, owner=owner)
            newest_ms = learner.newest_ms(segment)
        if newest_ms is None:  # Batches were appended meanwhile.
            learned = segment.known_times.learned
            newest_ms = above_ms if learned is None else learned.newest_ms
        if newest_ms <= above_ms or segment.base_offset >= start_offset:
            return newest_ms
        find = partial(newest_record, start_offset=start_offset)
        sought = await self._seek(segment, start_offset, find, owner, is_first=False)
        return above_ms if sought.found is None else sought.found.timestamp_ms

    async def _first_in(
        self, segment: Segment, timestamp_ms: int, owner: str
    ) -> TimestampOffset | None:
        learner, start_offset = self.learner, self._state.log_start_offset
        newest_ms = learner.newest_ms(segment)
        if newest_ms is None:
            await learner.learn(segment, timestamp_ms, owner=owner)
            newest_ms = learner.newest_ms(segment)
        if newest_ms is not None and newest_ms < timestamp_ms:
            return None
        await self._reader.open(segment)
        offset = max(learner.older_than(segment, timestamp_ms), start_offset)
        find = partial(first_record, timestamp_ms=timestamp_ms, start_offset=start_offset)
        sought = await self._seek(segment, offset, find, owner, is_first=True)
        if sought.found is None:
            return None
        found_ms, found_offset = sought.found
        return TimestampOffset(found_ms, Offset(found_offset), LeaderEpoch(sought.leader_epoch))

    async def _seek(
        self,
        segment: Segment,
        offset: int,
        find: Find,
        owner: str,
        *,
        is_first: bool,
    ) -> Sought:
        """Search the batches of a segment from the one on that holds `offset`."""
        await self._reader.open(segment)
        place = segment.index.floor_offset(offset) or (segment.base_offset, 0)
        sought = Sought(place[1], place[0])
        end_position, cut_count = segment.tail.end, segment.cut_count
        segment.acquire()  # so that its files stay open
        try:
            while sought.position < end_position and (sought.found is None or not is_first):
                work = partial(seek, end_position=end_position, find=find, is_first=is_first)
                sought, is_short = await self._step(segment, sought, end_position, work, owner)
                if segment.cut_count != cut_count:
                    raise KafkaStorageError(f"{segment.path} has changed meanwhile")
                if sought.is_bad or is_short:
                    self._pass_over(segment, sought, end_position)
        finally:
            segment.release()
        return sought

    async def _step(
        self,
        segment: Segment,
        sought: Sought,
        end_position: int,
        work: Callable[..., Sought],
        owner: str,
    ) -> tuple[Sought, bool]:
        """Search the next piece; return what is known then, and whether bytes were missing."""
        services = self._state.services
        length = min(max(PIECE_BYTES, sought.wanted_bytes), end_position - sought.position)
        async with services.unpacking.held(owner):
            data = await self._reader.bytes_of(segment, sought.position, length)
            return await services.engine.run(partial(work, data, sought)), len(data) < length

    def _pass_over(self, segment: Segment, sought: Sought, end_position: int) -> None:
        """Go on behind damage, where the next entry of the index says that a batch begins."""
        following = segment.index.after_position(sought.position)
        if following is None or following[1] >= end_position:
            following = (self._state.end_offset_of(segment), end_position)
        sought.offset, sought.position = following
        sought.is_bad, sought.wanted_bytes = False, 0
