"""Checks of compressed records before a leader appends them, for topics that ask for it.

Decompression costs what producers decide: up to 128 MiB for a batch of kilobytes. So
the checks are made before the append, by whoever produces; the append only takes their result.
Pure. Refusals are WireErrors that name the cause.
"""

from typing import NamedTuple

from dlog.batch.header import (
    ATTRIBUTES,
    BASE_TIME,
    BATCH_STRUCT,
    CODEC_MASK,
    HEADER_BYTES,
    RECORD_COUNT,
)
from dlog.batch.native import walk_records
from dlog.compression import Codec, decompress
from dlog.errors import CorruptMessageError, DecompressedTooLargeError, InvalidRecordError


class RecordTimes(NamedTuple):
    """The largest and the smallest timestamp of the records of a batch in ms; -1: none."""

    newest_ms: int
    oldest_ms: int


class UnopenedError(Exception):
    """The records of a compressed batch must be checked before the append: `times_in` does it."""


def times_in(batch: bytes, bytes_max: int) -> RecordTimes:
    """Decompress a batch to at most `bytes_max` and walk its records; return their times.

    Raises DecompressedTooLargeError for more than that, InvalidRecordError for what no client can
    read, UnsupportedCompressionTypeError where the codec is not installed.
    """
    fields = BATCH_STRUCT.unpack_from(batch)
    packed = memoryview(batch)[HEADER_BYTES:]
    try:
        records = decompress(Codec(fields[ATTRIBUTES] & CODEC_MASK), packed, bytes_max)
        size = memoryview(records).nbytes
        newest_ms, _, oldest_ms = walk_records(
            records, 0, size, fields[RECORD_COUNT], fields[BASE_TIME]
        )
    except DecompressedTooLargeError:
        raise
    except CorruptMessageError as error:
        raise InvalidRecordError(f"No client could read the batch: {error}") from None
    return RecordTimes(newest_ms, oldest_ms)


def too_large(bytes_max: int) -> InvalidRecordError:
    """Return the refusal of a batch that decompresses to more than `bytes_max`."""
    return InvalidRecordError(
        f"No client could read the batch: it decompresses to more than {bytes_max} bytes;"
        " send smaller batches"
    )
