"""Whole records as JSON, one on a line: what `consume --format json` writes and `produce` reads.

    {"topic": "t", "partition": 0, "offset": 7, "timestamp_ms": 1, "key": "k", "value": "v",
     "headers": [["name", "value"]]}

Only `value` is needed to produce. A text that is not UTF-8 stands in `key_base64` or `value_base64`
instead (a header's value as `{"base64": "..."}`), so that nothing is lost. `timestamp_ms` is -1 for
a record without a timestamp. With the formats hex and base64 the texts are those; with json the
documents themselves stand there, or base64 where a document would change. What cannot be kept
raises FormatError that names the field: a header's name that is not UTF-8 when it is written, a
timestamp that no producer can write when it is read. Pure.
"""

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any

from dlogctl.records.record_formats import (
    CellFormat,
    Entry,
    FormatError,
    Headers,
    Located,
    check_names,
    decode_cell,
    dump_json,
    encode_cell,
    parse_exactly,
)

KEYS = frozenset(
    {
        *("topic", "partition", "offset", "timestamp_ms", "headers"),
        *("key", "key_base64", "value", "value_base64"),
    }
)
NO_TIMESTAMP = -1
TIMESTAMP_MS_MAX = 1 << 62
"""The largest that a producer writes, so that the difference of two fits into 64 bits."""
INT32_MAX = (1 << 31) - 1
_BASE64 = "base64"


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonLines:
    """One JSON object on each line."""

    key_format: CellFormat = CellFormat.TEXT
    value_format: CellFormat = CellFormat.TEXT

    def parse(self, line: bytes) -> Entry:
        """Return the record of a line; raise FormatError."""
        try:
            found = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise FormatError(f"not a JSON document on one line: {error}") from None
        if not isinstance(found, dict):
            raise FormatError('not a JSON object, such as {"value": "text"}')
        for name in found:
            if name not in KEYS:
                raise FormatError(f"unknown name {name!r}; known are {', '.join(sorted(KEYS))}")
        if "value" not in found and "value_base64" not in found:
            raise FormatError('there is no "value"; null makes a tombstone')
        return Entry(
            key=_cell(found, "key", self.key_format),
            value=_cell(found, "value", self.value_format),
            headers=_headers(found.get("headers") or ()),
            timestamp_ms=_number(found, "timestamp_ms", NO_TIMESTAMP, TIMESTAMP_MS_MAX),
            partition=_number(found, "partition", 0, INT32_MAX),
        )

    def format(self, record: Located) -> bytes:
        """Return a record as one line of JSON."""
        document: dict[str, Any] = {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp_ms": record.timestamp_ms,
        }
        _put(document, "key", record.key, self.key_format)
        _put(document, "value", record.value, self.value_format)
        if record.headers:
            check_names(record.headers)
            document["headers"] = [[name, _header_text(value)] for name, value in record.headers]
        return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode(
            "utf-8", "backslashreplace"
        )


def _put(document: dict[str, Any], name: str, data: bytes | None, cell: CellFormat) -> None:
    if data is None:
        document[name] = None
        return
    try:
        if cell is CellFormat.JSON:
            found = parse_exactly(data)
            if found is None:
                raise FormatError("null there is a tombstone")
            document[name] = found
        else:
            document[name] = encode_cell(cell, data).decode("utf-8")
    except (FormatError, ValueError, RecursionError):
        document[f"{name}_{_BASE64}"] = base64.b64encode(data).decode()


def _cell(found: dict[str, Any], name: str, cell: CellFormat) -> bytes | None:
    encoded = f"{name}_{_BASE64}"
    if encoded in found:
        if name in found:
            raise FormatError(f"both {name!r} and {encoded!r}")
        return _from_base64(found[encoded], encoded)
    data = found.get(name)
    if data is None:
        return None
    if cell is CellFormat.JSON:
        try:
            return dump_json(data)
        except ValueError:
            raise FormatError(f"{name!r} has a number that is too large") from None
    if not isinstance(data, str):
        raise FormatError(f"{name!r} is not text; --{name}-format json takes any document")
    return decode_cell(cell, _utf8(data, name))


def _utf8(text: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise FormatError(f"{name!r} has half a surrogate pair, which has no UTF-8") from None


def _from_base64(text: Any, name: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise FormatError(f"{name!r} is not base64") from None


def _number(found: dict[str, Any], name: str, least: int, largest: int) -> int | None:
    number = found.get(name)
    if number is None:
        return None
    if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= largest:
        raise FormatError(f"{name!r} is not a number from {least} to {largest}")
    return number


def _header_text(value: bytes | None) -> Any:
    if value is None:
        return None
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return {_BASE64: base64.b64encode(value).decode()}


def _headers(found: Any) -> Headers:
    if isinstance(found, dict):
        found = list(found.items())
    if not isinstance(found, list | tuple):
        raise FormatError('"headers" is not a list of [name, value]')
    return tuple(_header(each) for each in found)


def _header(pair: Any) -> tuple[str, bytes | None]:
    if not isinstance(pair, list | tuple) or len(pair) != 2 or not isinstance(pair[0], str):
        raise FormatError('"headers" is not a list of [name, value]')
    name, value = pair
    _utf8(name, "headers")
    if isinstance(value, dict) and list(value) == [_BASE64]:
        return name, _from_base64(value[_BASE64], f"header {name}")
    if value is not None and not isinstance(value, str):
        raise FormatError(f'header {name!r}: its value is a text, null or {{"base64": ...}}')
    return name, None if value is None else _utf8(value, f"header {name}")
