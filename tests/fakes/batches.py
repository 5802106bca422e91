"""Record batches for tests: plain, transactional, markers, damaged, with heads that lie."""

import struct
from collections.abc import Iterable

from dlog.batch.header import BATCH_STRUCT, CONTROL_BIT, CRC_POSITION, CRC_START, HEADER_BYTES
from dlog.batch.records import Record, encode
from dlog.checksum import crc32c
from dlog.compression import Codec

ABORT, COMMIT = 0, 1


def batch(
    base_offset: int,
    count: int = 3,
    *,
    codec: Codec = Codec.NONE,
    leader_epoch: int = 0,
    producer_id: int = -1,
    transactional: bool = False,
) -> bytes:
    """Return a batch whose records say their offset: key `k7`, value `v7`, timestamp 1007."""
    records = [
        Record(b"k%d" % offset, b"v%d" % offset, (), 1000 + offset)
        for offset in range(base_offset, base_offset + count)
    ]
    return bytes(
        encode(
            records,
            base_offset=base_offset,
            codec=codec,
            leader_epoch=leader_epoch,
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=0 if producer_id >= 0 else -1,
            transactional=transactional,
        )
    )


def marker(base_offset: int, producer_id: int, kind: int) -> bytes:
    """Return the control batch that ends a transaction."""
    key = struct.pack(">hh", 0, kind)
    made = encode(
        [Record(key, struct.pack(">hi", 0, 0), (), 1000)],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=0,
        transactional=True,
    )
    (attributes,) = struct.unpack_from(">h", made, CRC_START)
    struct.pack_into(">h", made, CRC_START, attributes | CONTROL_BIT)
    return sealed(made)


def sealed(data: bytes | bytearray) -> bytes:
    """Return the batch with the CRC that its bytes have now."""
    made = bytearray(data)
    struct.pack_into(">I", made, CRC_POSITION, crc32c(memoryview(made)[CRC_START:]))
    return bytes(made)


HEAD = (
    *("base_offset", "length", "leader_epoch", "magic", "crc", "attributes", "last_offset_delta"),
    *("base_timestamp_ms", "max_timestamp_ms", "producer_id", "producer_epoch", "base_sequence"),
    "record_count",
)


def with_head(data: bytes | bytearray, **fields: int) -> bytearray:
    """Return the batch with these fields in its head, and a CRC that fits."""
    made = bytearray(data)
    head = dict(zip(HEAD, BATCH_STRUCT.unpack_from(made), strict=True)) | fields
    BATCH_STRUCT.pack_into(made, 0, *head.values())
    struct.pack_into(">I", made, CRC_POSITION, crc32c(memoryview(made)[CRC_START:]))
    return made


def with_records(data: bytes | bytearray, records: bytes, count: int) -> bytearray:
    """Return the batch with these bytes in the place of its records, as many as the head says."""
    made = bytearray(data[:HEADER_BYTES]) + records
    return with_head(made, length=len(made) - 12, last_offset_delta=count - 1, record_count=count)


def timed(*times_ms: int, codec: Codec = Codec.NONE, **identity: int) -> bytearray:
    """Return a batch of records `v0`, `v1`, ... with these timestamps."""
    records = [
        Record(value=b"v%d" % number, timestamp_ms=time_ms)
        for number, time_ms in enumerate(times_ms)
    ]
    return encode(records, codec=codec, **identity)


def damaged(data: bytes) -> bytes:
    """Return the batch with one bit of its last byte flipped."""
    return data[:-1] + bytes([data[-1] ^ 1])


def joined(parts: Iterable[bytes]) -> memoryview:
    """Return batches as one answer holds them."""
    return memoryview(b"".join(parts))
