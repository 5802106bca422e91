"""Input of the inner loops: batches with plain record bytes, and the columns to make.

Pure values; made by `dlog.batch.decoding`, read by `dlog.batch._pure` and by the C in csrc/.
"""

from enum import IntFlag
from typing import NamedTuple

from dlog.checksum import Buffer


class OpenBatch(NamedTuple):
    """The records of one batch, decompressed, and what its head says about them.

    The order of the fields is known to csrc/batches.c.
    """

    data: Buffer
    record_count: int
    base_offset: int
    base_timestamp_ms: int
    append_time_ms: int | None  # of every record, when the leader stamps them
    last_offset_delta: int = -1  # records with other offsets are refused; -1: none is


class ColumnSet(IntFlag):
    """Which columns to make; offsets always are. The bits are known to csrc/decode_columns.c."""

    TIMESTAMPS = 1
    KEYS = 2
    VALUES = 4
    HEADERS = 8
    EVERY = 15
