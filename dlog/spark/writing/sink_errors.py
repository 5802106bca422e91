"""Errors of the sink about rows that were not written: which rows, why, what to do. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow

from dlog.client.futures import DeliveryError, RefusedError, UnsendableRowError
from dlog.errors import (
    ClusterAuthorizationFailedError,
    DlogError,
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
from dlog.spark.writing.row_names import name_row
from dlog.spark.writing.sink_rows import TopicRows

# Made at run time, so nobody knows its types.
_compute: Any = import_module("pyarrow.compute")

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
_OTHER_CURE = "See the nodes' logs. A repetition of the batch writes the missing records."


@dataclass(frozen=True, slots=True)
class FailedRows:
    """Rows that were not acknowledged: `indexes` of those that were sent in one call.

    `first_row` is the number in the task of the first row of their Arrow batch.
    """

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


def unsendable(rows: TopicRows, first_row: int, place: str, error: Exception) -> SparkSourceError:
    """Return what is raised when rows could not be given to the producer, one of them or all."""
    count = rows.rows.num_rows
    records = "a record" if count == 1 else f"{count} records"
    could, index, which = "could not be sent", 0, "first"
    if isinstance(error, UnsendableRowError):
        records, index = "a record", error.row
    elif isinstance(error, RecordTooLargeError):
        records, index, which = "a record", _largest(rows.rows), "largest"
    elif isinstance(error, DlogError) and not isinstance(error, WireError):
        could = "could not all be sent"  # some may have been taken over before
    failed = FailedRows(rows, first_row, (index,))
    return SparkSourceError(
        "DLOG_WRITE_FAILED",
        f"{place}: {records} for topic {rows.topic} {could}{_said(error)}."
        f" {_record(failed, index, which)}",
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


def _record(failed: FailedRows, index: int, which: str = "first") -> str:
    """Say which record it is."""
    number = failed.first_row + failed.sent.numbers[index]
    return f"The {which} one is {name_row(failed.sent.rows, index, number)}."


def _largest(rows: pyarrow.RecordBatch) -> int:
    """Return which row has most bytes: where one is too large this one is."""
    sizes = np.zeros(rows.num_rows, np.int64)
    for name in {"key", "value"}.intersection(rows.schema.names):
        sizes += _lengths(rows.column(name))
    if "headers" in rows.schema.names:
        headers = rows.column("headers")
        pairs = headers.flatten()
        lengths = _lengths(pairs.field("key")) + _lengths(pairs.field("value"))
        # As `flatten` has it: nothing of a null list, whatever lies behind it.
        counts = headers.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        np.add.at(sizes, np.repeat(np.arange(len(counts)), counts), lengths)
    return int(sizes.argmax())


def _lengths(column: pyarrow.Array) -> Any:
    found = _compute.binary_length(column.cast(pyarrow.binary()))
    return found.fill_null(0).to_numpy(zero_copy_only=False)
