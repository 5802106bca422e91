"""Promises of a sink about the records of a batch: everything that exactly once would change.

`commit` and `abort` are called on fresh writers in another process, in any order and more than
once, `abort` after a `commit` that failed when its work was done: both must be idempotent, and an
abort must never undo a commit. Tasks share nothing with them but their messages.

`AtLeastOnce` is the promise of Spark's Kafka sink. One of exactly once would be another class here:
`begin` takes a producer with a transaction of the attempt's own, `seal` tells its name (in a
message that extends `TaskWritten`) and leaves it open, `commit` commits all of a batch's under the
token, and `is_committed` skips a batch whose token the log has.
"""

import logging
from collections.abc import Sequence
from typing import Protocol

from pyspark.sql.datasource import WriterCommitMessage

from dlog.client.blocking import Producer
from dlog.client.produce_options import ABANDON_MS
from dlog.spark.errors import OptionError, SparkSourceError
from dlog.spark.options.write_options import WriteOptions
from dlog.spark.settings import ClientSettings
from dlog.spark.writing import producers
from dlog.spark.writing.tokens import Attempt, PartitionWritten, TaskWritten, Token

_log = logging.getLogger(__name__)

Messages = Sequence[WriterCommitMessage | None]


class Promise(Protocol):
    """What a sink does around the records of a batch. Picklable: tasks have copies."""

    def is_committed(self, token: Token) -> bool:
        """Return whether the batch is in the log already: its tasks have nothing to write."""

    def begin(self, attempt: Attempt) -> tuple[Producer, bool]:
        """Return a producer with nothing under way, and whether it has rested for long.

        Raises DlogError, ValueError or OSError when there is none to be had.
        """

    def seal(
        self, attempt: Attempt, producer: Producer, written: Sequence[PartitionWritten]
    ) -> TaskWritten:
        """Take note that all of an attempt's records are acknowledged; return what it tells."""

    def drop(self, attempt: Attempt, producer: Producer) -> None:
        """Take note that an attempt failed."""

    def commit(self, messages: Messages, batch_id: int) -> None:
        """Make a batch count, all of whose tasks have ended. Idempotent."""

    def abort(self, messages: Messages, batch_id: int) -> None:
        """Take back what may be taken back of a batch that failed. Idempotent."""


def promise_of(settings: ClientSettings, options: WriteOptions) -> Promise:
    """Return the promise that a job asks for; raises OptionError for one that cannot be kept."""
    if options.exactly_once:
        raise OptionError(
            "DLOG_OPTION_REFUSED",
            "Option exactlyOnce needs transactions, which the log does not have yet.",
            "Without it each record is written at least once.",
        )
    return AtLeastOnce(settings, options)


def told(attempt: Attempt, written: Sequence[PartitionWritten]) -> TaskWritten:
    """Return the message of an attempt that wrote these."""
    count = sum(each.record_count for each in written)
    return TaskWritten(attempt.token, attempt.task, attempt.attempt, count, tuple(written))


class AtLeastOnce:
    """Records count as soon as they are written; a batch that is repeated is there again.

    Producers outlive tasks (`dlog.spark.writing.producers`).
    """

    def __init__(self, settings: ClientSettings, options: WriteOptions) -> None:
        self._settings = settings
        self._options = options

    def begin(self, attempt: Attempt) -> tuple[Producer, bool]:
        """Take a producer that another task has left, or open one."""
        return producers.take_producer(self._settings, self._options)

    def seal(
        self, attempt: Attempt, producer: Producer, written: Sequence[PartitionWritten]
    ) -> TaskWritten:
        """Leave the producer for the next task."""
        producers.give_back(self._settings, self._options, producer)
        return told(attempt, written)

    def drop(self, attempt: Attempt, producer: Producer) -> None:
        """Close the producer; what it has sent may be in the log."""
        producers.discard(producer, ABANDON_MS)

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
                f"{missing} of {len(messages)} tasks of batch {batch_id} reported nothing.",
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
