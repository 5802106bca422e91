"""Records in a batch: round trips, other clients' batches, malformed bytes."""

import struct
from typing import Any

import pytest
from aiokafka.record.default_records import (  # type: ignore[import-untyped]
    DefaultRecordBatch,
    DefaultRecordBatchBuilder,
)

from dlog.batch.header import decode_header, patch_log_append_time
from dlog.batch.records import Record, decode, encode
from dlog.checksum import crc32c
from dlog.compression import Codec
from dlog.errors import CorruptMessageError

RECORDS = [
    Record(b"key", b"value", (), 1_700_000_000_000),
    Record(None, b"no key", (), 1_700_000_000_005),
    Record(b"tombstone", None, (), 1_699_999_999_000),
    Record(b"", b"", (("h", b"1"), ("null", None), ("größe", b"")), 1_700_000_000_001),
    Record(b"k" * 200, b"v" * 70_000, (("h" * 100, b"x" * 1000),), 1_700_000_100_000),
]


def at(records: list[Record], base_offset: int) -> list[Record]:
    """Return the records with the offsets that they get in a batch."""
    return [r._replace(offset=base_offset + i) for i, r in enumerate(records)]


@pytest.mark.parametrize("codec", list(Codec))
def test_round_trip(codec: Codec) -> None:
    batch = encode(
        RECORDS, base_offset=1000, codec=codec, producer_id=5, producer_epoch=2, base_sequence=77,
        leader_epoch=9, transactional=True,
    )  # fmt: skip
    header = decode_header(batch)
    assert header.batch_bytes == len(batch)
    assert (header.base_offset, header.last_offset, header.record_count) == (1000, 1004, 5)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 2, 77)
    assert (header.leader_epoch, header.codec) == (9, codec)
    assert header.is_transactional
    assert header.base_timestamp_ms == 1_700_000_000_000
    assert header.max_timestamp_ms == 1_700_000_100_000
    for buffer in (batch, bytes(batch), memoryview(batch)):
        assert decode(buffer) == at(RECORDS, 1000)
    assert decode(b"before" + batch + b"after", 6) == at(RECORDS, 1000)


def test_defaults_of_a_batch() -> None:
    header = decode_header(encode([Record(value=b"x")]))
    assert (header.base_offset, header.leader_epoch, header.producer_id) == (0, -1, -1)
    assert (header.producer_epoch, header.base_sequence, header.attributes) == (-1, -1, 0)


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="needs records"):
        encode([])


def test_log_append_time_is_the_time_of_every_record() -> None:
    batch = encode(RECORDS)
    patch_log_append_time(batch, 0, len(batch), 42)
    assert {r.timestamp_ms for r in decode(batch)} == {42}


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_reads_what_aiokafka_writes(codec: Codec) -> None:
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=int(codec), is_transactional=False, producer_id=-1,
        producer_epoch=-1, base_sequence=-1, batch_size=1 << 20,
    )  # fmt: skip
    for index, record in enumerate(RECORDS):
        metadata = builder.append(
            index, record.timestamp_ms, record.key, record.value, list(record.headers)
        )
        assert metadata is not None
    assert decode(bytes(builder.build())) == at(RECORDS, 0)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_aiokafka_reads_what_we_write(codec: Codec) -> None:
    batch: Any = DefaultRecordBatch(bytes(encode(RECORDS, base_offset=50, codec=codec)))
    assert batch.validate_crc()
    found = [Record(r.key, r.value, tuple(r.headers), r.timestamp, r.offset) for r in batch]
    assert found == at(RECORDS, 50)


def with_records(data: bytes, count: int = 1) -> bytearray:
    """Return a batch with a right CRC around the given bytes."""
    batch = encode([Record()] * count)[:61] + data
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return batch


GOOD = bytes(encode([Record(b"k", b"v", (("h", b"1"),))])[61:])


def test_the_helper_makes_readable_batches() -> None:
    assert decode(with_records(GOOD))[0].key == b"k"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        GOOD + b"\x00",  # more after the last record
        b"\x01" + GOOD[1:],  # a length of -1
        b"\x7e" + GOOD[1:],  # longer than what is there
        bytes([GOOD[0] - 2]) + GOOD[1:],
        b"\xff" * 30,
        b"\x0e\x00\x00\x00\x03\x01\x00\x00",  # a key of -2 bytes
        b"\x0e\x00\x00\x00\x01\x01\x01\x00",  # -1 headers
        b"\x12\x00\x00\x00\x01\x01\x02\x01\x01\x00",  # a header without a key
        b"\x14\x00\x00\x00\x01\x01\x02\x02\xff\x01\x00",  # a header's key that is not UTF-8
        b"\x14\x00\x00\x00\x01\x01\xfe\xff\xff\xff\x0f",  # 2**31 headers
    ],
)
def test_malformed_records(data: bytes) -> None:
    with pytest.raises(CorruptMessageError):
        decode(with_records(data))


def test_every_cut_of_the_records_is_refused() -> None:
    for cut in range(len(GOOD)):
        with pytest.raises(CorruptMessageError):
            decode(with_records(GOOD[:cut]))


def test_more_records_claimed_than_there_are() -> None:
    batch = with_records(GOOD)
    struct.pack_into(">i", batch, 23, 2**31 - 2)
    struct.pack_into(">i", batch, 57, 2**31 - 1)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    with pytest.raises(CorruptMessageError):
        decode(batch)


def test_a_batch_that_fails_its_crc_or_is_cut() -> None:
    batch = encode(RECORDS)
    with pytest.raises(CorruptMessageError):
        decode(batch[:-1])
    batch[-1] ^= 1
    with pytest.raises(CorruptMessageError):
        decode(batch)


@pytest.mark.parametrize("codec", list(Codec))
def test_decompression_is_bounded(codec: Codec) -> None:
    batch = encode([Record(value=bytes(100_000))], codec=codec)
    assert decode(batch, size_max=101_000)
    with pytest.raises(CorruptMessageError):
        decode(batch, size_max=100_000)
