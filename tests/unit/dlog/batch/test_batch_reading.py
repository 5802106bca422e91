"""Whole batches to records and to columns: bounds, control batches, holes, damage."""

import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from dlog.batch import columns as columns_module
from dlog.batch import decoding
from dlog.batch.build import BatchBuilder
from dlog.batch.columns import BinaryColumn, Columns, arrow_schema, decode_columns
from dlog.batch.decoding import decode_records, read_records
from dlog.batch.header import CONTROL_BIT, patch_log_append_time
from dlog.batch.records import Record, encode
from dlog.checksum import Buffer, crc32c
from dlog.compression import Codec
from dlog.errors import CorruptMessageError, UnsupportedCompressionTypeError

RECORDS = [
    Record(b"key", b"value", (), 1_700_000_000_000),
    Record(None, b"no key", (), 1_700_000_000_005),
    Record(b"tombstone", None, (), 1_699_999_999_000),
    Record(b"", b"", (("h", b"1"), ("null", None), ("größe", b"")), 1_700_000_000_001),
    Record(b"k" * 200, b"v" * 7_000, (("h" * 100, b"x" * 1000),), -1),
]


def at(base_offset: int, records: list[Record] = RECORDS) -> list[Record]:
    """Return the records with the offsets that they get in a batch."""
    return [r._replace(offset=base_offset + i) for i, r in enumerate(records)]


def by_records(
    buffers: Sequence[Buffer],
    start_offset: int = 0,
    end_offset: int | None = None,
    max_records: int | None = None,
    max_bytes: int | None = None,
) -> tuple[list[Record], int]:
    """Read one object per record."""
    wanted = decoding.bounds(start_offset, end_offset, max_records, max_bytes)
    run = read_records(buffers, wanted)
    return run.records, run.next_offset


def rows(columns: Columns) -> list[Record]:
    """Return what pyarrow makes of the columns."""
    batch = columns.to_arrow()
    batch.validate(full=True)
    return [
        Record(
            row["key"],
            row["value"],
            tuple((h["key"], h["value"]) for h in row["headers"]),
            row["timestamp"],
            row["offset"],
        )
        for row in batch.set_column(1, "timestamp", batch["timestamp"].cast(pa.int64())).to_pylist()
    ]


def by_columns(
    buffers: Sequence[Buffer],
    start_offset: int = 0,
    end_offset: int | None = None,
    max_records: int | None = None,
    max_bytes: int | None = None,
) -> tuple[list[Record], int]:
    """Read columns."""
    found = decode_columns(
        buffers,
        start_offset=start_offset,
        end_offset=end_offset,
        max_records=max_records,
        max_bytes=max_bytes,
    )
    assert len(found) == len(found.keys) == len(found.values)
    return rows(found), found.next_offset


Reader = Callable[..., tuple[list[Record], int]]
both = pytest.mark.parametrize("read", [by_records, by_columns])


def changed(batch: bytearray, position: int, form: str, *fields: int | bytes) -> bytearray:
    """Return the batch with other fields in its head and a right CRC."""
    struct.pack_into(form, batch, position, *fields)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return batch


def control(base_offset: int) -> bytearray:
    """Return a commit marker."""
    batch = encode([Record(b"\0\0\0\1", b"\0" * 6, (), 5)], base_offset=base_offset)
    return changed(batch, 21, ">h", CONTROL_BIT)


def compacted(base_offset: int, kept: Record, delta: int, last_delta: int) -> bytearray:
    """Return a batch of which compaction left one record."""
    batch = encode([Record()] * delta + [kept], base_offset=base_offset)
    batch[61:] = batch[61 + delta * 7 :]
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    return (
        changed(batch, 23, ">i", last_delta)
        if delta == 0
        else changed(changed(batch, 23, ">i", last_delta), 57, ">i", 1)
    )


@both
@pytest.mark.parametrize("codec", list(Codec))
def test_round_trip(read: Reader, codec: Codec) -> None:
    batches = [encode(RECORDS, base_offset=offset, codec=codec) for offset in (100, 105, 200)]
    expected = at(100) + at(105) + at(200)
    assert read(batches) == (expected, 205)
    assert read([b"".join(batches)]) == (expected, 205)
    assert read([memoryview(b"".join(batches[:2])), bytes(batches[2])]) == (expected, 205)
    assert decode_records(b"".join(batches)) == expected


