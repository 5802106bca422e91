"""What the sink says about rows that were not written: which, why, and what to do. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow

from dlog.client.futures import DeliveryError, RefusedError
from dlog.errors import (
    ClusterAuthorizationFailedError,
    InvalidRecordError,
    InvalidTimestampError,
    InvalidTopicError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    PolicyViolationError,
    RecordListTooLargeError,
    RecordTooLargeError,
    TopicAuthorizationFailedError,
    TransportError,
    UnknownTopicOrPartitionError,
    WireError,
)
from dlog.spark.errors import SparkSourceError
from dlog.spark.sink_rows import TopicRows

_KEY_BYTES_SHOWN = 40

_CURES: tuple[tuple[tuple[type[Exception], ...], str], ...] = (
    (
        (RecordTooLargeError, RecordListTooLargeError),
        "Raise the topic's max.message.bytes (and kafka.buffer.memory), or make it smaller.",
    ),
    (
        (UnknownTopicOrPartitionError,),
        "Create the topic first: the sink makes none.",
    ),
    (
        (TopicAuthorizationFailedError, ClusterAuthorizationFailedError),
        "Ask for the right to write to the topic.",
    ),
    (
        (NotEnoughReplicasError, NotEnoughReplicasAfterAppendError),
        "Bring the missing nodes back; the topic wants more replicas in sync than there are.",
    ),
    (
        (InvalidTopicError,),
        "Correct the option or the column topic: a name has letters, digits, '.', '_' and '-'.",
    ),
    (
        (InvalidRecordError, InvalidTimestampError, PolicyViolationError),
        "The topic does not take such records: see its configs.",
    ),
    (
        (TransportError,),
        "See that the executors reach the nodes, and the nodes' logs.",
    ),
    (
        (ValueError,),
        "Such rows cannot be written: correct them, or filter them out.",
    ),
)
_OTHER_CURE = "See the nodes' logs. A repetition of the batch writes what is missing."


@dataclass(frozen=True, slots=True)
class FailedRows:
    """Rows that were not acknowledged: `indexes` of those that were sent in one call."""

    sent: TopicRows
    first_row: int
    indexes: Sequence[int]


def write_failed(failed: FailedRows, place: str, error: DeliveryError) -> SparkSourceError:
    """Return what is raised when the cluster did not take rows."""
    count = len(failed.indexes)
    index = failed.indexes[0]
    outcome = "refused" if isinstance(error, RefusedError) else "perhaps written, perhaps not"
    records = "a record was" if count == 1 else f"{count} records were"
    cause = error.__cause__
    return SparkSourceError(
        "DLOG_WRITE_FAILED",
        f"{place}: {records} {outcome}: {error}{_said(cause)}. {_record(failed, index)}",
        _cure(cause if cause is not None else error),
    )


def unsendable(rows: TopicRows, place: str, error: Exception) -> SparkSourceError:
    """Return what is raised when rows could not be given to the producer at all."""
    return SparkSourceError(
        "DLOG_WRITE_FAILED",
        f"{place}: {rows.rows.num_rows} records for topic {rows.topic} could not be sent"
        f"{_said(error)}.",
        _cure(error),
    )


def replay_failed(place: str, error: Exception) -> SparkSourceError:
    """Return what is raised when a task of a replay cannot write, or look at what is there."""
    cause = error.__cause__
    return SparkSourceError(
        "DLOG_WRITE_FAILED",
        f"{place}: {type(error).__name__}: {error}{_said(cause)}.",
        _cure(cause if cause is not None else error),
    )


def _said(error: BaseException | None) -> str:
    """Return the error by its name on the wire."""
    if error is None:
        return ""
    name = error.name if isinstance(error, WireError) else type(error).__name__
    return f" ({name}: {error})"


def _cure(error: BaseException) -> str:
    for kinds, cure in _CURES:
        if isinstance(error, kinds):
            return cure
    return _OTHER_CURE


def _record(failed: FailedRows, index: int) -> str:
    """Say which record it is, so that somebody can find it among the job's data."""
    rows = failed.sent.rows
    number = failed.first_row + failed.sent.numbers[index]
    words = f"The first one is row {number} of the task"
    value = rows.column("value")[index].cast(pyarrow.binary()).as_py()
    size = "no value" if value is None else f"a value of {len(value)} bytes"
    if "key" not in rows.schema.names:
        return f"{words}, {size}."
    key = rows.column("key")[index].cast(pyarrow.binary()).as_py()
    return f"{words}, {_shown(key)}, {size}."


def _shown(key: bytes | None) -> str:
    if key is None:
        return "no key"
    cut = key[:_KEY_BYTES_SHOWN]
    more = "" if len(key) <= _KEY_BYTES_SHOWN else f"... ({len(key)} bytes)"
    return f"key {cut!r}{more}"
