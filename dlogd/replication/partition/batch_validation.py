"""Checks of a batch before a leader appends it, and before a follower does.

A leader walks the records of plain batches, and writes the largest timestamp of the records into a
head that says another one. Compressed records stay unopened, unless the topic wants them checked
(`dlogd.replication.partition.record_validation`). Refusals are WireErrors that name the cause.
"""

from dataclasses import dataclass

from dlog.batch.header import (
    BATCH_STRUCT,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    patch_max_timestamp,
    verify_crc,
)
from dlog.batch.native import walk_records
from dlog.errors import (
    CorruptMessageError,
    InvalidRecordError,
    InvalidTimestampError,
    RecordTooLargeError,
    TransactionalIdAuthorizationFailedError,
)
from dlogd.metadata.state.throttled_replicas import NOBODY, ThrottledReplicas
from dlogd.replication.partition.record_validation import UnopenedError

_CODEC_MASK = 0x07
_CODEC_MAX = 4  # zstd
_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_MAGIC = 2
_NO_TIMESTAMP = -1

RECORD_BYTES_MIN = 7
"""A record of nothing: length, attributes, two deltas, null key, null value, no headers."""
EXPANSION_MAX = 64
"""Records in a byte of compressed batch; a hundred thousand empty ones in zstd come to 1.7."""

Fields = tuple[int, ...]
"""The head of a batch by BATCH_STRUCT."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSettings:
    """What a topic's configs mean for appends."""

    batch_bytes_max: int
    acks_floor: int
    """0, 1 or -1."""
    stamps_append_time: bool
    timestamp_before_ms_max: int
    timestamp_after_ms_max: int
    opens_compressed: bool = False
    """Whether compressed records are checked, too."""
    replica_lag_ms_max: int = 10_000
    """A follower that has not caught up for so long leaves the ISR."""
    leader_throttled: ThrottledReplicas = NOBODY
    follower_throttled: ThrottledReplicas = NOBODY


def check_produced(
    settings: PartitionSettings,
    buffer: bytearray,
    start: int,
    end: int,
    now_ms: int,
    times: tuple[int, int] | None = None,
) -> Fields:
    """Return the head of the one batch that a producer sent; raise WireError.

    `times`: of compressed records that were checked. Raises UnopenedError where they must be.
    A head whose largest timestamp is not that of the records is corrected in `buffer`. Records from
    before 1970 count as records without a timestamp there, as with Kafka.
    """
    size = end - start
    if size > settings.batch_bytes_max:
        raise RecordTooLargeError(
            f"A batch of {size} bytes is over max.message.bytes={settings.batch_bytes_max}"
        )
    if size < HEADER_BYTES:
        raise CorruptMessageError(f"{size} bytes are no record batch")
    fields: Fields = BATCH_STRUCT.unpack_from(buffer, start)
    if fields[3] != _MAGIC:
        raise InvalidRecordError(f"Message format {fields[3]} is not served, only 2")
    if fields[1] + LENGTH_OVERHEAD_BYTES != size:
        raise InvalidRecordError("A produce request holds exactly one batch per partition")
    count = fields[12]
    if count < 1 or fields[6] != count - 1:
        raise InvalidRecordError(
            f"record count {count} and last offset delta {fields[6]} do not fit"
        )
    _check_attributes(fields)
    if not verify_crc(buffer, start, size):
        raise CorruptMessageError("The checksum of the batch does not fit its bytes")
    is_unopened = times is None and fields[5] & _CODEC_MASK != 0
    if times is None:
        times = _times_of(settings, buffer, start, end, fields)
    newest_ms, oldest_ms = times
    if settings.stamps_append_time:
        return fields
    # A compressed batch that nobody can decode is kept until its base timestamp is due as well.
    claimed_ms = max(newest_ms, fields[7]) if is_unopened else newest_ms
    _check_timestamps(settings, fields[5], claimed_ms, oldest_ms, now_ms)
    newest_ms = max(newest_ms, _NO_TIMESTAMP)
    if newest_ms != fields[8]:
        patch_max_timestamp(buffer, start, size, newest_ms)
        fields = BATCH_STRUCT.unpack_from(buffer, start)
    return fields


