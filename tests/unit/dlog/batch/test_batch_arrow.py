"""pyarrow's record batches as records to write: what is cast, what may be missing, what is not."""

import itertools
import struct
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from dlog.batch import native
from dlog.batch.arrow import columns_from_arrow
from dlog.batch.build import BatchBuilder
from dlog.batch.columns import BinaryColumn, Columns
from dlog.batch.records import Record, decode
from dlog.compression import Codec

NOW = 1_700_000_000_123
HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])


def written(columns: Columns, **place: int) -> list[Record]:
    """Return the records that a batch of the columns holds."""
    builder = BatchBuilder(Codec.NONE, 1 << 20)
    builder.append_rows(columns, **place)
    return [record._replace(offset=-1) for record in decode(builder.build())]


def test_every_column() -> None:
    batch = pa.record_batch(
        {
            "headers": pa.array(
                [[("a", b"1"), ("b", None)], [], None, [("größe", b"")]], pa.list_(HEADER)
            ),
            "key": pa.array([b"k", None, b"", b"x"]),
            "unused": pa.array([1, 2, 3, 4]),
            "timestamp": pa.array([1, 2, None, 4], pa.timestamp("ms")),
            "value": pa.array([None, b"v", b"w", b"y"]),
        }
    )
    assert written(columns_from_arrow(batch, timestamp_ms=NOW)) == [
        Record(b"k", None, (("a", b"1"), ("b", None)), 1),
        Record(None, b"v", (), 2),
        Record(b"", b"w", (), NOW),
        Record(b"x", b"y", (("größe", b""),), 4),
    ]


def test_bounds_of_headers_are_those_of_each_row() -> None:
    some, none = [("a", b"1"), ("b", None)], list[tuple[str, bytes]]()
    plain = pa.array([some, none, None, some[:1], some] * 5, pa.list_(HEADER))
    # The second list is null, though there are two headers behind it.
    hidden = pa.ListArray.from_arrays(
        pa.array([0, 1, 3, 3, 5], pa.int32()),
        pa.array([*some, *some, *some], HEADER).slice(1),
        mask=pa.array([False, True, False, False]),
    )
    large = plain.cast(pa.large_list(HEADER))
    for lists in (plain, hidden, large):
        for start, length in itertools.product(range(4), range(1, 10)):
            part = lists.slice(start, length)
            wanted = part.to_pylist()
            batch = pa.record_batch({"value": pa.nulls(len(part)), "headers": part})
            headers = columns_from_arrow(batch).headers
            if headers is None:
                assert not any(wanted)
                continue
            counts = [len(each or ()) for each in wanted]
            ends = memoryview(headers.bounds).cast("i").tolist()
            assert ends == [0, *itertools.accumulate(counts)]
            found = [record.headers for record in written(columns_from_arrow(batch))]
            assert found == [
                tuple((pair["key"], pair["value"]) for pair in each or ()) for each in wanted
            ]


def test_values_alone() -> None:
    batch = pa.record_batch({"value": pa.array([b"a", b"b"])})
    assert written(columns_from_arrow(batch, timestamp_ms=NOW)) == [
        Record(None, b"a", (), NOW),
        Record(None, b"b", (), NOW),
    ]
    assert {r.timestamp_ms for r in written(columns_from_arrow(batch))} == {-1}


@pytest.mark.parametrize("kind", [pa.string(), pa.large_binary(), pa.large_string()])
def test_what_arrow_can_cast_is_cast(kind: Any) -> None:
    times = pa.array([datetime.fromtimestamp(NOW / 1000, UTC)] * 3, pa.timestamp("us", tz="UTC"))
    texts = pa.array(["a", None, "größe"]).cast(kind)
    batch = pa.record_batch({"value": texts, "key": texts, "timestamp": times}).slice(1)
    encoded = "größe".encode()
    assert written(columns_from_arrow(batch)) == [
        Record(None, None, (), NOW),
        Record(encoded, encoded, (), NOW),
    ]


def test_values_are_not_copied() -> None:
    values = pa.array([b"value-%d" % i for i in range(100)])
    columns = columns_from_arrow(pa.record_batch({"value": values}).slice(10, 50))
    assert pa.py_buffer(columns.values.data).address == values.buffers()[2].address
    assert [columns.values[i] for i in (0, 49)] == [b"value-10", b"value-59"]


def test_nothing_and_columns_of_nulls() -> None:
    empty = columns_from_arrow(pa.record_batch({"value": pa.array([], pa.binary())}))
    assert len(empty) == len(empty.keys) == len(empty.values) == 0
    assert BatchBuilder(Codec.NONE, 100).append_rows(empty) == 0
    batch = pa.record_batch({"value": pa.nulls(3), "key": pa.nulls(3, pa.binary())})
    assert written(columns_from_arrow(batch)) == [Record()] * 3


def test_what_cannot_be_written() -> None:
    with pytest.raises(KeyError):
        columns_from_arrow(pa.record_batch({"key": pa.array([b"k"])}))
    with pytest.raises((pa.ArrowInvalid, pa.ArrowNotImplementedError)):
        columns_from_arrow(pa.record_batch({"value": pa.array([[1]])}))
    headers = pa.array([[(None, b"1")]], pa.list_(HEADER))
    bad = columns_from_arrow(pa.record_batch({"value": pa.array([b"v"]), "headers": headers}))
    with pytest.raises(ValueError, match="header's key is null"):
        written(bad)
    early = columns_from_arrow(pa.record_batch({"value": pa.array([b"v"])}), timestamp_ms=-2)
    with pytest.raises(ValueError, match="-2 is not a timestamp"):
        written(early)


def test_columns_that_do_not_hold_together() -> None:
    good = columns_from_arrow(pa.record_batch({"value": pa.array([b"a", b"b"])}))
    builder = BatchBuilder(Codec.NONE, 1000)
    for start, stop in ((0, 3), (-1, 2), (2, 9)):
        with pytest.raises(ValueError, match="fewer rows"):
            builder.append_rows(good, start, stop)
    wrong = BinaryColumn(struct.pack("=3i", 0, 1, 99), b"ab", None, 0)
    with pytest.raises(ValueError, match="bounds make no sense"):
        builder.append_rows(Columns(bytes(16), bytes(16), good.keys, wrong, None, 0))
    assert builder.record_count == 1  # those before the bad one stay
    assert builder.append_rows(good, 2, 1) == 0


def test_hashes_of_a_column_of_keys() -> None:
    batch = pa.record_batch({"value": pa.array([b"21", None, b"foobar", b"abc"])}).slice(1)
    hashes = memoryview(native.murmur2_rows(columns_from_arrow(batch).values.parts)).cast("i")
    assert hashes.tolist() == [0, -790332482, 479470107]
    for nonsense in (None, (b"", b"")):
        with pytest.raises(TypeError):
            native.murmur2_rows(nonsense)  # type: ignore[arg-type]
