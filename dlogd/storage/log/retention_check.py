"""Facts that retention by time needs before it deletes, for the oldest segments only.

Heads of batches may claim anything. A segment is looked at when the heads say that all of it is
due, or when nothing was written to it for as long as records are kept: then a head that claims a
time in the future does not keep it. Owner: the event loop's thread.
"""

from functools import partial

from dlogd.storage.log.log_state import LogState
from dlogd.storage.log.timestamp_learner import TimestampLearner
from dlogd.storage.segment.segment import Segment
from dlogd.storage.segment.segment_names import file_name


async def learn_due(state: LogState, learner: TimestampLearner, oldest_kept_ms: int) -> bool:
    """Learn what decides on the oldest segments; return whether a closed one was looked at.

    One at a time: the caller deletes what is due by it, and asks again. Raises KafkaStorageError.
    """
    for segment in list(state.segments):
        known = segment.known_times
        newest_ms = learner.newest_ms(segment)
        if newest_ms is None:
            if not await _may_be_due(state, segment, oldest_kept_ms):
                return False
            await learner.learn(segment)
            await _is_idle(state, segment, oldest_kept_ms)
            return segment is not state.active
        if newest_ms >= oldest_kept_ms:
            return False
        if newest_ms < 0 or not known.is_whole:
            is_idle = await _is_idle(state, segment, oldest_kept_ms)
            if not known.is_whole and not is_idle:
                return False
    return False


async def _may_be_due(state: LogState, segment: Segment, oldest_kept_ms: int) -> bool:
    """Return whether a segment is worth a look."""
    if 0 <= segment.max_timestamp_ms < oldest_kept_ms:
        return True
    return await _is_idle(state, segment, oldest_kept_ms)


async def _is_idle(state: LogState, segment: Segment, oldest_kept_ms: int) -> bool:
    """Return whether the segment was written last before `oldest_kept_ms`, by the wall clock."""
    known, end_position = segment.known_times, segment.tail.end
    if known.written_end != end_position:
        known.note_write(end_position)
        if segment is state.active:
            return False  # Its file is asked at the next check, if nothing was appended till then.
    if known.written_ms < 0:
        ask = partial(segment.directory.modified_ms, file_name(segment.base_offset))
        written_ms = await state.services.engine.run(ask)
        if known.written_end != segment.tail.end:
            return False
        known.note_write(known.written_end, written_ms)
    return known.written_ms < oldest_kept_ms
