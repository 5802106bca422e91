"""State of a running log, made from the results of recovery."""

from dlogd.storage.io.io_engine import ALIGNMENT
from dlogd.storage.log.log_recovery import RecoveredLog
from dlogd.storage.log.log_state import LogState


def adopt(state: LogState, recovered: RecoveredLog) -> None:
    """Fill a new `state`; everything in it is on stable storage, the last segment is active."""
    last = recovered.segments[-1]
    for found in recovered.segments:
        end = found.end_position
        # Only the active segment is written to again, so only its last block is needed.
        prefix = recovered.prefix if found is last else bytes(end % ALIGNMENT)
        segment = state.begin_segment(found.base_offset, end, prefix)
        segment.adopt(found)
    active = state.active
    active.adopt_active(recovered.file, last.size, durable=state.config.durable)
    if active.tail.end and last.first_timestamp_ms >= 0:
        active.begin_age(last.first_timestamp_ms, state.config.segment_ms)
    state.epochs = recovered.history
    state.last_epoch = state.epochs.latest
    state.adopt(recovered.log_start_offset, last.end_offset)
    state.services.metrics.recovered_bytes_total += recovered.report.bytes_scanned
