"""CRC-32C against its published check values, and the pure table against the native code."""

import pytest

from dlog.checksum import crc32c, crc32c_pure

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
