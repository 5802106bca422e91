"""State of a running log, made from the results of recovery."""

from dlogd.storage.io.io_engine import ALIGNMENT
from dlogd.storage.log.log_recovery import RecoveredLog
from dlogd.storage.log.log_state import LogState
from dlogd.storage.segment.segment import SegmentState


def adopt(state: LogState, recovered: RecoveredLog) -> None:
    """Fill a new `state`; everything in it is on stable storage, the last segment is active."""
    last = recovered.segments[-1]
    for found in recovered.segments:
        end = found.end_position
        # Only the active segment is written to again, so only its last block is needed.
        prefix = recovered.prefix if found is last else bytes(end % ALIGNMENT)
        segment = state.begin_segment(found.base_offset, end, prefix)
        segment.durable = found.durable
        segment.state = SegmentState.SEALED
        segment.adopt_entries(found.index_count, found.times_count)
        segment.indexed_position = found.indexed_position
        segment.end_offset = segment.written_offset = found.end_offset
        segment.max_timestamp_ms = found.max_timestamp_ms
        known = segment.known_times
        known.is_true, known.is_decoded = found.has_true_times, found.is_decoded
        known.is_claimed = end > 0 and not found.has_true_times
    active = state.active
    active.state = SegmentState.OPEN
    active.known_times.reopen()
    active.durable = state.config.durable
    active.file = recovered.file
    active.allocated_end = last.size
    if active.tail.end and last.first_timestamp_ms >= 0:
        active.begin_age(last.first_timestamp_ms, state.config.segment_ms)
    state.epochs = recovered.history
    state.last_epoch = state.epochs.latest
    state.adopt(recovered.log_start_offset, last.end_offset)
    state.services.metrics.recovered_bytes_total += recovered.report.bytes_scanned
