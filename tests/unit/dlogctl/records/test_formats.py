"""Lines that are no records, and what is said about them."""

import pytest

from dlogctl.records.json_lines import JsonLines
from dlogctl.records.record_formats import (
    CellFormat,
    Entry,
    FormatError,
    LineFormat,
    LineSplitter,
    Located,
    PlainLines,
    encode_cell,
    parse_delimiter,
    parse_header,
    parse_headers,
)

RECORD = Located(topic="t", partition=0, offset=5, timestamp_ms=1, key=None, value=None)


def test_delimiters_have_escapes() -> None:
    assert parse_delimiter(r"\t") == b"\t"
    assert parse_delimiter(r"\x1f\\n") == b"\x1f\\n"
    assert parse_delimiter("ü") == "ü".encode()
    for wrong in ("", r"\q", "\\", r"\xg0"):
        with pytest.raises(FormatError):
            parse_delimiter(wrong)


def test_tombstones_and_empty_values_differ() -> None:
    lines = PlainLines(key_delimiter=b"\t", null_marker=b"NULL")
    assert lines.parse(b"k\tNULL") == Entry(key=b"k", value=None)
    assert lines.parse(b"NULL\t") == Entry(key=None, value=b"")
    assert lines.format(RECORD) == b"NULL\tNULL"
    assert PlainLines(null_marker=b"").parse(b"") == Entry(value=None)
    assert PlainLines().parse(b"") == Entry(value=b"")
    assert PlainLines().format(RECORD) == b""
    assert JsonLines().parse(b'{"value": null}').value is None
    assert b'"value":null' in JsonLines().format(RECORD)


def test_headers_of_a_line() -> None:
    assert parse_headers(b"a=1,b,c=%2C%3d,d=") == (
        ("a", b"1"),
        ("b", None),
        ("c", b",="),
        ("d", b""),
    )
    assert parse_headers(b"") == ()
    assert parse_header(b"a=b=c") == ("a", b"b=c")
    for wrong in (b"a=%", b"a=%zz", b"%ff=1"):
        with pytest.raises(FormatError):
            parse_header(wrong)


def test_headers_of_json() -> None:
    as_object = JsonLines().parse(b'{"value": "v", "headers": {"a": "1", "b": null}}')
    assert as_object.headers == (("a", b"1"), ("b", None))
    as_list = JsonLines().parse(b'{"value": "v", "headers": [["a", {"base64": "/w=="}]]}')
    assert as_list.headers == (("a", b"\xff"),)


WRONG: list[tuple[LineFormat, bytes, str]] = [
    (PlainLines(key_delimiter=b"\t"), b"no key", r"no delimiter b'\\t' between key and value"),
    (PlainLines(header_delimiter=b"|"), b"none", r"no delimiter b'\|' after the headers"),
    (PlainLines(value_format=CellFormat.HEX), b"abc", "'abc' is not hex digits in pairs"),
    (PlainLines(value_format=CellFormat.HEX), b"\xff", r"'\\\\xff' is not hex digits"),
    (PlainLines(value_format=CellFormat.BASE64), b"a-b_", "is not base64"),
    (PlainLines(value_format=CellFormat.JSON), b"{", "'{' is not JSON"),
    (PlainLines(value_format=CellFormat.JSON), b"NaN", "'NaN' is not JSON"),
    (PlainLines(value_format=CellFormat.JSON), b"[" * 100_000, "is not JSON"),
    (JsonLines(), b"text", "not a JSON document on one line"),
    (JsonLines(), b"[" * 100_000, "not a JSON document on one line"),
    (JsonLines(), b"[1]", "not a JSON object"),
    (JsonLines(), b'{"key": "k"}', 'there is no "value"'),
    (JsonLines(), b'{"value": 1}', "'value' is not text; --value-format json"),
    (JsonLines(), b'{"value": "v", "kee": 1}', "unknown name 'kee'; known are headers, key"),
    (JsonLines(), b'{"value": "v", "value_base64": "AA=="}', "both 'value' and 'value_base64'"),
    (JsonLines(), b'{"value_base64": "?"}', "'value_base64' is not base64"),
    (JsonLines(), b'{"value_base64": 5}', "'value_base64' is not base64"),
    (JsonLines(), b'{"value": "\\ud800"}', "half a surrogate pair"),
    (JsonLines(), b'{"value": "v", "partition": -1}', "'partition' is not a number"),
    (JsonLines(), b'{"value": "v", "partition": true}', "'partition' is not a number"),
    (JsonLines(), b'{"value": "v", "timestamp_ms": 1.5}', "'timestamp_ms' is not a number"),
    (JsonLines(), b'{"value": "v", "headers": 5}', '"headers" is not a list'),
    (JsonLines(), b'{"value": "v", "headers": [["a"]]}', '"headers" is not a list'),
    (JsonLines(), b'{"value": "v", "headers": [["a", 1]]}', "header 'a': its value is a text"),
    (JsonLines(value_format=CellFormat.HEX), b'{"value": "x"}', "'x' is not hex"),
    (JsonLines(value_format=CellFormat.JSON), b'{"value": [1e999]}', "'value' has a number that"),
]


@pytest.mark.parametrize(("lines", "line", "message"), WRONG, ids=[str(w[1][:30]) for w in WRONG])
def test_what_is_no_record_is_refused(lines: LineFormat, line: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        lines.parse(line)


def test_bytes_that_are_no_json_are_not_written_as_such() -> None:
    with pytest.raises(FormatError, match="is not JSON; text, hex and base64"):
        encode_cell(CellFormat.JSON, b"\xff")
    assert encode_cell(CellFormat.JSON, b'{\n"a": 1}') == b'{"a":1}'
    record = Located(topic="t", partition=0, offset=5, timestamp_ms=1, key=None, value=b"{")
    assert b'"value_base64":"ew=="' in JsonLines(value_format=CellFormat.JSON).format(record)


@pytest.mark.parametrize("value", [b"null", b" null\n", b"1e999", b'{"a":\n[-1e999]}'])
def test_json_that_would_be_read_as_something_else_is_written_as_bytes(value: bytes) -> None:
    """Such as null, which is a tombstone, and numbers without end, which are not JSON."""
    form = JsonLines(value_format=CellFormat.JSON)
    record = Located(topic="t", partition=0, offset=5, timestamp_ms=1, key=None, value=value)
    line = form.format(record)
    assert b"Infinity" not in line
    assert form.parse(line).value == value
    if b"9" in value and b"\n" in value:
        with pytest.raises(FormatError, match="is not JSON; text, hex and base64"):
            encode_cell(CellFormat.JSON, value)


def test_a_record_without_an_end_is_given_up() -> None:
    splitter = LineSplitter(b"\n", bytes_max=10)
    assert splitter.feed(b"12345678\n12345678") == [b"12345678"]
    with pytest.raises(FormatError, match="no delimiter"):
        splitter.feed(b"901")
