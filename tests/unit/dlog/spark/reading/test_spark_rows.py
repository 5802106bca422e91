"""Batches to the rows of a Spark source: every column, any choice of them, cuts, stamps, limits."""

import itertools
import random
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest

from dlog.batch.header import patch_log_append_time
from dlog.batch.records import Record, encode
from dlog.compression import Codec
from dlog.errors import CorruptMessageError
from dlog.spark.errors import OptionError, SparkSourceError
from dlog.spark.reading.rows import BATCH_BYTES_ENOUGH, RowMaker
from tests.fakes.batches import COMMIT, batch, marker
from tests.fakes.spark_tasks import NAMES, schema_of


def made(
    buffers: Sequence[bytes], start: int = 0, end: int = 2**62, names: Sequence[str] = ()
) -> Iterator[pa.RecordBatch]:
    """Make the rows of partition 7 of topic `größe`."""
    maker = RowMaker(schema_of(*names), "größe", 7)
    for each in maker.make([memoryview(b"".join(buffers))], start, end):
        each.validate(full=True)
        yield each


RECORDS = [
    Record(b"k", b"v", (), 1_700_000_000_123),
    Record(None, b"", (("a", b"1"), ("a", None)), 1_700_000_000_124),
    Record(b"", None, (), -1),
    Record(b"x" * 300, b"y" * 70_000, (("größe", b"\x00"),), 0),
]


def row(record: Record, offset: int, kind: int = 0) -> dict[str, object]:
    """Return a record as Spark's Kafka source would show it."""
    headers = [{"key": key, "value": value} for key, value in record.headers]
    return {
        "key": record.key,
        "value": record.value,
        "topic": "größe",
        "partition": 7,
        "offset": offset,
        "timestamp": record.timestamp_ms * 1000,
        "timestampType": kind,
        "headers": headers or None,
    }


def rows_of(batches: Iterator[pa.RecordBatch]) -> list[dict[str, object]]:
    """Return all rows, times as microseconds."""
    found = []
    for each in batches:
        columns = dict(zip(each.schema.names, each.columns, strict=True))
        if "timestamp" in columns:
            columns["timestamp"] = columns["timestamp"].cast(pa.int64())
        found += pa.RecordBatch.from_pydict(columns).to_pylist()
    return found


@pytest.mark.parametrize("codec", Codec)
def test_every_column(codec: Codec) -> None:
    data = bytes(encode(RECORDS, base_offset=5, codec=codec))
    batches = list(made([data]))
    assert [each.schema for each in batches] == [schema_of()]
    assert rows_of(iter(batches)) == [row(each, 5 + n) for n, each in enumerate(RECORDS)]


@pytest.mark.parametrize("count", range(1, 4))
def test_any_columns_in_any_order(count: int) -> None:
    data = bytes(encode(RECORDS, base_offset=5))
    for names in itertools.permutations(NAMES, count):
        wanted = [
            {name: row(each, 5 + n)[name] for name in names} for n, each in enumerate(RECORDS)
        ]
        batches = list(made([data], names=names))
        assert [each.schema for each in batches] == [schema_of(*names)]
        assert rows_of(iter(batches)) == wanted
        assert [list(each) for each in rows_of(iter(batches))] == [list(names)] * len(RECORDS)


def test_a_range_begins_and_ends_inside_batches() -> None:
    data = [batch(0), batch(3), batch(6), marker(9, 1, COMMIT), batch(10)]
    for start, end in itertools.combinations(range(15), 2):
        offsets = [each["offset"] for each in rows_of(made(data, start, end))]
        assert offsets == [n for n in range(start, min(end, 13)) if n != 9]


def test_each_record_says_who_stamped_it() -> None:
    stamped = bytearray(batch(3))
    patch_log_append_time(stamped, 0, len(stamped), 5_000)
    batches = list(made([batch(0), bytes(stamped), bytes(batch(6)), batch(9)]))
    found = rows_of(iter(batches))
    assert [each["timestampType"] for each in found] == [0] * 3 + [1] * 3 + [0] * 6
    assert [each["timestamp"] for each in found[2:7]] == [1_002_000, *[5_000_000] * 3, 1_006_000]
    assert len(batches) == 3


