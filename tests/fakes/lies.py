"""Record batches whose heads lie about their largest timestamp, as clients in the field send them.

The checksum fits the lie. `base_timestamp` is what the deltas count from, so it is always true.
"""

import struct
from collections.abc import Sequence

from dlog.batch.header import (
    BATCH_STRUCT,
    CRC_POSITION,
    CRC_START,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
)
from dlog.batch.records import Record, encode
from dlog.checksum import crc32c
from dlog.compression import Codec
from dlog.types import LeaderEpoch, Offset
from dlogd.storage.log import PartitionLog

_MAX_TIMESTAMP_POSITION = 35


def sealed(batch: bytearray) -> bytearray:
    """Write the checksum of a batch that was changed."""
    struct.pack_into(">I", batch, CRC_POSITION, crc32c(memoryview(batch)[CRC_START:]))
    return batch


def lying(
    timestamps_ms: Sequence[int], head_ms: int | None, codec: Codec = Codec.NONE, size: int = 0
) -> bytearray:
    """Return a batch with one record for each timestamp, and `head_ms` in its head; None: honest.

    `size`: bytes of each value.
    """
    records = [Record(value=b"%d" % ms + bytes(size), timestamp_ms=ms) for ms in timestamps_ms]
    return with_head(encode(records, codec=codec), head_ms)


def with_head(batch: bytearray, head_ms: int | None) -> bytearray:
    """Let the head of a batch claim this largest timestamp; None: leave it."""
    if head_ms is None:
        return batch
    struct.pack_into(">q", batch, _MAX_TIMESTAMP_POSITION, head_ms)
    return sealed(batch)


def with_body(batch: bytearray, body: bytes) -> bytearray:
    """Return the batch with other bytes in the place of its records; its checksum fits them."""
    changed = bytearray(batch[:HEADER_BYTES]) + body
    struct.pack_into(">i", changed, 8, len(changed) - LENGTH_OVERHEAD_BYTES)
    return sealed(changed)


def append_batch(plog: PartitionLog, batch: bytearray, epoch: int = 0) -> Offset | None:
    """Append a batch as it is."""
    fields = BATCH_STRUCT.unpack_from(batch)
    return plog.append(memoryview(batch), fields, leader_epoch=LeaderEpoch(epoch))
