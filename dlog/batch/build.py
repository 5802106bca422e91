"""Builder of batches, as a producer needs it: records into one buffer, then the head.

`BatchBuilder` takes records in the order of their offsets until its bound is met; `build` gives the
whole batch at base offset 0, as it goes on the wire. `restamp` gives a built batch another producer
identity, for a batch that is sent again after the producer's epoch has changed (KIP-360).

Pure: no clock, the caller brings the timestamps. Compiled where possible (`dlog.batch.native`).
"""

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dlog.batch.header import (
    BATCH_STRUCT,
    CRC_POSITION,
    CRC_START,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    MAGIC,
    TRANSACTIONAL_BIT,
)
from dlog.batch.native import RecordBuffer
from dlog.batch.records import Header
from dlog.checksum import Buffer, crc32c
from dlog.compression import Codec, compress

if TYPE_CHECKING:
    from dlog.batch.columns import Columns

_CRC = struct.Struct(">I")
_PRODUCER = struct.Struct(">qhi")
_PRODUCER_POSITION = 43
# Length, attributes, two deltas, two lengths and the header count, each at its longest.
_RECORD_OVERHEAD_BYTES_MAX = 5 + 1 + 10 + 5 + 5 + 5 + 5
_LENGTHS_BYTES_MAX = 5 + 5  # of a header's key and value
_UTF8_BYTES_MAX = 4


class BatchBuilder(RecordBuffer):
    """One batch while it grows; `append` and `append_many` are in `RecordBuffer`.

    `size_bytes` and the bound count uncompressed bytes with the head, so that a compressed batch
    is never longer than the bound, but for what a codec adds to data that it cannot shrink.
    Not for several threads at once.
    """

    __slots__ = ("codec",)

    def __init__(self, codec: Codec, bytes_max: int) -> None:
        super().__init__(bytes_max)
        self.codec = codec

    def append_rows(self, columns: "Columns", start: int = 0, stop: int | None = None) -> int:
        """Append the rows from `start` until one does not fit; return how many were appended.

        The offsets of the columns are not looked at. Raises ValueError for columns that do not
        hold together; the rows before the bad one stay appended.
        """
        return self.append_columns(
            columns.keys.parts,
            columns.values.parts,
            columns.timestamp_data,
            None if columns.headers is None else columns.headers.parts,
            start,
            len(columns) if stop is None else stop,
        )

    def build(
        self,
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
    ) -> bytearray:
        """Return the whole batch, at base offset 0; once, nothing fits afterwards.

        Raises ValueError without records, and UnsupportedCompressionTypeError where the codec is
        not installed.
        """
        if not self.record_count:
            raise ValueError("a batch needs records")
        batch = self.take()
        if self.codec is not Codec.NONE:
            packed = compress(self.codec, memoryview(batch)[HEADER_BYTES:])
            batch[HEADER_BYTES:] = packed
        BATCH_STRUCT.pack_into(
            batch,
            0,
            0,  # the base offset, which the leader sets
            len(batch) - LENGTH_OVERHEAD_BYTES,
            -1,  # the leader epoch, likewise
            MAGIC,
            0,
            int(self.codec) | (TRANSACTIONAL_BIT if transactional else 0),
            self.record_count - 1,
            self.base_timestamp_ms,
            self.max_timestamp_ms,
            producer_id,
            producer_epoch,
            base_sequence,
            self.record_count,
        )
        _write_crc(batch)
        return batch


def restamp(batch: bytearray, *, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
    """Give a built batch another producer identity, in place, and the CRC that belongs to it."""
    _PRODUCER.pack_into(batch, _PRODUCER_POSITION, producer_id, producer_epoch, base_sequence)
    _write_crc(batch)


def batch_bytes_max(
    key: Buffer | None, value: Buffer | None, headers: Sequence[Header] = ()
) -> int:
    """Return a size in bytes that a batch of this one record does not exceed, uncompressed."""
    size = HEADER_BYTES + _RECORD_OVERHEAD_BYTES_MAX + _nbytes(key) + _nbytes(value)
    for name, content in headers:
        size += _LENGTHS_BYTES_MAX + _UTF8_BYTES_MAX * len(name) + _nbytes(content)
    return size


def _nbytes(data: Buffer | None) -> int:
    if data is None:
        return 0
    return len(data) if isinstance(data, bytes) else memoryview(data).nbytes


def _write_crc(batch: bytearray) -> None:
    with memoryview(batch) as view:
        _CRC.pack_into(batch, CRC_POSITION, crc32c(view[CRC_START:]))