@both
def test_nothing_to_read(read: Reader) -> None:
    assert read([], 7) == ([], 7)
    assert read([b"", b""], 7) == ([], 7)
    assert read([encode(RECORDS)], 7) == ([], 7)
    assert read([encode(RECORDS)[:-1]], 3) == ([], 3)


@both
def test_from_the_middle_of_a_batch(read: Reader) -> None:
    batches = [encode(RECORDS, base_offset=100), encode(RECORDS, base_offset=105)]
    assert read(batches, 103) == (at(100)[3:] + at(105), 110)
    assert read(batches, 105) == (at(105), 110)
    assert read(batches, 100, 107) == (at(100) + at(105)[:2], 107)
    assert read(batches, 104, 106) == ([at(100)[4], at(105)[0]], 106)
    assert read(batches, 100, 105) == (at(100), 105)
    assert read(batches, 0, 50) == ([], 50)


@both
def test_the_end_may_lie_in_a_hole(read: Reader) -> None:
    batches = [encode(RECORDS, base_offset=100), encode(RECORDS, base_offset=200)]
    assert read(batches, 0, 150) == (at(100), 150)


@both
def test_as_many_records_as_wanted(read: Reader) -> None:
    batches = [encode(RECORDS, base_offset=100), encode(RECORDS, base_offset=105)]
    assert read(batches, 0, None, 0) == ([], 0)
    assert read(batches, 0, None, 3) == (at(100)[:3], 103)
    assert read(batches, 0, None, 5) == (at(100), 105)
    assert read(batches, 103, None, 3) == (at(100)[3:] + at(105)[:1], 106)
    assert read(batches, 0, None, 11) == (at(100) + at(105), 110)


@both
def test_as_many_bytes_as_wanted(read: Reader) -> None:
    records = [Record(None, b"v" * 100, (), 5)] * 10
    record = (len(encode(records)) - 61) // 10
    batches = [encode(records), encode(records, base_offset=10)]
    expected = at(0, records) + at(10, records)
    assert read(batches, 0, None, None, 1) == (expected[:1], 1)
    assert read(batches, 4, None, None, 3 * record) == (expected[4:7], 7)
    assert read(batches, 4, None, None, 8 * record - 1) == (expected[4:11], 11)
    assert read(batches, 0, None, None, 10 * record) == (expected[:10], 10)
    assert read(batches, 0, None, None, 20 * record) == (expected, 20)


@both
def test_a_batch_behind_the_bound_is_not_opened(read: Reader) -> None:
    good, bad = encode(RECORDS), encode(RECORDS, base_offset=5)
    bad[-1] ^= 1
    assert read([good, bad], 0, None, 5) == (at(0), 5)
    assert read([good, bad], 0, 5) == (at(0), 5)
    assert read([bad, encode(RECORDS, base_offset=10)], 10) == (at(10), 15)


@both
def test_control_batches_are_passed_over(read: Reader) -> None:
    batches = [control(0), encode(RECORDS, base_offset=1), control(6)]
    assert read(batches) == (at(1), 7)
    assert read([control(0)]) == ([], 1)
    assert read(batches, 6) == ([], 7)


@both
def test_what_compaction_removed_is_passed_over(read: Reader) -> None:
    kept = Record(b"k", b"v", (), -1)
    batch = compacted(50, kept, delta=3, last_delta=9)
    assert read([batch]) == ([kept._replace(offset=53)], 60)
    assert read([batch], 54) == ([], 60)
    assert read([batch], 54, 58) == ([], 58)
    empty = changed(encode([Record()])[:61], 57, ">i", 0)
    struct.pack_into(">i", empty, 8, 49)
    assert read([empty]) == ([], 1)


