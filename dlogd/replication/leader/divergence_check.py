"""Check of a follower's history against its leader's: where they part (KIP-101, KIP-279).

Pure. `dlogd.replication.leader.follower_sessions` asks before anything is sent: the largest epoch
that both know has to end where the follower's does, or later.
"""

from dlog.errors import NONE, OffsetOutOfRangeError
from dlog.types import LeaderEpoch
from dlogd.replication.partition.partition import Partition
from dlogd.replication.protocol import Refusal, Subscription


def difference(partition: Partition, subscription: Subscription) -> Refusal | None:
    """Return why a follower cannot go on where it stands; None when its log is a beginning of ours.

    Pure. A follower without a record has no history to differ. A leader that knows no epoch has no
    record, and what was deleted has counted: nobody is cut below its end (seed 196514).
    """
    plog = partition.log
    start, end = plog.log_start_offset, plog.log_end_offset
    offset, handle = subscription.fetch_offset, subscription.handle
    last_epoch = subscription.last_epoch
    if plog.epochs.entries and last_epoch >= 0 and offset > subscription.log_start_offset:
        epoch, epoch_end = plog.end_offset_for_epoch(LeaderEpoch(last_epoch))
        if epoch < 0:
            # It has an epoch that is newer than all here: those records never counted.
            epoch, epoch_end = plog.last_epoch, end
        if last_epoch < plog.epochs.entries[0][0]:
            # All that was of its epochs is gone here: nobody can say where they part.
            return Refusal(handle, OffsetOutOfRangeError.code, -1, -1, start, end)
        if epoch < last_epoch or epoch_end < offset:
            return Refusal(handle, NONE, epoch, epoch_end, start, end)
    if not start <= offset <= end:
        return Refusal(handle, OffsetOutOfRangeError.code, -1, -1, start, end)
    return None


def other_history(partition: Partition, subscription: Subscription) -> Refusal | None:
    """Return why a follower that nobody counts on begins anew although it has no record to differ.

    Pure. It begins behind the leader's start. What it has deleted was perhaps of a history that
    does not count any more, since an unclean election, and other records are at those offsets now.
    """
    plog, offset = partition.log, subscription.fetch_offset
    if not plog.log_start_offset < offset == subscription.log_start_offset:
        return None
    start, end = plog.log_start_offset, plog.log_end_offset
    return Refusal(subscription.handle, OffsetOutOfRangeError.code, -1, -1, start, end)
