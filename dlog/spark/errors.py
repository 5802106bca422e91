"""Errors of the data source, by the names of Spark's Kafka source where it has one.

Pure. Users see them inside Spark's own exceptions, as text: so the text says what happened, to
which partition, and what to do.
"""

from collections.abc import Callable

from dlog.errors import DlogError

UNREACHABLE = "DLOG_CLUSTER_UNREACHABLE"
"""The class of errors that say that no node answers."""


class SparkSourceError(DlogError):
    """Something that a job asked for, or that happened to its records.

    `error_class` is Spark's name for it (`KAFKA_DATA_LOSS.PARTITIONS_DELETED`), or one of ours
    (`DLOG_...`) where Spark has none.
    """

    def __init__(self, error_class: str, message: str, cure: str) -> None:
        super().__init__(f"[{error_class}] {message} {cure}".rstrip())
        self.error_class = error_class
        self.cure = cure

    @property
    def is_unreachable(self) -> bool:
        """Whether no node answers."""
        return self.error_class == UNREACHABLE

    def __reduce__(self) -> tuple[Callable[..., "SparkSourceError"], tuple[object, ...]]:
        """Pickle by the text: errors travel between Spark's Python processes."""
        return _unpickle, (type(self), self.error_class, str(self), self.cure)


def _unpickle(
    kind: type[SparkSourceError], error_class: str, text: str, cure: str
) -> SparkSourceError:
    error = kind.__new__(kind, text)
    error.args = (text,)
    error.error_class = error_class
    error.cure = cure
    return error


class OptionError(SparkSourceError, ValueError):
    """An option that is missing, unknown, refused, or has a value that it cannot have."""


class DataLossError(SparkSourceError):
    """Records that the query should have read are gone, or may be; see `failOnDataLoss`."""
