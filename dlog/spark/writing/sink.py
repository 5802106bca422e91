"""The sinks that Spark sees: `df.write.format("dlog")` and `df.writeStream.format("dlog")`.

Spark makes a writer on the driver and pickles it to the tasks, which call `write`; `commit` and
`abort` run in other processes, for a stream on a writer that was made anew. So a writer holds plain
values only; what a task does is in `dlog.spark.writing.sink_task`, what a batch is promised in
`dlog.spark.writing.promises`.
"""

import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType
from pyspark.taskcontext import TaskContext

from dlog.spark.errors import SparkSourceError
from dlog.spark.options.write_options import WriteOptions
from dlog.spark.settings import ClientSettings
from dlog.spark.writing.promises import promise_of, told
from dlog.spark.writing.sink_rows import check_schema
from dlog.spark.writing.sink_task import write_task
from dlog.spark.writing.tokens import NO_BATCH, Attempt, TaskWritten, Token, token_of

Batches = Iterator[pyarrow.RecordBatch]


class _Writing:
    """What both writers have in common. Picklable."""

    def __init__(self, settings: ClientSettings, options: WriteOptions) -> None:
        self._settings = settings
        self._options = options
        self._job_id = str(uuid.uuid4())
        self._promise = promise_of(settings, options)

    def write(self, batches: Batches, *, is_query: bool) -> TaskWritten:
        """Write the rows of one task, of a streaming query or of a batch job."""
        context: Any = TaskContext.get()
        token = Token(self._job_id)
        if is_query:
            token = token_of(context.getLocalProperty, self._job_id)
        attempt = Attempt(token=token, task=context.partitionId(), attempt=context.attemptNumber())
        if self._promise.is_committed(attempt.token):
            for _ in batches:
                pass
            return told(attempt, ())
        return write_task(attempt, batches, self._settings, self._options, self._promise)

    def commit(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        """Make a batch count whose tasks have all ended."""
        self._promise.commit(messages, batch_id)

    def abort(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        """Take note that a batch failed."""
        self._promise.abort(messages, batch_id)


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame once. Owner: Spark."""

    def __init__(self, settings: ClientSettings, options: WriteOptions) -> None:
        self._writing = _Writing(settings, options)

    def write(self, iterator: Batches) -> WriterCommitMessage:
        """Write the rows of one task; raises SparkSourceError."""
        return self._writing.write(iterator, is_query=False)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """End a job whose tasks have all ended."""
        self._writing.commit(messages, NO_BATCH)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """End a job that failed."""
        self._writing.abort(messages, NO_BATCH)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query. Owner: Spark."""

    def __init__(self, settings: ClientSettings, options: WriteOptions) -> None:
        self._writing = _Writing(settings, options)

    def write(self, iterator: Batches) -> WriterCommitMessage:
        """Write the rows of one task; raises SparkSourceError."""
        return self._writing.write(iterator, is_query=True)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """End a batch whose tasks have all ended; may come again."""
        self._writing.commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """End a batch that failed; may come after `commit`, and again."""
        self._writing.abort(messages, batchId)


def batch_writer(
    schema: StructType, overwrite: bool, settings: ClientSettings, options: WriteOptions
) -> BatchWriter:
    """Return the writer of a batch job; raises SparkSourceError for what cannot be written."""
    if overwrite:
        raise SparkSourceError(
            "DLOG_SAVE_MODE",
            "Save mode overwrite not allowed for dlog: a log is only appended to.",
            'Use .mode("append").',
        )
    check_schema(schema, options)
    return BatchWriter(settings, options)


def stream_writer(
    schema: StructType, settings: ClientSettings, options: WriteOptions
) -> StreamWriter:
    """Return the writer of a streaming query; raises SparkSourceError for what cannot be written.

    Output mode complete appends the whole result each time, as with Kafka's sink.
    """
    check_schema(schema, options)
    return StreamWriter(settings, options)
