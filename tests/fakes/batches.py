"""Record batches for tests of readers: plain, transactional, markers, damaged."""

import struct
from collections.abc import Iterable

from dlog.batch.header import CONTROL_BIT, CRC_POSITION, CRC_START
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
    struct.pack_into(">I", made, CRC_POSITION, crc32c(memoryview(made)[CRC_START:]))
    return bytes(made)


def damaged(data: bytes) -> bytes:
    """Return the batch with one bit of its last byte flipped."""
    return data[:-1] + bytes([data[-1] ^ 1])


def joined(parts: Iterable[bytes]) -> memoryview:
    """Return batches as one answer holds them."""
    return memoryview(b"".join(parts))
