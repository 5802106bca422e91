"""Records that have broken clients and servers before, and what a reader must get back."""

import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from tests.clients.drivers.driver import Driver, Rec

# An hour ago: what is older than the retention is deleted, as it should be.
STAMP_MS = int(time.time() - 3600) * 1000
LARGE_BYTES = 600_000


def _fit(record: Rec, index: int, driver: Driver) -> Rec:
    """Leave out what the writing client cannot express."""
    if "null_headers" in driver.lacks:
        record = replace(record, headers=tuple((n, v) for n, v in record.headers if v))
    if "timestamps" not in driver.lacks:
        record = replace(record, timestamp_ms=STAMP_MS + index * 1000)
    return record


def mixed(driver: Driver, partition: int = 0, *, large: bool = True) -> list[Rec]:
    """Return records of every shape that `driver` can write."""
    rng = random.Random(partition)
    shapes = [
        Rec(key=b"key", value=b"value"),
        Rec(key=None, value=b"no key"),
        Rec(key=b"tombstone", value=None),
        Rec(key=b"empty value", value=b""),
        Rec(key="ключ 钥匙".encode(), value="значение 🗝".encode()),
        Rec(key=b"headers", value=b"v", headers=(("a", b"1"), ("b", b"two"), ("a", b"again"))),
        Rec(key=b"null header", value=b"v", headers=(("none", None), ("empty", b""))),
        Rec(key=b"null header and tombstone", value=None, headers=(("trace", b"x"),)),
        Rec(key=b"compressible", value=b"0123456789" * 5_000),
    ]
    if large:
        shapes.append(Rec(key=b"large", value=rng.randbytes(LARGE_BYTES)))
    shapes += [Rec(key=b"k%d" % n, value=b"v%d" % n) for n in range(50)]
    return [
        _fit(replace(record, partition=partition), index, driver)
        for index, record in enumerate(shapes)
    ]


def check_same(read: Sequence[Rec], written: Sequence[Rec], first_offset: int = 0) -> None:
    """Compare what was read with what was written, byte for byte, in order, without a gap."""
    assert [record.offset for record in read] == list(
        range(first_offset, first_offset + len(written))
    )
    for got, want in zip(read, written, strict=True):
        assert got.bare() == want.bare(), f"offset {got.offset}"
        if want.timestamp_ms is not None:
            assert got.timestamp_ms == want.timestamp_ms, f"offset {got.offset}"


def numbered(count: int, partition: int = 0) -> list[Rec]:
    """Return `count` small records whose value is their number."""
    return [Rec(key=b"%d" % n, value=b"%d" % n, partition=partition) for n in range(count)]


def check_offsets(offsets: Iterable[int], first: int = 0) -> None:
    """Check the offsets that the producer was told, where its client says any."""
    known = list(offsets)
    if any(offset >= 0 for offset in known):
        assert known == list(range(first, first + len(known)))
