"""Records as lines of text, for `dlogctl produce` and `consume`.

Pure: bytes in, bytes out. Two forms of a line:

    lines   [headers DELIMITER] [key DELIMITER] value
    json    {"key": ..., "value": ..., "headers": [[name, value], ...], "timestamp_ms": ..., ...}

Keys and values are `text` (the bytes as they are), `hex`, `base64` or `json` (checked to be JSON).
What `consume` writes, `produce` reads back to the same bytes: always with hex, base64 and the json
form; with text as long as it has none of the delimiters and is not the null marker. The cell format
json keeps the document, not its blanks and the spelling of its numbers. A record that cannot be
kept raises FormatError, which names the field.

Headers in a line are `name=value,name=value`; a name without `=` has the value null; signs that
would be taken for something else are written `%2C`, as in an URL.
"""

import base64
import binascii
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any, Protocol
from urllib.parse import unquote_to_bytes

Headers = tuple[tuple[str, bytes | None], ...]

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
RECORD_BYTES_MAX = 128 * 1024 * 1024
"""Longest line that is taken in: beyond that the delimiter is wrong rather than the record long."""


class FormatError(ValueError):
    """A text is no record in the format that was asked for, or a record cannot be written in it."""


class CellFormat(StrEnum):
    """How the bytes of a key or a value are written."""

    TEXT = "text"
    HEX = "hex"
    BASE64 = "base64"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A record as it is read from a line."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None
    partition: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """A record as it was read from a topic."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class LineFormat(Protocol):
    """One form of a line."""

    def parse(self, line: bytes) -> Entry:
        """Return the record of a line (without its delimiter); raise FormatError."""

    def format(self, record: Located) -> bytes:
        """Return a record as a line without its delimiter; raise FormatError."""


def parse_delimiter(text: str) -> bytes:
    """Parse a delimiter with the escapes `\\t`, `\\n`, `\\r`, `\\0`, `\\\\`, `\\xHH`."""
    plain = {"t": b"\t", "n": b"\n", "r": b"\r", "0": b"\0", "\\": b"\\"}

    def replaced(match: re.Match[bytes]) -> bytes:
        escape = match[1].decode("latin-1")
        if escape in plain:
            return plain[escape]
        if escape.startswith("x") and len(escape) == 3:
            return bytes.fromhex(escape[1:])
        raise FormatError(
            f"\\{escape} in {text!r} is not an escape; use \\t \\n \\r \\0 \\\\ \\xHH"
        )

    found = re.sub(rb"\\(x[0-9A-Fa-f]{2}|.|$)", replaced, text.encode(), flags=re.DOTALL)
    if not found:
        raise FormatError("a delimiter has at least one character")
    return found


def decode_cell(cell: CellFormat, text: bytes) -> bytes:
    """Return the bytes that a text stands for; raise FormatError."""
    if cell is CellFormat.TEXT:
        return text
    try:
        if cell is CellFormat.HEX:
            return bytes.fromhex(text.decode("ascii"))
        if cell is CellFormat.BASE64:
            return base64.b64decode(text, validate=True)
        _parse_json(text)
    except (ValueError, binascii.Error, RecursionError):
        raise FormatError(f"{_excerpt(text)} is not {_named(cell)}") from None
    return text


def encode_cell(cell: CellFormat, data: bytes) -> bytes:
    """Return the text of some bytes; raise FormatError when they are no JSON where it must be."""
    if cell is CellFormat.TEXT:
        return data
    if cell is CellFormat.HEX:
        return data.hex().encode()
    if cell is CellFormat.BASE64:
        return base64.b64encode(data)
    try:
        _parse_json(data)
        # On one line: what has line breaks is written again.
        if b"\n" in data or b"\r" in data:
            return dump_json(parse_exactly(data))
        return data
    except (ValueError, RecursionError):
        raise FormatError(f"{_excerpt(data)} is not JSON; text, hex and base64 show it") from None


def _named(cell: CellFormat) -> str:
    return {CellFormat.HEX: "hex digits in pairs", CellFormat.BASE64: "base64"}.get(cell, "JSON")


def _excerpt(data: bytes) -> str:
    shown = data[:60].decode("utf-8", "backslashreplace")
    return repr(shown + ("..." if len(data) > 60 else ""))


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _parse_json(text: bytes) -> Any:
    return json.loads(text.decode("utf-8"), parse_constant=_refuse_constant)


def _exact_float(text: str) -> float:
    number = float(text)
    if math.isinf(number) or Decimal(text) != Decimal(repr(number)):
        raise ValueError(f"{text} has more digits than are kept")
    return number


def _exact_int(text: str) -> int:
    number = int(text)
    if str(number) != text:
        raise ValueError(f"{text} is written as {number}")
    return number


def _exact_object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        raise ValueError("an object has a name twice")
    return document


def parse_exactly(text: bytes) -> Any:
    """Return a JSON document that `dump_json` gives back; raise ValueError where it would not."""
    return json.loads(
        text.decode("utf-8"),
        parse_constant=_refuse_constant,
        parse_float=_exact_float,
        parse_int=_exact_int,
        object_pairs_hook=_exact_object,
    )


def dump_json(document: Any) -> bytes:
    """Return a document on one line; raise ValueError for a number that was too large to read."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", "backslashreplace")


