"""Records of every shape, and how what was read compares with what was written."""

import random
import time
from collections.abc import Iterable, Sequence
from typing import Any

from dlog.batch.records import Header, Record
from dlog.client.consumed import ConsumedRecord
from dlog.compression import Codec

CODECS = tuple(codec.name.lower() for codec in Codec)
# An hour ago: what is older than the retention is deleted, as it should be.
STAMP_MS = int(time.time() - 3600) * 1000
LARGE_BYTES = 700_000

_RNG = random.Random(1)
_KEYS: tuple[bytes | None, ...] = (None, b"", b"k", b"\x00\xff" * 9, "ключ 🗝".encode())
_VALUES: tuple[bytes | None, ...] = (None, b"", b"v", b"0123456789" * 3_000, _RNG.randbytes(5_000))
_HEADERS: tuple[tuple[Header, ...], ...] = (
    (),
    (("a", b"1"),),
    (("none", None), ("empty", b"")),
    (("a", b"1"), ("b", b"2"), ("a", b"again"), ("a", None)),
    (("", b"no name"), ("имя", b"\x00"), ("long", b"x" * 3_000)),
    tuple((f"h{number}", b"%d" % number) for number in range(100)),
)


def shapes(*, large: bool = True) -> list[Record]:
    """Return every key with every value, and every set of headers with some of them."""
    plain: list[tuple[bytes | None, bytes | None, tuple[Header, ...]]] = [
        (key, value, ()) for key in _KEYS for value in _VALUES
    ]
    plain += [(b"headers", value, headers) for headers in _HEADERS for value in (b"v", None)]
    if large:
        plain.append((b"large", _RNG.randbytes(LARGE_BYTES), ()))
        plain.append((b"\x01" * LARGE_BYTES, b"large key", ()))
    # Not in the order of time, either.
    return [
        Record(key, value, headers, STAMP_MS + index * 7919 % 100_000)
        for index, (key, value, headers) in enumerate(plain)
    ]


def numbered(numbers: Iterable[int]) -> list[Record]:
    """Return small records whose value is their number."""
    return [Record(None, b"%d" % number, (), STAMP_MS + number) for number in numbers]


def numbers_of(records: Iterable[ConsumedRecord]) -> list[int]:
    """Return the numbers of what was read."""
    return [int(record.value or b"") for record in records]


def check_same(read: Sequence[ConsumedRecord], written: Sequence[Record]) -> None:
    """Compare byte for byte, in order; there is no offset without a record."""
    assert [record.offset for record in read] == list(range(len(written)))
    for got, want in zip(read, written, strict=True):
        assert got[:4] == want[:4], f"offset {got.offset}"


def rows(batch: Any) -> list[ConsumedRecord]:
    """Return the rows of what `poll_arrow` gave as records."""
    stamps = batch.column("timestamp").cast("int64").to_pylist()
    return [
        ConsumedRecord(
            key=row["key"],
            value=row["value"],
            headers=tuple((each["key"], each["value"]) for each in row["headers"]),
            timestamp_ms=stamp_ms,
            offset=row["offset"],
            topic=row["topic"],
            partition=row["partition"],
        )
        for row, stamp_ms in zip(batch.to_pylist(), stamps, strict=True)
    ]
