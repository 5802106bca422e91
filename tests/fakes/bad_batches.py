"""Batches with a right checksum that no reader can decode, as nodes take them."""

import struct
from collections.abc import Sequence

from dlog.batch.header import CRC_START, HEADER_BYTES
from dlog.compression import Codec, compress
from tests.fakes.batches import batch, sealed

_ATTRIBUTES = struct.Struct(">h")
_COUNTS = struct.Struct(">i")
_RECORD_COUNT_POSITION = 57
_LAST_OFFSET_DELTA_POSITION = 23


def no_gzip(
    base_offset: int, count: int, codec: Codec = Codec.GZIP, *, leader_epoch: int = 0
) -> bytes:
    """Return a batch of plain records whose head says that they are compressed."""
    data = bytearray(batch(base_offset, count, leader_epoch=leader_epoch))
    _ATTRIBUTES.pack_into(data, CRC_START, int(codec))
    return sealed(data)


def miscounted(base_offset: int, count: int, said: int) -> bytes:
    """Return a plain batch of `count` records whose head says another number."""
    data = bytearray(batch(base_offset, count))
    _COUNTS.pack_into(data, _RECORD_COUNT_POSITION, said)
    _COUNTS.pack_into(data, _LAST_OFFSET_DELTA_POSITION, said - 1)
    return sealed(data)


def astray(base_offset: int, deltas: Sequence[int]) -> bytes:
    """Return a compressed batch whose records say these offsets, its head one after the other."""
    records = bytearray()
    for delta in deltas:
        fields = bytearray(2)
        number = delta << 1 if delta >= 0 else ~(delta << 1)
        while number > 0x7F:
            fields.append(number & 0x7F | 0x80)
            number >>= 7
        fields += bytes((number, 1, 2, ord("v"), 0))
        records += bytes((len(fields) * 2,)) + fields
    data = bytearray(batch(base_offset, len(deltas)))
    data[HEADER_BYTES:] = compress(Codec.GZIP, bytes(records))
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    _ATTRIBUTES.pack_into(data, CRC_START, int(Codec.GZIP))
    return sealed(data)
