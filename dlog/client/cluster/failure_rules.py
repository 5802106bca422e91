"""Rules for a failed batch: repeat, refuse, or unknown. Pure.

Kafka's rules (KIP-98, KIP-360, `TransactionManager.canRetry`), with one more distinction: whether
the batch may have been appended although it failed, which decides how it ends when time is over.
"""

from enum import Enum, auto

from dlog.client.retry import is_retriable
from dlog.errors import (
    ClusterAuthorizationFailedError,
    CorruptMessageError,
    DuplicateSequenceNumberError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidRecordError,
    InvalidRequestError,
    InvalidRequiredAcksError,
    InvalidTimestampError,
    InvalidTopicError,
    NotEnoughReplicasError,
    OutOfOrderSequenceNumberError,
    PolicyViolationError,
    ProtocolError,
    RecordListTooLargeError,
    RecordTooLargeError,
    TopicAuthorizationFailedError,
    TransportError,
    UnknownProducerIdError,
    UnsupportedCompressionTypeError,
    UnsupportedForMessageFormatError,
    UnsupportedVersionError,
    WireError,
)

# Said before anything is appended: this attempt left nothing in the log.
_NOT_APPENDED = (
    ClusterAuthorizationFailedError,
    CorruptMessageError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidRecordError,
    InvalidRequestError,
    InvalidRequiredAcksError,
    InvalidTimestampError,
    InvalidTopicError,
    NotEnoughReplicasError,
    OutOfOrderSequenceNumberError,
    PolicyViolationError,
    RecordListTooLargeError,
    RecordTooLargeError,
    TopicAuthorizationFailedError,
    UnknownProducerIdError,
    UnsupportedCompressionTypeError,
    UnsupportedForMessageFormatError,
    UnsupportedVersionError,
)
# Says that no earlier attempt is in the log either: the leader would have known the repetition.
_NEVER_APPENDED = (OutOfOrderSequenceNumberError, UnknownProducerIdError)


class Verdict(Enum):
    """What follows."""

    WRITTEN_BEFORE = auto()
    """It is in the log, by an earlier attempt."""
    RETRY = auto()
    NEW_EPOCH = auto()
    """The leader misses something before it for good: number anew in a new epoch, then retry."""
    NEW_PRODUCER_ID = auto()
    """The producer id is of no use any more: number anew under another one, then retry."""
    SPLIT = auto()
    GIVE_UP = auto()


def leaves_doubt(error: Exception) -> bool:
    """Return whether the attempt that failed so may have appended the batch."""
    if isinstance(error, TransportError):
        return error.was_sent
    return not isinstance(error, _NOT_APPENDED)


def clears_doubt(error: Exception) -> bool:
    """Return whether the error says that no attempt at all appended the batch."""
    return isinstance(error, _NEVER_APPENDED)


def judge(
    error: Exception,
    *,
    is_idempotent: bool,
    is_oldest: bool,
    record_count: int,
    may_be_written: bool = False,
    has_lost: bool = False,
) -> Verdict:
    """Decide about a batch that failed; `is_oldest`: no batch before it is still under way.

    `may_be_written`: by an earlier attempt, or by this one. `has_lost`: one before it was given up
    and may arrive yet.
    """
    if isinstance(error, DuplicateSequenceNumberError):
        return Verdict.WRITTEN_BEFORE
    if isinstance(error, RecordTooLargeError | RecordListTooLargeError):
        # A leader that has the whole batch does not know its halves: it would append them, too.
        may_split = record_count > 1 and not (is_idempotent and may_be_written)
        return Verdict.SPLIT if may_split else Verdict.GIVE_UP
    if is_idempotent and isinstance(error, WireError):
        if isinstance(error, OutOfOrderSequenceNumberError):
            # Those behind a batch that failed are out of order until that one is repeated.
            if not is_oldest:
                return Verdict.RETRY
            # Where one that was given up still comes, an earlier copy of this one fits behind it.
            return Verdict.GIVE_UP if may_be_written and has_lost else Verdict.NEW_EPOCH
        if isinstance(error, UnknownProducerIdError):
            return Verdict.NEW_EPOCH
        if isinstance(error, InvalidProducerEpochError | InvalidProducerIdMappingError):
            return Verdict.NEW_PRODUCER_ID
    if isinstance(error, ProtocolError | TransportError) or is_retriable(error):
        return Verdict.RETRY
    return Verdict.GIVE_UP