_HEADER_SAFE = frozenset(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~/:;@+*!()' "
)


def _quote(data: bytes, delimiters: bytes) -> bytes:
    """Write everything as `%XX` that is not plain, or occurs in a delimiter."""
    return b"".join(
        bytes((each,)) if each in _HEADER_SAFE and each not in delimiters else b"%%%02X" % each
        for each in data
    )


def check_names(headers: Headers) -> None:
    """Raise FormatError for a header whose name may not be what the record has.

    Consumers read what is not UTF-8 in a name as U+FFFD, so such a name cannot be given back.
    """
    for number, (name, _) in enumerate(headers, 1):
        if REPLACEMENT in name:
            raise FormatError(
                f"header {number}: its name {name!r} is not UTF-8, or has U+FFFD, and would change;"
                " without --format json and --header-delimiter headers are left out"
            )


def format_headers(headers: Headers, delimiters: bytes = b"") -> bytes:
    """Return headers as one text in which no byte of `delimiters` occurs."""
    return b",".join(
        _quote(name.encode(), delimiters)
        + (b"" if value is None else b"=" + _quote(value, delimiters))
        for name, value in headers
    )


def parse_headers(text: bytes) -> Headers:
    """Parse `name=value,name=value`; raise FormatError."""
    return tuple(parse_header(part) for part in text.split(b",")) if text else ()


def parse_header(text: bytes) -> tuple[str, bytes | None]:
    """Parse `name=value`, or `name` for a header whose value is null; raise FormatError."""
    name, equals, value = text.partition(b"=")
    if b"%" in re.sub(rb"%[0-9A-Fa-f]{2}", b"", text):
        raise FormatError(f"{_excerpt(text)}: a % stands before two hex digits; %25 is a %")
    try:
        named = unquote_to_bytes(name).decode("utf-8")
    except UnicodeDecodeError:
        raise FormatError(f"{_excerpt(name)}: the name of a header is UTF-8") from None
    return named, unquote_to_bytes(value) if equals else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainLines:
    """`[headers DELIMITER] [key DELIMITER] value`; without a delimiter that part is not there."""

    key_format: CellFormat = CellFormat.TEXT
    value_format: CellFormat = CellFormat.TEXT
    key_delimiter: bytes | None = None
    header_delimiter: bytes | None = None
    null_marker: bytes | None = None
    with_place: bool = False
    """Begin a line that is written with partition, offset and timestamp."""

    def parse(self, line: bytes) -> Entry:
        """Return the record of a line; raise FormatError."""
        headers: Headers = ()
        key: bytes | None = None
        if self.header_delimiter is not None:
            text, found, line = line.partition(self.header_delimiter)
            if not found:
                raise FormatError(f"no delimiter {self.header_delimiter!r} after the headers")
            headers = parse_headers(text)
        if self.key_delimiter is not None:
            text, found, line = line.partition(self.key_delimiter)
            if not found:
                raise FormatError(f"no delimiter {self.key_delimiter!r} between key and value")
            key = self._parse_cell(self.key_format, text)
        return Entry(key=key, value=self._parse_cell(self.value_format, line), headers=headers)

    def _parse_cell(self, cell: CellFormat, text: bytes) -> bytes | None:
        return None if text == self.null_marker else decode_cell(cell, text)

    def format(self, record: Located) -> bytes:
        """Return a record as a line; null is the marker, or nothing where there is none."""
        parts = []
        if self.with_place:
            place = f"{record.partition}\t{record.offset}\t{record.timestamp_ms}\t"
            parts.append(place.encode())
        if self.header_delimiter is not None:
            check_names(record.headers)
            delimiters = self.header_delimiter + (self.key_delimiter or b"")
            parts += [format_headers(record.headers, delimiters), self.header_delimiter]
        if self.key_delimiter is not None:
            parts += [self._format_cell(self.key_format, record.key), self.key_delimiter]
        parts.append(self._format_cell(self.value_format, record.value))
        return b"".join(parts)

    def _format_cell(self, cell: CellFormat, data: bytes | None) -> bytes:
        return (self.null_marker or b"") if data is None else encode_cell(cell, data)


class LineSplitter:
    """Cuts a stream into records at a delimiter; holds at most one unfinished record."""

    def __init__(self, delimiter: bytes, bytes_max: int = RECORD_BYTES_MAX) -> None:
        self._delimiter = delimiter
        self._bytes_max = bytes_max
        self._begun = bytearray()
        self._searched = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the records that `data` completes; raise FormatError for one without an end."""
        self._begun += data
        # The delimiter may lie across the border of what was there before.
        start = max(0, self._searched - len(self._delimiter) + 1)
        if self._begun.find(self._delimiter, start) < 0:
            self._searched = len(self._begun)
            self._check()
            return []
        *records, rest = bytes(self._begun).split(self._delimiter)
        self._begun = bytearray(rest)
        self._searched = len(rest)
        self._check()
        return records

    def _check(self) -> None:
        if len(self._begun) > self._bytes_max:
            raise FormatError(
                f"no delimiter {self._delimiter!r} within {self._bytes_max} bytes; see --delimiter"
            )

    def finish(self) -> list[bytes]:
        """Return the last record when it was not followed by a delimiter."""
        rest, self._begun = bytes(self._begun), bytearray()
        return [rest] if rest else []
