"""The table of CRC-32C (Castagnoli), a byte at a time, and the checksum by it alone."""

import sys

if sys.version_info >= (3, 12):
    from collections.abc import Buffer
else:
    Buffer = bytes | bytearray | memoryview

POLYNOMIAL = 0x82F63B78  # reflected


def _make_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)


TABLE = _make_table()


def crc32c_pure(data: Buffer, crc: int = 0) -> int:
    """Return the CRC-32C of `data`, continuing from `crc`, without any C code."""
    table = TABLE
    crc ^= 0xFFFFFFFF
    for byte in memoryview(data).cast("B"):
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF
