"""What names one batch of one query, and the promise that its sink makes about it.

Spark may write a batch several times: tasks are tried again, and after a failure the whole batch
is, with the same `Token`. `commit` and `abort` are called on fresh writers in another process, in
any order and more than once, `abort` after a `commit` that failed when its work was done: both must
be idempotent, and an abort must never undo a commit.

`AtLeastOnce` is the promise of Spark's Kafka sink. One of exactly once would have the same three
methods: write in a transaction, commit all of a batch's under the token, and skip a batch whose
token the log has.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql.datasource import WriterCommitMessage

from dlog.spark.errors import SparkSourceError

_log = logging.getLogger(__name__)

# Undocumented, but how Spark's own sinks know them.
_QUERY_PROPERTY = "sql.streaming.queryId"
_BATCH_PROPERTY = "streaming.sql.batchId"
NO_BATCH = -1


@dataclass(frozen=True, slots=True)
class Token:
    """One batch of a streaming query, or one batch job (`batch_id` -1).

    `query_id` outlives restarts from the same checkpoint.
    """

    query_id: str
    batch_id: int = NO_BATCH

    def __str__(self) -> str:
        return f"{self.query_id}/{self.batch_id}"


def token_of(property_of: Callable[[str], str | None], job_id: str) -> Token:
    """Return the token of the task whose local properties these are; of the job without any."""
    query, batch = property_of(_QUERY_PROPERTY), property_of(_BATCH_PROPERTY)
    if query is None or batch is None:
        return Token(job_id)
    return Token(query, int(batch))


@dataclass(frozen=True, slots=True)
class PartitionWritten:
    """What a task wrote to one partition: the records' offsets lie in [first, last].

    Others may have written in between. -1: nobody told, as with acks "none".
    """

    topic: str
    partition: int
    record_count: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True)
class TaskWritten(WriterCommitMessage):
    """What one attempt of a task has written, all of it acknowledged."""

    token: Token
    task: int
    attempt: int
    record_count: int
    partitions: tuple[PartitionWritten, ...]


Messages = Sequence[WriterCommitMessage | None]


class Promise(Protocol):
    """What a sink does around the records of a batch."""

    def is_committed(self, token: Token) -> bool:
        """Return whether the batch is in the log already: its tasks have nothing to write."""

    def commit(self, messages: Messages, batch_id: int) -> None:
        """Make a batch count, all of whose tasks have ended. Idempotent."""

    def abort(self, messages: Messages, batch_id: int) -> None:
        """Take back what may be taken back of a batch that failed. Idempotent."""


class AtLeastOnce:
    """Records count as soon as they are written; a batch that is repeated is there again."""

    def is_committed(self, token: Token) -> bool:
        """Return False: nobody keeps account."""
        return False

    def commit(self, messages: Messages, batch_id: int) -> None:
        """Check that every task has told what it wrote."""
        tasks = _told(messages)
        if len(tasks) < len(messages):
            missing = len(messages) - len(tasks)
            raise SparkSourceError(
                "DLOG_INCOMPLETE_BATCH",
                f"{missing} of {len(messages)} tasks of batch {batch_id} told nothing.",
                "Nothing is lost: start the query again.",
            )
        tokens = {str(task.token): None for task in tasks}
        if len(tokens) > 1:
            raise SparkSourceError(
                "DLOG_INCOMPLETE_BATCH",
                f"tasks of several batches were committed as one: {', '.join(tokens)}.",
                "Start the query again.",
            )
        records = sum(task.record_count for task in tasks)
        _log.info(
            "Committed a batch token=%s tasks=%d records=%d", "".join(tokens), len(tasks), records
        )

    def abort(self, messages: Messages, batch_id: int) -> None:
        """Say what stays in the log: records that the repetition writes again."""
        tasks = _told(messages)
        records = sum(task.record_count for task in tasks)
        _log.warning(
            "Aborted a batch batch_id=%d tasks_written=%d records_that_stay=%d",
            batch_id,
            len(tasks),
            records,
        )


def _told(messages: Messages) -> list[TaskWritten]:
    return [message for message in messages if isinstance(message, TaskWritten)]