def test_batches_are_about_a_mebibyte() -> None:
    rng = random.Random(1)
    data = [
        bytes(encode([Record(None, rng.randbytes(1_000), (), 0)] * 10, base_offset=10 * n))
        for n in range(500)
    ]
    sizes = [each.nbytes for each in made(data, names=("value",))]
    assert sum(sizes) > 5_000_000
    assert all(BATCH_BYTES_ENOUGH * 0.9 < size < BATCH_BYTES_ENOUGH * 1.1 for size in sizes[:-1])


def test_one_huge_batch_is_cut() -> None:
    data = bytes(encode([Record(None, b"z" * 1_000, (), 0)] * 20_000, codec=Codec.ZSTD))
    assert len(data) < 300_000
    batches = list(made([data], 5, 19_995, ("offset", "value")))
    assert max(each.num_rows for each in batches) < 4_000
    assert [each["offset"] for each in rows_of(iter(batches))] == list(range(5, 19_995))


def test_one_record_larger_than_a_batch() -> None:
    data = [bytes(encode([Record(b"k", b"z" * 5_000_000, (), 0)], base_offset=n)) for n in (0, 1)]
    assert [each.num_rows for each in made(data)] == [1, 1]


def test_damage_inside_a_batch_is_told() -> None:
    data = bytearray(batch(4))
    data[61] = 0xFF  # the length of the first record
    with pytest.raises(CorruptMessageError, match="batch at offset 4"):
        list(made([bytes(data)]))


def test_what_is_before_damage_is_given_first() -> None:
    bad = bytearray(batch(6))
    bad[61] = 0xFF  # the length of the first record
    batches = [batch(0), batch(3), bytes(bad), batch(9)]
    found: list[int] = []
    with pytest.raises(CorruptMessageError, match="batch at offset 6"):
        for each in made(batches, names=("offset",)):
            found += each.column("offset").to_pylist()
    assert found == list(range(6))


@pytest.mark.parametrize("sign", [1, -1])
def test_a_timestamp_that_spark_cannot_have_is_told(sign: int) -> None:
    most = (2**63 - 1) // 1000
    records = [
        Record(b"k", b"v", (), 5),
        Record(b"k", b"v", (), sign * most),
        Record(b"k", b"v", (), sign * (most + 1)),
    ]
    found = rows_of(made([bytes(encode(records[:2], base_offset=7))], names=("timestamp",)))
    assert [each["timestamp"] for each in found] == [5000, sign * most * 1000]
    data = bytes(encode(records, base_offset=7))
    told = rf"\[KAFKA_MALFORMED_RECORD_TIMESTAMP\].* 9 of größe-7 .*{most + 1} ms"
    with pytest.raises(SparkSourceError, match=told):
        list(made([data]))
    with pytest.raises(SparkSourceError, match=r"option timestampOverflow to clip.*--option"):
        list(made([data]))
    clipping = RowMaker(schema_of("timestamp"), "größe", 7, clip_timestamps=True)
    clipped = [each["timestamp"] for each in rows_of(clipping.make([data], 0, 99))]
    assert clipped == [5000, sign * most * 1000, sign * most * 1000]
    # Who does not ask for it is not concerned, nor who begins behind it.
    assert [each["offset"] for each in rows_of(made([data], names=("offset",)))] == [7, 8, 9]
    assert len(rows_of(made([data], 7, 9))) == 2


def test_columns_that_there_are_not() -> None:
    with pytest.raises(OptionError, match="DLOG_NO_COLUMN"):
        RowMaker(pa.schema([]), "t", 0)
    with pytest.raises(OptionError, match=r"DLOG_UNKNOWN_COLUMN.*no column other"):
        RowMaker(pa.schema([("other", pa.int32())]), "t", 0)
    with pytest.raises(OptionError, match=r"DLOG_COLUMN_TYPE.*offset is int64, not int32"):
        RowMaker(pa.schema([("offset", pa.int32())]), "t", 0)


def test_a_long_name_in_very_many_rows_takes_little_memory() -> None:
    """One compressed batch can have millions of records: a column of names would be gigabytes."""
    records = [Record(None, None, (), 0)] * 300_000
    packed = bytes(encode(records, codec=Codec.GZIP))
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    before = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        made = RowMaker(schema_of("topic", "offset"), "t" * 249, 0).make([packed], 0, 2**62)
        assert sum(each.num_rows for each in made) == 300_000
    finally:
        pa.set_memory_pool(before)
    assert pool.max_memory() < 16 * 1024 * 1024
