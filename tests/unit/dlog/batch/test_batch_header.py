"""The head of a batch: fields, checks, patches, iteration."""

import struct

import pytest

from dlog.batch import header
from dlog.batch.header import BATCH_STRUCT, HEADER_BYTES, BatchHeader, decode_header, iter_headers
from dlog.checksum import crc32c
from dlog.compression import Codec
from dlog.errors import CorruptMessageError


def make_batch(
    base_offset: int = 0, count: int = 3, records: bytes = b"records", attributes: int = 0
) -> bytearray:
    """Return a batch with a right CRC around bytes that are no records."""
    batch = bytearray(HEADER_BYTES) + records
    BATCH_STRUCT.pack_into(
        batch, 0, base_offset, len(batch) - 12, 7, 2, 0, attributes, count - 1, 1000, 2000, 42, 3,
        100, count,
    )  # fmt: skip
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return batch


def test_decodes_every_field() -> None:
    batch = make_batch(base_offset=500, count=3)
    found = decode_header(batch)
    (crc,) = struct.unpack_from(">I", batch, 17)
    assert found == BatchHeader(
        base_offset=500,
        batch_bytes=len(batch),
        leader_epoch=7,
        magic=2,
        crc=crc,
        attributes=0,
        last_offset_delta=2,
        base_timestamp_ms=1000,
        max_timestamp_ms=2000,
        producer_id=42,
        producer_epoch=3,
        base_sequence=100,
        record_count=3,
    )
    assert found.last_offset == 502
    assert found.next_offset == 503
    assert BATCH_STRUCT.size == HEADER_BYTES


@pytest.mark.parametrize("codec", list(Codec))
def test_attributes(codec: Codec) -> None:
    plain = decode_header(make_batch(attributes=int(codec)))
    assert plain.codec is codec
    assert not (plain.is_transactional or plain.is_control or plain.is_log_append_time)
    full = decode_header(make_batch(attributes=0x38 | codec))
    assert full.codec is codec
    assert full.is_transactional
    assert full.is_control
    assert full.is_log_append_time


def test_decodes_at_a_position_of_any_buffer() -> None:
    batch = make_batch(base_offset=9)
    for buffer in (bytes(5) + batch, memoryview(bytes(5) + batch)):
        assert decode_header(buffer, 5).base_offset == 9


@pytest.mark.parametrize(
    ("position", "patch"),
    [
        (16, b"\x00"),  # magic 0
        (16, b"\x01"),
        (16, b"\x03"),
        (8, struct.pack(">i", 48)),  # length too short for a head
        (8, struct.pack(">i", -1)),
        (0, struct.pack(">q", -1)),  # negative offset
        (23, struct.pack(">i", -1)),  # negative last offset delta
        (23, struct.pack(">i", 1)),  # fewer offsets than records
        (57, struct.pack(">i", -1)),  # negative count
        (57, struct.pack(">i", 4)),  # more records than offsets
        (21, struct.pack(">h", 5)),  # unknown codec
    ],
)
def test_refuses_what_no_writer_means(position: int, patch: bytes) -> None:
    batch = make_batch()
    batch[position : position + len(patch)] = patch
    with pytest.raises(CorruptMessageError):
        decode_header(batch)


def test_refuses_a_short_buffer() -> None:
    batch = make_batch()
    with pytest.raises(CorruptMessageError):
        decode_header(batch[:60])
    with pytest.raises(CorruptMessageError):
        decode_header(batch, len(batch) - 60)


def test_a_zero_filled_tail_is_no_batch() -> None:
    with pytest.raises(CorruptMessageError):
        decode_header(bytes(4096))


def test_an_empty_batch_of_compaction_is_a_batch() -> None:
    batch = make_batch(count=3)
    batch[57:61] = struct.pack(">i", 0)
    assert decode_header(batch).next_offset == 3


def test_patch_keeps_the_crc() -> None:
    buffer = bytearray(10) + make_batch()
    header.patch(buffer, 10, 123_456_789_012, 77)
    found = decode_header(buffer, 10)
    assert found.base_offset == 123_456_789_012
    assert found.leader_epoch == 77
    assert header.verify_crc(buffer, 10, found.batch_bytes)


def test_patch_log_append_time_renews_the_crc() -> None:
    buffer = bytearray(10) + make_batch(attributes=3) + bytes(20)
    size = decode_header(buffer, 10).batch_bytes
    header.patch_log_append_time(buffer, 10, size, 5_000)
    found = decode_header(buffer, 10)
    assert found.is_log_append_time
    assert found.codec is Codec.LZ4
    assert found.max_timestamp_ms == 5_000
    assert found.base_timestamp_ms == 1_000
    assert header.verify_crc(buffer, 10, size)


def test_verify_crc_finds_every_flipped_byte_that_it_covers() -> None:
    batch = make_batch()
    assert header.verify_crc(batch, 0, len(batch))
    for position in range(len(batch)):
        batch[position] ^= 0x40
        assert header.verify_crc(batch, 0, len(batch)) == (position < 17)
        batch[position] ^= 0x40


def test_verify_crc_of_a_cut_batch_is_false() -> None:
    batch = make_batch()
    assert not header.verify_crc(batch, 0, len(batch) + 1)
    assert not header.verify_crc(batch, 1, len(batch))
    assert not header.verify_crc(batch, 0, 60)


def test_iter_headers_stops_at_the_first_incomplete_batch() -> None:
    batches = [make_batch(0), make_batch(3), make_batch(6)]
    data = b"".join(batches)
    size = len(batches[0])
    assert [(p, h.base_offset) for p, h in iter_headers(data)] == [(0, 0), (size, 3), (2 * size, 6)]
    for cut in range(1, size):
        assert [h.base_offset for _, h in iter_headers(data[:-cut])] == [0, 3]
    assert [p for p, _ in iter_headers(data, size, 2 * size)] == [size]
    assert [p for p, _ in iter_headers(data, size, 2 * size - 1)] == []
    assert list(iter_headers(b"")) == []


def test_iter_headers_raises_on_garbage_after_good_batches() -> None:
    iterator = iter_headers(make_batch() + bytes(100))
    assert next(iterator)[0] == 0
    with pytest.raises(CorruptMessageError):
        next(iterator)
