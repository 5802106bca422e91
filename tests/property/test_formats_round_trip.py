"""What `dlogctl consume` writes, `dlogctl produce` reads back to the same record."""

import json
from dataclasses import replace
from typing import Any

from hypothesis import assume, example, given
from hypothesis import strategies as st

from dlogctl.records.json_lines import JsonLines
from dlogctl.records.record_formats import (
    CellFormat,
    Entry,
    Headers,
    LineSplitter,
    Located,
    PlainLines,
    format_headers,
    parse_headers,
)

BYTES = st.binary(max_size=40)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
HEADERS: st.SearchStrategy[Headers] = st.lists(st.tuples(NAMES, st.none() | BYTES), max_size=4).map(
    tuple
)
OPAQUE = st.sampled_from([CellFormat.HEX, CellFormat.BASE64])
DELIMITERS = st.sampled_from([b"\t", b"|", b":", b"::", b" ", b"%2", b",", b"="])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


def located(key: bytes | None, value: bytes | None, headers: Headers = ()) -> Located:
    return Located(
        topic="t", partition=3, offset=7, timestamp_ms=11, key=key, value=value, headers=headers
    )


def same(entry: Entry, record: Located) -> None:
    assert (entry.key, entry.value, entry.headers) == (record.key, record.value, record.headers)


@given(st.none() | BYTES, st.none() | BYTES, HEADERS, OPAQUE, OPAQUE)
def test_encoded_lines_come_back(
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
    key_format: CellFormat,
    value_format: CellFormat,
) -> None:
    lines = PlainLines(
        key_format=key_format,
        value_format=value_format,
        key_delimiter=b"\t",
        header_delimiter=b"|",
        null_marker=b"NULL!",
    )
    # A header list of one with an empty name and no value is written as no header at all.
    assume(headers != (("", None),))
    record = located(key, value, headers)
    line = lines.format(record)
    assert b"\n" not in line
    same(lines.parse(line), record)


@given(BYTES, BYTES, DELIMITERS)
def test_text_lines_come_back_when_they_lack_the_delimiter(
    key: bytes, value: bytes, delimiter: bytes
) -> None:
    # Also where key and delimiter overlap: `a:` `::`.
    assume(delimiter not in (key + delimiter)[:-1])
    lines = PlainLines(key_delimiter=delimiter)
    record = located(key, value)
    same(lines.parse(lines.format(record)), record)


@given(st.none() | BYTES, st.none() | BYTES, HEADERS, OPAQUE | st.just(CellFormat.TEXT))
@example(b"\xff", b"\xff", (("h", b"\xff"),), CellFormat.TEXT)
@example(None, b"", (("", None),), CellFormat.TEXT)
def test_json_lines_come_back(
    key: bytes | None, value: bytes | None, headers: Headers, cell: CellFormat
) -> None:
    lines = JsonLines(key_format=cell, value_format=cell)
    record = located(key, value, headers)
    line = lines.format(record)
    assert b"\n" not in line
    entry = lines.parse(line)
    same(entry, record)
    assert (entry.partition, entry.timestamp_ms) == (3, 11)
    assert json.loads(line)["offset"] == 7


@given(JSON, st.sampled_from([None, 2]))
def test_json_documents_keep_their_meaning(document: Any, indent: int | None) -> None:
    data = json.dumps(document, indent=indent).encode()
    for lines in (
        PlainLines(value_format=CellFormat.JSON),
        JsonLines(value_format=CellFormat.JSON),
    ):
        line = lines.format(located(None, data))
        assert b"\n" not in line
        value = lines.parse(line).value
        assert (None if value is None else json.loads(value)) == document


@given(HEADERS, st.binary(max_size=3))
def test_headers_avoid_what_delimits(headers: Headers, delimiters: bytes) -> None:
    assume(headers != (("", None),))
    # These have a meaning inside the headers, and may not delimit them.
    assume(not set(delimiters) & set(b",=%0123456789ABCDEF"))
    text = format_headers(headers, delimiters)
    assert not set(text) & set(delimiters)
    assert parse_headers(text) == headers


@given(st.lists(BYTES), st.lists(st.integers(1, 7)), st.sampled_from([b"\n", b"\r\n", b"--"]))
def test_a_stream_is_cut_the_same_however_it_arrives(
    records: list[bytes], sizes: list[int], delimiter: bytes
) -> None:
    stream = b"".join(each + delimiter for each in records)
    assume(stream.split(delimiter)[:-1] == records)
    splitter = LineSplitter(delimiter)
    found: list[bytes] = []
    rest = stream
    for size in [*sizes, len(stream)]:
        piece, rest = rest[:size], rest[size:]
        found += splitter.feed(piece)
    assert found + splitter.finish() == records


@given(BYTES)
def test_place_and_record_stand_on_one_line(value: bytes) -> None:
    lines = PlainLines(value_format=CellFormat.HEX, with_place=True)
    line = lines.format(replace(located(None, value), offset=9))
    assert line == b"3\t9\t11\t" + value.hex().encode()
