"""The record codec, compiled and in Python, against the clear reference `dlog.batch.records`.

What one refuses all refuse, whatever the bytes; what they make is the same to the last byte.
"""

from types import ModuleType
from typing import Any

import pytest
from aiokafka.partitioner import murmur2 as aiokafka_murmur2  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st

from dlog.batch import _pure, _pure_buffer
from dlog.batch.build import BatchBuilder, batch_bytes_max, restamp
from dlog.batch.columns import BinaryColumn, decode_columns
from dlog.batch.decoding import decode_records
from dlog.batch.header import HEADER_BYTES
from dlog.batch.open_batch import ColumnSet, OpenBatch
from dlog.batch.records import Record, decode, encode
from dlog.compression import Codec
from dlog.errors import CorruptMessageError
from tests.property.record_reference import (
    int64s,
    optional_bytes,
    outcome,
    record_lists,
    records,
    reference,
)

speedups: Any = pytest.importorskip("dlog.batch._speedups", reason="the extension is not built")

ALL = 2**63 - 1
plain_records = st.builds(
    Record, key=optional_bytes, value=optional_bytes, timestamp_ms=st.just(1_700_000_000_000)
)
codecs = st.sampled_from(list(Codec))


def at(found: list[Record], base_offset: int) -> list[Record]:
    """Return the records with the offsets that they get in a batch."""
    return [r._replace(offset=base_offset + i) for i, r in enumerate(found)]


def rows(data: Any) -> list[Record]:
    """Return what the inner loop gave as columns, record by record."""
    _, offsets, timestamps, keys, values, headers = data
    key_column, value_column = BinaryColumn(*keys), BinaryColumn(*values)
    found = []
    for row, offset in enumerate(memoryview(offsets).cast("q")):
        pairs: list[tuple[str, bytes | None]] = []
        if headers is not None:
            bounds = memoryview(headers[0]).cast("i")
            names, contents = BinaryColumn(*headers[1]), BinaryColumn(*headers[2])
            for i in range(bounds[row], bounds[row + 1]):
                name = names[i]
                assert name is not None
                pairs.append((name.decode(), contents[i]))
        timestamp_ms = memoryview(timestamps).cast("q")[row]
        found.append(Record(key_column[row], value_column[row], tuple(pairs), timestamp_ms, offset))
    return found


@given(record_lists, codecs, st.integers(-1, 2**62), st.booleans())
def test_building_gives_the_bytes_of_the_reference(
    found: list[Record], codec: Codec, producer_id: int, transactional: bool
) -> None:
    builder = BatchBuilder(codec, 1 << 20)
    for record in found:
        assert builder.append(record.key, record.value, record.headers, record.timestamp_ms)
    identity = {"producer_id": producer_id, "producer_epoch": 3, "base_sequence": 5}
    batch = builder.build(**identity, transactional=transactional)
    assert batch == encode(found, codec=codec, **identity, transactional=transactional)
    restamp(batch, producer_id=9, producer_epoch=4, base_sequence=0)
    identity = {"producer_id": 9, "producer_epoch": 4, "base_sequence": 0}
    assert batch == encode(found, codec=codec, **identity, transactional=transactional)


def state(buffer: Any) -> tuple[int, ...]:
    """Return what a record buffer shows."""
    return (
        buffer.record_count,
        buffer.size_bytes,
        buffer.base_timestamp_ms,
        buffer.max_timestamp_ms,
        buffer.is_empty,
    )


@given(record_lists, st.integers(HEADER_BYTES, 3000))
def test_both_buffers_take_the_same_records_up_to_any_bound(
    found: list[Record], bytes_max: int
) -> None:
    buffers = [speedups.RecordBuffer(bytes_max), _pure_buffer.RecordBuffer(bytes_max)]
    taken = []
    for record in found:
        fits = [b.append(record.key, record.value, record.headers, record.timestamp_ms)
                for b in buffers]  # fmt: skip
        assert fits[0] is fits[1]
        assert state(buffers[0]) == state(buffers[1])
        if fits[0]:
            taken.append(record)
    compiled, pure = (buffer.take() for buffer in buffers)
    assert compiled == pure
    assert len(compiled) <= bytes_max
    if taken:
        assert compiled[HEADER_BYTES:] == encode(taken)[HEADER_BYTES:]


@given(st.lists(plain_records, max_size=20), st.booleans(), st.integers(61, 2000), st.data())
def test_appending_many_is_appending_one_by_one(
    found: list[Record], with_keys: bool, bytes_max: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(found) + 1))
    one_by_one = _pure_buffer.RecordBuffer(bytes_max)
    count = 0
    for record in found[start:]:
        key = record.key if with_keys else None
        if not one_by_one.append(key, record.value, (), record.timestamp_ms):
            break
        count += 1
    keys = [record.key for record in found] if with_keys else None
    values = [record.value for record in found]
    for make in (speedups.RecordBuffer, _pure_buffer.RecordBuffer):
        buffer = make(bytes_max)
        assert buffer.append_many(keys, values, 1_700_000_000_000, start) == count
        assert state(buffer) == state(one_by_one)
        assert bytes(buffer.take()) == bytes(one_by_one._data or b"")


@given(records)
def test_a_batch_of_one_record_fits_the_size_that_was_said(record: Record) -> None:
    size = batch_bytes_max(record.key, record.value, record.headers)
    builder = BatchBuilder(Codec.NONE, size)
    assert builder.append(record.key, record.value, record.headers, record.timestamp_ms)


@given(record_lists, st.integers(0, 2**62), st.none() | int64s, st.data())
def test_damaged_records_are_read_alike_or_refused_by_all(
    found: list[Record], base_offset: int, append_time_ms: int | None, data: st.DataObject
) -> None:
    raw = bytearray(encode(found)[HEADER_BYTES:])
    for _ in range(data.draw(st.integers(0, 4))):
        position = data.draw(st.integers(0, len(raw) - 1))
        octet = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
        if data.draw(st.booleans()):
            raw[position] = octet
        else:
            raw.insert(position, octet)
    count = data.draw(st.integers(max(0, len(found) - 1), len(found) + 1) | st.just(2**31 - 1))
    base_timestamp_ms = data.draw(st.just(found[0].timestamp_ms) | int64s)
    check(OpenBatch(bytes(raw), count, base_offset, base_timestamp_ms, append_time_ms))


@given(st.binary(max_size=8))
def test_names_of_headers_that_are_not_utf_8_are_read_alike(name: bytes) -> None:
    raw = encode([Record(headers=(("-" * len(name), b"v"),))])[HEADER_BYTES:]
    raw = raw.replace(b"-" * len(name), name) if name else raw
    check(OpenBatch(bytes(raw), 1, 5, 1000, None))


@settings(max_examples=300)
@given(st.binary(max_size=60), st.integers(0, 9), st.none() | int64s, int64s)
def test_anything_is_read_alike_or_refused_by_all(
    raw: bytes, count: int, append_time_ms: int | None, base_timestamp_ms: int
) -> None:
    check(OpenBatch(raw, count, 2**63 - 2**31, base_timestamp_ms, append_time_ms))


@given(st.lists(st.integers(0, 2**64 - 1), min_size=2, max_size=2), st.integers(0, 3))
def test_numbers_of_any_length_are_read_alike_or_refused_by_all(
    numbers: list[int], padding: int
) -> None:
    content = bytearray(1)
    for number in numbers:
        while number > 0x7F:
            content.append(number & 0x7F | 0x80)
            number >>= 7
        content.append(number | (0x80 if padding else 0))
        content += b"\x80" * (padding - 1) + b"\x00" * (padding > 0)
    content += b"\x01\x01\x00"
    check(OpenBatch(bytes([len(content) * 2]) + content, 1, 5, 1000, None))


def check(batch: OpenBatch) -> None:
    """Read one open batch in all five ways."""
    everything = ([batch], -(2**63), ALL, ALL, ALL)
    expected = reference(batch)
    for module in (speedups, _pure):
        found = outcome(module.decode_records, *everything)
        columns = outcome(module.decode_columns, *everything)
        if expected is CorruptMessageError:
            assert found is columns is CorruptMessageError
        else:
            kept = [r for r in expected if r.offset < ALL]  # no bound is above the largest offset
            assert found == (kept, True)
            assert all(type(r) is Record for r in found[0])
            assert (columns[0], rows(columns)) == (True, kept)
    if expected is not CorruptMessageError:
        assert speedups.decode_columns(*everything) == _pure.decode_columns(*everything)


