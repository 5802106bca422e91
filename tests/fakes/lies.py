"""Record batches whose heads lie about their largest timestamp, as clients in the field send them.

The checksum fits the lie. `base_timestamp` is what the deltas count from, so it is always true.
"""

from collections.abc import Sequence

from dlog.batch.header import (
    BATCH_STRUCT,
    CODEC_MASK,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    patch,
)
from dlog.batch.records import Record, encode
from dlog.compression import Codec
from dlog.types import LeaderEpoch, Offset
from dlogd.storage.log.partition_log import PartitionLog
from tests.fakes.batches import with_head


def lying(
    timestamps_ms: Sequence[int], head_ms: int | None, codec: Codec = Codec.NONE, size: int = 0
) -> bytearray:
    """Return a batch with one record for each timestamp, and `head_ms` in its head; None: honest.

    `size`: bytes of each value.
    """
    records = [Record(value=b"%d" % ms + bytes(size), timestamp_ms=ms) for ms in timestamps_ms]
    return claiming(encode(records, codec=codec), head_ms)


def claiming(batch: bytearray, head_ms: int | None) -> bytearray:
    """Let the head of a batch claim this largest timestamp; None: leave it."""
    return batch if head_ms is None else with_head(batch, max_timestamp_ms=head_ms)


def with_body(batch: bytearray, body: bytes) -> bytearray:
    """Return the batch with other bytes in the place of its records; its checksum fits them."""
    changed = bytearray(batch[:HEADER_BYTES]) + body
    return with_head(changed, length=len(changed) - LENGTH_OVERHEAD_BYTES)


def append_batch(
    plog: PartitionLog, batch: bytearray, epoch: int = 0, *, as_leader: bool = False
) -> Offset | None:
    """Append a batch as it is: a leader corrects plain ones before, one of an older version not."""
    fields = BATCH_STRUCT.unpack_from(batch)
    if as_leader or fields[5] & CODEC_MASK:
        return plog.append(memoryview(batch), fields, leader_epoch=LeaderEpoch(epoch))
    patch(batch, 0, plog.log_end_offset, epoch)
    return plog.append_verbatim(memoryview(batch))
