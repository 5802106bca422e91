"""Offsets by what they are (ListOffsets: KIP-79, KIP-734), and which records count (KIP-98).

On its own, for those who only name them: it imports nothing of the client.
"""

from enum import IntEnum

EARLIEST = -2
LATEST = -1
MAX_TIMESTAMP = -3


class Isolation(IntEnum):
    """Which records of transactions are read (KIP-98)."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1
