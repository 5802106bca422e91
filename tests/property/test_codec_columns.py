"""Columns to batches, compiled and in Python: the same bytes, the same refusal of any buffers."""

from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlog.batch import _pure, _pure_buffer
from dlog.batch.arrow import columns_from_arrow
from dlog.batch.build import BatchBuilder
from dlog.batch.columns import decode_columns
from dlog.batch.records import Record, encode
from dlog.compression import Codec
from tests.property.record_reference import record_of

speedups: Any = pytest.importorskip("dlog.batch._speedups", reason="the extension is not built")

record = record_of(bytes_max=60, name_max=9, headers_max=3)
record_lists = st.lists(record, min_size=1, max_size=30)
bounds = st.lists(st.integers(0, 9) | st.integers(-(2**31), 2**31 - 1), max_size=8).map(
    lambda numbers: array("i", numbers).tobytes()
)
rising = st.lists(st.integers(0, 3), max_size=8).map(
    lambda steps: array("i", [sum(steps[:i]) for i in range(len(steps) + 1)]).tobytes()
)
columns = st.tuples(
    rising | bounds | st.binary(max_size=9),
    st.binary(max_size=20),
    st.none() | st.binary(max_size=2),
    st.just(0),
)
timestamps = (
    st.integers(-3, 2**63)
    | st.binary(max_size=20)
    | st.lists(st.integers(-1, 2**62), max_size=8).map(lambda n: array("q", n).tobytes())
)
REFUSED = (ValueError, TypeError, OverflowError)


def build(found: list[Record]) -> bytes:
    """Return the batch that the reference makes."""
    return bytes(encode(found))


def outcome(buffer: Any, *arguments: Any) -> Any:
    """Return what appending gives and leaves, the kind of refusal included."""
    try:
        result = buffer.append_columns(*arguments)
    except REFUSED as error:
        result = str(error)
    return result, buffer.record_count, buffer.size_bytes, bytes(buffer.take())


@settings(max_examples=400)
@given(
    st.none() | columns,
    columns,
    timestamps,
    st.none() | st.tuples(rising | bounds, columns, columns),
    st.tuples(st.integers(-1, 3), st.integers(-1, 8), st.integers(61, 200)),
)
def test_any_buffers_are_taken_alike_or_refused_alike(
    keys: Any, values: Any, times: Any, headers: Any, limits: tuple[int, int, int]
) -> None:
    start, stop, bytes_max = limits
    arguments = (keys, values, times, headers, start, stop)
    compiled = outcome(speedups.RecordBuffer(bytes_max), *arguments)
    assert compiled == outcome(_pure_buffer.RecordBuffer(bytes_max), *arguments)


@given(columns)
def test_any_keys_are_hashed_alike_or_refused_alike(keys: Any) -> None:
    found = []
    for module in (speedups, _pure):
        try:
            found.append(module.murmur2_rows(keys))
        except ValueError as error:
            found.append(str(error))
    assert found[0] == found[1]


@settings(deadline=None)  # pyarrow is imported in the first example
@given(record_lists, st.data())
def test_records_to_columns_to_arrow_and_back(found: list[Record], data: st.DataObject) -> None:
    table = decode_columns([encode(found)])
    first = data.draw(st.integers(0, len(found)))
    end = data.draw(st.integers(first, len(found)))
    sliced = columns_from_arrow(table.to_arrow().slice(first, end - first))
    for source, start, stop in ((table, first, end), (sliced, 0, end - first)):
        builder = BatchBuilder(Codec.NONE, 1 << 20)
        assert builder.append_rows(source, start, stop) == end - first
        if first < end:
            assert bytes(builder.build()) == build(found[first:end])


@given(record_lists, st.integers(61, 500))
def test_columns_go_into_as_many_batches_as_they_need(found: list[Record], spare: int) -> None:
    table = decode_columns([encode(found)])
    largest = max(len(encode([record])) for record in found) + 20
    taken = 0
    while taken < len(found):
        builder = BatchBuilder(Codec.NONE, largest + spare)
        count = builder.append_rows(table, taken)
        assert count
        assert bytes(builder.build()) == build(found[taken : taken + count])
        taken += count