def check_subset(columns: Any, some: Any, subset: int) -> None:
    """See that what is asked for is as it is when all is, and that nothing else is made."""
    assert some[:2] == columns[:2]
    for number, column in enumerate(ColumnSet):
        is_there = bool(subset & column)
        nothing: Any = {ColumnSet.TIMESTAMPS: b"", ColumnSet.HEADERS: None}
        empty = nothing.get(column, (bytes(4), b"", None, 0))
        assert some[2 + number] == (columns[2 + number] if is_there else empty)


@given(
    st.lists(record_lists, max_size=4),
    st.tuples(st.integers(0, 60), st.integers(0, 80), st.integers(0, 40), st.integers(0, 3000)),
    st.data(),
)
def test_bounds_cut_alike(
    lists: list[list[Record]], limits: tuple[int, int, int, int], data: st.DataObject
) -> None:
    batches, expected, offset = [], [], 0
    for found in lists:
        raw = bytearray(encode(found)[HEADER_BYTES:])
        if data.draw(st.integers(0, 9)) == 0:
            raw[data.draw(st.integers(0, len(raw) - 1))] ^= 0xFF
        batches.append(OpenBatch(memoryview(raw), len(found), offset, found[0].timestamp_ms, None))
        expected += at(found, offset)
        offset += len(found)
    start, end, count, _ = limits
    compiled = outcome(speedups.decode_records, batches, *limits)
    assert compiled == outcome(_pure.decode_records, batches, *limits)
    columns = outcome(speedups.decode_columns, batches, *limits)
    assert columns == outcome(_pure.decode_columns, batches, *limits)
    subset = data.draw(st.integers(0, int(ColumnSet.EVERY)))
    some = outcome(speedups.decode_columns, batches, *limits, subset)
    assert some == outcome(_pure.decode_columns, batches, *limits, subset)
    if compiled is CorruptMessageError:
        assert columns is CorruptMessageError
        return
    check_subset(columns, some, subset)
    assert (columns[0], rows(columns)) == (compiled[1], compiled[0])
    if not any(
        bytes(b.data) != encode(f)[HEADER_BYTES:] for b, f in zip(batches, lists, strict=True)
    ):
        wanted = [r for r in expected if start <= r.offset < end][:count]
        assert compiled[0] == wanted[: len(compiled[0])]
        assert compiled[0] or not wanted


@settings(deadline=None)  # pyarrow is imported in the first example
@given(st.lists(record_lists, max_size=4), codecs, st.integers(0, 70), st.integers(0, 70))
def test_whole_batches_give_what_the_reference_gives(
    lists: list[list[Record]], codec: Codec, start: int, end: int
) -> None:
    buffers, expected, offset = [], [], 0
    for found in lists:
        buffers.append(encode(found, base_offset=offset, codec=codec))
        expected += [r for r in decode(buffers[-1]) if start <= r.offset < end]
        offset += len(found)
    together = b"".join(buffers)
    assert decode_records(together, start, end_offset=end) == expected
    columns = decode_columns(buffers, start_offset=start, end_offset=end)
    assert columns.offsets.tolist() == [r.offset for r in expected]
    batch = columns.to_arrow()
    batch.validate(full=True)
    assert batch["key"].to_pylist() == [r.key for r in expected]
    assert batch["value"].to_pylist() == [r.value for r in expected]
    assert [
        [(h["key"], h["value"]) for h in headers] for headers in batch["headers"].to_pylist()
    ] == [list(r.headers) for r in expected]
    assert columns.timestamps_ms.tolist() == [r.timestamp_ms for r in expected]


@given(st.binary(max_size=100))
def test_murmur2_is_that_of_other_clients(key: bytes) -> None:
    modules: tuple[ModuleType, ...] = (speedups, _pure)
    for module in modules:
        for data in (key, bytearray(key), memoryview(key)):
            assert module.murmur2(data) & 0xFFFFFFFF == aiokafka_murmur2(key) & 0xFFFFFFFF
            assert -(2**31) <= module.murmur2(data) < 2**31