@both
def test_the_last_batch_may_be_cut(read: Reader) -> None:
    whole = encode(RECORDS) + encode(RECORDS, base_offset=5)
    for end in (len(whole) - 1, len(whole) // 2 + 1, len(whole) // 2 + 70):
        assert read([whole[:end]]) == (at(0), 5)


@both
def test_log_append_time_is_the_time_of_every_record(read: Reader) -> None:
    batch = encode(RECORDS)
    patch_log_append_time(batch, 0, len(batch), 42)
    records, _ = read([batch])
    assert {r.timestamp_ms for r in records} == {42}


@both
def test_damage_names_the_offset_and_the_cause(read: Reader) -> None:
    good, bad = encode(RECORDS, base_offset=700), encode(RECORDS, base_offset=705)
    bad[-1] ^= 1
    with pytest.raises(CorruptMessageError, match=r"batch at offset 705: its CRC is wrong"):
        read([good, bad])
    bad[16] = 9
    with pytest.raises(CorruptMessageError, match=r"batch at offset 705: no batch: magic=9"):
        read([good, bad])
    with pytest.raises(CorruptMessageError, match=r"batch at offset 3: no batch: magic=0"):
        read([bytes(100)], 3)


@both
@pytest.mark.parametrize(
    ("data", "count", "cause"),
    [
        (b"", 1, "a record is cut"),
        (b"\x00", 1, "a record is cut"),
        (b"\x0c\x00\x00\x00\x01\x01\x00" * 2, 1, "bytes after the last record"),
        (b"\x0a\x00\x00\x00\x01\x01\x00", 1, "a record is"),
        (b"\x0e\x00\x00\x00\x01\x01\x00\x00", 1, "a record is longer or shorter than it says"),
        (b"\x0c\x00\x00\x00\x03\x01\x00", 1, "a negative length"),
        (b"\x0c\x00\x00\x00\x01\x01\x01", 1, "a negative number of headers"),
        (b"\x10\x00\x00\x00\x01\x01\x02\x01\x01", 1, "a header's key is null"),
        (b"\x1e\x00" + b"\xff" * 9 + b"\x02\x00\x01\x01\x00", 1, "more than 64 bits"),
    ],
)
def test_malformed_records(read: Reader, data: bytes, count: int, cause: str) -> None:
    batch = encode([Record()] * count, base_offset=33)[:61] + data
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    changed(batch, 57, ">i", count)
    with pytest.raises(CorruptMessageError, match=f"batch at offset 33: .*{cause}"):
        read([batch])


@both
@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"\xff", "\ufffd"),
        (b"gr\xf6\xdfe", "gr\ufffd\ufffde"),
        (b"\xe2\x82", "\ufffd"),  # the beginning of a euro sign
        (b"\x00", "\x00"),
        ("größe €".encode(), "größe €"),
    ],
)
def test_a_header_may_have_a_name_that_is_not_utf8(read: Reader, name: bytes, shown: str) -> None:
    batch = encode([Record(headers=(("z" * len(name), b"1"), ("then", b"2")))])
    position = batch.index(b"z" * len(name), 61)
    ((record,), _) = read([changed(batch, position, f"{len(name)}s", name)])
    assert record.headers == ((shown, b"1"), ("then", b"2"))


@both
def test_numbers_beyond_64_bits_are_refused(read: Reader) -> None:
    batch = encode([Record(timestamp_ms=5), Record(timestamp_ms=9)])
    with pytest.raises(CorruptMessageError, match="64 bits"):
        read([changed(batch, 27, ">q", 2**63 - 1)])
    batch = encode([Record()] * 3)
    struct.pack_into(">q", batch, 0, 2**63 - 2)
    with pytest.raises(CorruptMessageError, match="64 bits"):
        read([batch])


@both
def test_compressed_damage_names_the_offset(read: Reader) -> None:
    batch = encode(RECORDS, base_offset=12, codec=Codec.ZSTD)
    batch[61:65] = b"\0\0\0\0"
    with pytest.raises(CorruptMessageError, match="batch at offset 12: ZSTD"):
        read([changed(batch, 21, ">h", int(Codec.ZSTD))])


@both
def test_decompression_is_bounded(read: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "RECORDS_BYTES_MAX", 10_000)
    batches = [
        encode([Record(value=bytes(9_000))], base_offset=i, codec=Codec.ZSTD) for i in range(5)
    ]
    records, next_offset = read(batches)
    assert len(records) == next_offset == 2  # the rest is for the next call
    records, next_offset = read(batches, next_offset)
    assert next_offset == 4
    with pytest.raises(CorruptMessageError, match="batch at offset 0"):
        read([encode([Record(value=bytes(10_000))], codec=Codec.ZSTD)])


