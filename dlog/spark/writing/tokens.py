"""Tokens: the name of one batch of one query, and the reports of its tasks.

Spark may write a batch several times: tasks are tried again, and after a failure the whole batch
is, with the same `Token`. What a sink makes of that is in `dlog.spark.writing.promises`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

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
    """Return the token of a query's task whose local properties these are; of a job without any.

    Not for batch jobs: within `foreachBatch` several of them have the same properties.
    """
    query, batch = property_of(_QUERY_PROPERTY), property_of(_BATCH_PROPERTY)
    if query is None or batch is None:
        return Token(job_id)
    return Token(query, int(batch))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Which attempt of which task of a batch it is."""

    token: Token
    task: int
    attempt: int


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
