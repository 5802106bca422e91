"""Any record that a batch can hold goes through dlogctl's JSON unchanged, or is refused by name."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dlog.batch.build import BatchBuilder
from dlog.batch.decoding import Bounds, read_shaped
from dlog.client.consumed import ConsumedRecord
from dlog.compression import Codec
from dlogctl.commands.consume import _located
from dlogctl.records.json_lines import TIMESTAMP_MS_MAX, JsonLines
from dlogctl.records.record_formats import CellFormat, FormatError
from tests.fakes.raw_batches import Raw, batch_of

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def read(batch: bytes) -> ConsumedRecord:
    """Read the one record as a consumer does."""
    found = read_shaped([batch], Bounds(), ConsumedRecord, ("t", 3), verify_crc=False)
    (record,) = found.records
    return record


def written(lines: JsonLines, line: bytes) -> Raw:
    """Return the record that a producer makes of a line."""
    entry = lines.parse(line)
    assert entry.partition == 3
    assert entry.timestamp_ms is not None
    builder = BatchBuilder(Codec.NONE, 1 << 20)
    assert builder.append(entry.key, entry.value, entry.headers, entry.timestamp_ms)
    record = read(bytes(builder.build()))
    names = tuple((name.encode(), value) for name, value in record.headers)
    return Raw(record.key, record.value, names, record.timestamp_ms)


BYTES = st.binary(max_size=12) | st.text(max_size=6).map(str.encode)
NAMES = st.sampled_from([b"", b"a", b"\xff", "\ufffd".encode(), b"\xed\xa0\x80"]) | BYTES
TIMES = st.sampled_from([-1, 0, -2, INT64_MIN, INT64_MAX, TIMESTAMP_MS_MAX, 1_700_000_000_000])
RAW = st.builds(
    Raw,
    st.none() | BYTES,
    st.none() | BYTES,
    st.lists(st.tuples(NAMES, st.none() | BYTES), max_size=4).map(tuple),
    TIMES | st.integers(INT64_MIN, INT64_MAX),
    st.booleans(),
)


@given(RAW, st.sampled_from([CellFormat.TEXT, CellFormat.HEX, CellFormat.BASE64]))
@example(Raw(None, None, (), -1), CellFormat.TEXT)
@example(Raw(b"", b"", ((b"h", None), (b"h", b""), (b"h", b"\xff")), 0, True), CellFormat.TEXT)
@example(Raw(b"\xff\n", b"\x00\r\n\xe2\x80\xa8", ((b"", b""),), -1), CellFormat.TEXT)
@example(Raw(b"k", b"v", ((b"ok", b""), (b"\xff", b"")), 1), CellFormat.TEXT)
@example(Raw(b"k", b"v", (), INT64_MIN), CellFormat.HEX)
def test_it_comes_back_or_is_refused(raw: Raw, cell: CellFormat) -> None:
    lines = JsonLines(key_format=cell, value_format=cell)
    record = read(batch_of(raw))
    assert (record.key, record.value, record.timestamp_ms) == (raw[0], raw[1], raw[3])
    if raw.changed_field is not None:
        with pytest.raises(FormatError, match=raw.changed_field):
            written(lines, lines.format(_located(record)))
        return
    line = lines.format(_located(record))
    assert b"\n" not in line
    assert b"\r" not in line
    assert written(lines, line) == raw._replace(is_append_time=False)


def test_a_producer_takes_no_larger_timestamp() -> None:
    builder = BatchBuilder(Codec.NONE, 1 << 20)
    assert builder.append(None, b"", (), TIMESTAMP_MS_MAX)
    with pytest.raises(ValueError, match="not a timestamp"):
        builder.append(None, b"", (), TIMESTAMP_MS_MAX + 1)


@pytest.mark.parametrize(
    "document",
    [
        b'{"a":1,"a":2}',
        b'{"b":{"a":1,"a":1}}',
        b"1.00000000000000000001",
        b"[-0]",
        b"1e400",
        b"9" * 5_000,
        b"[" * 5_000 + b"]" * 5_000,
    ],
)
def test_a_document_that_would_change_stands_there_as_bytes(document: bytes) -> None:
    lines = JsonLines(value_format=CellFormat.JSON)
    line = lines.format(_located(read(batch_of(Raw(None, document, (), 0)))))
    assert "value_base64" in json.loads(line)
    assert lines.parse(line).value == document


@pytest.mark.parametrize("document", [b'{"a": [1.50, 1E2, -1, "\\ud800"]}', b'"\xe2\x80\xa8"'])
def test_a_document_keeps_its_meaning(document: bytes) -> None:
    lines = JsonLines(value_format=CellFormat.JSON)
    line = lines.format(_located(read(batch_of(Raw(None, document, (), 0)))))
    found = lines.parse(line).value
    assert found is not None
    assert json.loads(found) == json.loads(document)
    assert "value_base64" not in json.loads(line)