def _times_of(
    settings: PartitionSettings, buffer: bytearray, start: int, end: int, fields: Fields
) -> tuple[int, int]:
    """Return the largest and the smallest timestamp in ms, -1 where there is none.

    Of plain records, which must be whole, the true ones; of compressed ones what the head says.
    """
    if fields[5] & _CODEC_MASK:
        if settings.opens_compressed:
            raise UnopenedError
        return fields[8], fields[7] if fields[8] != _NO_TIMESTAMP else _NO_TIMESTAMP
    try:
        newest_ms, _, oldest_ms = walk_records(
            buffer, start + HEADER_BYTES, end, fields[12], fields[7]
        )
    except CorruptMessageError as error:
        raise InvalidRecordError(f"No client could read the batch: {error}") from None
    return newest_ms, oldest_ms


def _check_attributes(fields: Fields) -> None:
    attributes = fields[5]
    # Offsets are given out by this count; of compressed records only a bound is known.
    bytes_each = RECORD_BYTES_MIN if attributes & _CODEC_MASK == 0 else 1 / EXPANSION_MAX
    if fields[12] * bytes_each > fields[1]:
        raise InvalidRecordError(f"{fields[12]} records do not fit into {fields[1]} bytes")
    if attributes & _CODEC_MASK > _CODEC_MAX:
        raise InvalidRecordError(f"Compression {attributes & _CODEC_MASK} is unknown")
    if attributes & _CONTROL:
        raise InvalidRecordError("Clients may not write control batches")
    if attributes & _TRANSACTIONAL:
        raise TransactionalIdAuthorizationFailedError("Transactions are not served yet")
    if fields[9] >= 0 and (fields[10] < 0 or fields[11] < 0):
        raise InvalidRecordError("An idempotent batch without epoch or sequence")


def _check_timestamps(
    settings: PartitionSettings, attributes: int, newest_ms: int, oldest_ms: int, now_ms: int
) -> None:
    if attributes & _APPEND_TIME:
        raise InvalidTimestampError("Only the broker may say that a timestamp is LogAppendTime")
    if newest_ms > now_ms + settings.timestamp_after_ms_max:
        raise InvalidTimestampError(
            f"Timestamp {newest_ms} ms is further ahead than"
            f" message.timestamp.after.max.ms={settings.timestamp_after_ms_max}"
        )
    if oldest_ms < now_ms - settings.timestamp_before_ms_max and oldest_ms != _NO_TIMESTAMP:
        raise InvalidTimestampError(
            f"Timestamp {oldest_ms} ms is older than"
            f" message.timestamp.before.max.ms={settings.timestamp_before_ms_max}"
        )


def check_replicated(
    buffer: bytearray | memoryview, start: int, end: int, expected_offset: int
) -> Fields:
    """Return the head of the batch at `start`, which a leader sent; it may end before `end`.

    Raises CorruptMessageError when it is not whole and unharmed, InvalidRecordError
    when it does not follow on.
    """
    if end - start < HEADER_BYTES:
        raise CorruptMessageError(f"{end - start} bytes are no record batch")
    fields: Fields = BATCH_STRUCT.unpack_from(buffer, start)
    size = fields[1] + LENGTH_OVERHEAD_BYTES
    if fields[3] != _MAGIC or size < HEADER_BYTES or size > end - start or fields[6] < 0:
        raise CorruptMessageError("The leader sent what is no whole record batch")
    if not verify_crc(buffer, start, size):
        raise CorruptMessageError("The checksum of a batch from the leader does not fit its bytes")
    if fields[0] != expected_offset:
        raise InvalidRecordError(
            f"The leader sent a batch at offset {fields[0]}, {expected_offset} follows"
        )
    return fields