@both
def test_a_codec_that_is_not_installed(read: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = encode(RECORDS, codec=Codec.GZIP)
    assert read([batch]) == (at(0), 5)  # columns import pyarrow themselves
    monkeypatch.setattr("dlog.compression.IS_NATIVE", False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert read([batch]) == (at(0), 5)
    with pytest.raises(UnsupportedCompressionTypeError, match="batch at offset 0: lz4"):
        read([changed(batch, 21, ">h", int(Codec.LZ4))])


def test_the_crc_may_be_left_out() -> None:
    batch = encode(RECORDS)
    batch[17] ^= 1
    assert decode_records(batch, verify_crc=False) == at(0)
    assert rows(decode_columns([batch], verify_crc=False)) == at(0)


def test_records_are_equal_and_hash_like_those_of_the_reference() -> None:
    (found,) = decode_records(encode([RECORDS[3]]))
    assert found == at(0, [RECORDS[3]])[0]
    assert type(found) is Record
    assert hash(found) == hash(at(0, [RECORDS[3]])[0])
    assert found._replace(offset=9).offset == 9
    assert {found: 1}[Record(*found)] == 1


def test_columns_share_their_memory_with_arrow_and_numpy() -> None:
    found = decode_columns([encode(RECORDS)])
    batch = found.to_arrow()
    assert batch.schema == arrow_schema()
    for column, mine in (("key", found.keys), ("value", found.values)):
        _, bounds, data = batch[column].buffers()
        assert bounds.address == pa.py_buffer(mine.bounds).address
        assert data.address == pa.py_buffer(mine.data).address
    address = found.offsets.__array_interface__["data"][0]
    assert address == batch["offset"].buffers()[1].address
    assert found.offsets.tolist() == [0, 1, 2, 3, 4]
    assert found.timestamps_ms.tolist() == [r.timestamp_ms for r in RECORDS]
    assert not found.offsets.flags.writeable
    assert batch["key"].null_count == 1
    assert batch["value"].null_count == 1


def test_a_slice_of_the_columns() -> None:
    batch = decode_columns([encode(RECORDS)]).to_arrow().slice(2, 2)
    assert batch["key"].to_pylist() == [b"tombstone", b""]
    assert [len(headers) for headers in batch["headers"].to_pylist()] == [0, 3]


def test_columns_without_headers_or_nulls() -> None:
    found = decode_columns([encode([Record(b"k", b"v", (), 1)] * 9)])
    assert found.headers is None
    assert found.keys.validity is found.values.validity is None
    assert found.to_arrow()["headers"].to_pylist() == [[]] * 9


def test_the_columns_of_nothing() -> None:
    found = decode_columns([])
    assert (len(found), found.next_offset) == (0, 0)
    assert rows(found) == []
    assert found.offsets.tolist() == []


def test_rows_of_a_binary_column() -> None:
    column = decode_columns([encode([Record(b"a"), Record(None), Record(b"")] * 5)]).keys
    assert [column[i] for i in range(len(column))] == [b"a", None, b""] * 5
    for row in (-1, 15):
        with pytest.raises(IndexError):
            column[row]
    assert BinaryColumn(bytes(4), b"", None, 0).to_arrow().to_pylist() == []


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = decode_columns([encode(RECORDS)])
    columns_module.library.cache_clear()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ModuleNotFoundError, match=r"columns need pyarrow: pip install"):
        found.to_arrow()
    columns_module.library.cache_clear()


def test_records_behind_a_hundred_thousand() -> None:
    builder = BatchBuilder(Codec.NONE, 1 << 25)
    values: list[Any] = [b"%d" % i for i in range(100_000)]
    assert builder.append_many(values, values, 1) == len(values)
    batch = builder.build()
    assert [r.value for r in decode_records(batch)] == values
    found = decode_columns([batch])
    assert found.to_arrow()["value"].to_pylist() == values
