"""Checks of a batch before a leader appends it, and before a follower does.

A leader walks the records of plain batches, and writes the largest timestamp of the records into a
head that says another one. Compressed records stay unopened, unless the topic wants them checked
(`dlogd.replication.partition.record_validation`). Refusals are WireErrors that name the cause.
"""

from dataclasses import dataclass

from dlog.batch.header import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    BASE_TIME,
    BATCH_STRUCT,
    FORMAT,
    HEADER_BYTES,
    LAST_DELTA,
    LENGTH,
    MAX_TIME,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    RECORD_COUNT,
    follows_on,
    patch_max_timestamp,
    size_of,
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
    if fields[FORMAT] != _MAGIC:
        raise InvalidRecordError(f"Message format {fields[FORMAT]} is not served, only 2")
    if size_of(fields) != size:
        raise InvalidRecordError("A produce request holds exactly one batch per partition")
    count = fields[RECORD_COUNT]
    if count < 1 or fields[LAST_DELTA] != count - 1:
        raise InvalidRecordError(
            f"record count {count} and last offset delta {fields[LAST_DELTA]} do not fit"
        )
    _check_attributes(fields)
    if not verify_crc(buffer, start, size):
        raise CorruptMessageError("The checksum of the batch does not fit its bytes")
    is_unopened = times is None and fields[ATTRIBUTES] & _CODEC_MASK != 0
    if times is None:
        times = _times_of(settings, buffer, start, end, fields)
    newest_ms, oldest_ms = times
    if settings.stamps_append_time:
        return fields
    # A compressed batch that nobody can decode is kept until its base timestamp is due as well.
    claimed_ms = max(newest_ms, fields[BASE_TIME]) if is_unopened else newest_ms
    _check_timestamps(settings, fields[ATTRIBUTES], claimed_ms, oldest_ms, now_ms)
    newest_ms = max(newest_ms, _NO_TIMESTAMP)
    if newest_ms != fields[MAX_TIME]:
        patch_max_timestamp(buffer, start, size, newest_ms)
        fields = BATCH_STRUCT.unpack_from(buffer, start)
    return fields


def _times_of(
    settings: PartitionSettings, buffer: bytearray, start: int, end: int, fields: Fields
) -> tuple[int, int]:
    """Return the largest and the smallest timestamp in ms, -1 where there is none.

    Of plain records, which must be whole, the true ones; of compressed ones what the head says.
    """
    if fields[ATTRIBUTES] & _CODEC_MASK:
        if settings.opens_compressed:
            raise UnopenedError
        return fields[MAX_TIME], fields[BASE_TIME] if fields[
            MAX_TIME
        ] != _NO_TIMESTAMP else _NO_TIMESTAMP
    try:
        newest_ms, _, oldest_ms = walk_records(
            buffer, start + HEADER_BYTES, end, fields[RECORD_COUNT], fields[BASE_TIME]
        )
    except CorruptMessageError as error:
        raise InvalidRecordError(f"No client could read the batch: {error}") from None
    return newest_ms, oldest_ms


def _check_attributes(fields: Fields) -> None:
    attributes = fields[ATTRIBUTES]
    # Offsets are given out by this count; of compressed records only a bound is known.
    bytes_each = RECORD_BYTES_MIN if attributes & _CODEC_MASK == 0 else 1 / EXPANSION_MAX
    if fields[RECORD_COUNT] * bytes_each > fields[LENGTH]:
        raise InvalidRecordError(
            f"{fields[RECORD_COUNT]} records do not fit into {fields[LENGTH]} bytes"
        )
    if attributes & _CODEC_MASK > _CODEC_MAX:
        raise InvalidRecordError(f"Compression {attributes & _CODEC_MASK} is unknown")
    if attributes & _CONTROL:
        raise InvalidRecordError("Clients may not write control batches")
    if attributes & _TRANSACTIONAL:
        raise TransactionalIdAuthorizationFailedError("Transactions are not served yet")
    if fields[PRODUCER_ID] >= 0 and (fields[PRODUCER_EPOCH] < 0 or fields[BASE_SEQUENCE] < 0):
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
    size = size_of(fields)
    if (
        fields[FORMAT] != _MAGIC
        or size < HEADER_BYTES
        or size > end - start
        or fields[LAST_DELTA] < 0
    ):
        raise CorruptMessageError("The leader sent an incomplete record batch")
    if not verify_crc(buffer, start, size):
        raise CorruptMessageError("The checksum of a batch from the leader does not fit its bytes")
    if not follows_on(fields, expected_offset):
        raise InvalidRecordError(
            f"The leader sent a batch at offset {fields[BASE_OFFSET]}, {expected_offset} follows"
        )
    return fields
