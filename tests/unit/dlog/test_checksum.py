"""CRC-32C against its published check values, and the pure table against the native code."""

import random
import sys

import pytest

from dlog import checksum
from dlog.checksum import crc32c, crc32c_pure
from dlog.checksum_arrays import crc32c_arrays

# RFC 3720 appendix B.4 and the usual check value.
KNOWN = [
    (b"", 0),
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
]


@pytest.mark.parametrize(("data", "expected"), KNOWN)
def test_known_values(data: bytes, expected: int) -> None:
    assert crc32c(data) == expected
    assert crc32c_pure(data) == expected


def test_continues_from_a_crc_and_takes_any_buffer() -> None:
    data = bytes(range(256)) * 5
    view = memoryview(bytearray(data))
    assert crc32c(view[100:], crc32c(view[:100])) == crc32c(data) == crc32c_pure(view)
    assert crc32c_pure(view[100:], crc32c_pure(view[:100])) == crc32c(data)


def test_arrays_give_the_same() -> None:
    data = random.Random(2).randbytes(300_001)
    for size in (4, 7, 255, 256, 257, 8191, 8192, 8193, 65_536, 131_071, 299_999):
        for start in (0, 1, 3):
            part = memoryview(data)[start : start + size]
            for crc in (0, 1, 0xFFFF_FFFF, 0x1234_5678):
                assert crc32c_arrays(part, crc) == crc32c(part, crc)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    data = random.Random(3).randbytes(20_000)
    expected = [crc32c(data[:size], 5) for size in (10, 20_000)]
    monkeypatch.setattr(checksum, "_native", None)
    assert [crc32c(data[:size], 5) for size in (10, 20_000)] == expected
    # Nor numpy.
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert [crc32c(data[:size], 5) for size in (10, 20_000)] == expected
