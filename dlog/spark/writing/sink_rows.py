"""Rows of a DataFrame as records: columns, and the topic of each row.

Pure. The columns are those of Spark's Kafka sink: `value`, and perhaps `key`, `topic`, `partition`
and `headers`; others are not looked at. No Python object is made per row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pyarrow
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from dlog.spark.errors import SparkSourceError
from dlog.spark.options.write_options import WriteOptions
from dlog.spark.writing.row_names import name_row

# Made at run time, so nobody knows its types.
_compute: Any = import_module("pyarrow.compute")

_TEXT = "a string or binary"
_KINDS = {"key": _TEXT, "value": _TEXT, "topic": "a string", "partition": "an int"}
_ONE_TOPIC = "Use the option `topic` for setting a topic."


def check_schema(schema: StructType, options: WriteOptions) -> None:
    """Raise SparkSourceError where a DataFrame of this schema cannot be written."""
    types = {field.name: field.dataType for field in schema.fields}
    if "value" not in types:
        raise _wrong("Required attribute 'value' not found.", "Name the column with the values so.")
    if options.topic is None and "topic" not in types:
        raise _wrong("topic option required when no 'topic' attribute is present.", _ONE_TOPIC)
    for name, what in _KINDS.items():
        if name in types and not _fits(name, types[name]):
            have = types[name].simpleString()
            raise _wrong(f"{name} attribute type must be {what}, it is {have}.", "Cast it.")
    headers = types.get("headers")
    if headers is not None and not _are_headers(headers):
        raise _wrong(
            "headers attribute type must be array<struct<key:string,value:binary>>, it is "
            f"{headers.simpleString()}.",
            "Cast it.",
        )
    if options.with_timestamps and not isinstance(types.get("timestamp"), TimestampType):
        raise _wrong("includeTimestamp needs an attribute 'timestamp' of type timestamp.", "")


def _wrong(message: str, cure: str) -> SparkSourceError:
    return SparkSourceError("DLOG_INVALID_SINK_SCHEMA", message, cure)


def _fits(name: str, kind: DataType) -> bool:
    if name == "partition":
        return isinstance(kind, IntegerType)
    # Types of a collation or a length are strings as well.
    return isinstance(kind, StringType) or (name != "topic" and isinstance(kind, BinaryType))


def _are_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = [(field.name, field.dataType) for field in kind.elementType.fields]
    return (
        [name for name, _ in fields] == ["key", "value"]
        and isinstance(fields[0][1], StringType)
        and isinstance(fields[1][1], BinaryType)
    )


@dataclass(frozen=True, slots=True)
class TopicRows:
    """Rows of one Arrow batch that go to one topic, in their order.

    `numbers` says which rows of the batch they are; `partitions` where each goes, null where its
    key decides, None when that holds for all.
    """

    topic: str
    rows: pyarrow.RecordBatch
    partitions: pyarrow.Array | None
    numbers: Sequence[int]


def rows_by_topic(
    batch: pyarrow.RecordBatch, options: WriteOptions, first_row: int = 0
) -> Iterator[TopicRows]:
    """Yield the rows of a batch by their topics; raises SparkSourceError for a null topic.

    `first_row` is the number of the batch's first row in the task.
    """
    there = batch.schema.names
    names = ["key", "value", "headers", *(["timestamp"] if options.with_timestamps else [])]
    rows = batch.select([name for name in names if name in there])
    partitions = batch.column("partition") if "partition" in there else None
    if partitions is not None and partitions.null_count == len(partitions):
        partitions = None
    if not batch.num_rows:
        return
    if options.topic is not None:
        yield TopicRows(options.topic, rows, partitions, range(batch.num_rows))
        return
    topics = batch.column("topic")
    if topics.null_count:
        number = _compute.index(topics.is_null(), True).as_py()
        raise SparkSourceError(
            "KAFKA_NULL_TOPIC_IN_DATA",
            "null topic present in the data, first in "
            f"{name_row(rows, number, first_row + number)}.",
            "Use the option `topic` for setting a default topic.",
        )
    coded = topics.cast(pyarrow.string()).dictionary_encode()
    if len(coded.dictionary) == 1:
        yield TopicRows(coded.dictionary[0].as_py(), rows, partitions, range(batch.num_rows))
        return
    for code, topic in enumerate(coded.dictionary.to_pylist()):
        chosen = _compute.indices_nonzero(_compute.equal(coded.indices, code))
        said = None if partitions is None else partitions.take(chosen)
        numbers = memoryview(chosen.cast(pyarrow.int64()).buffers()[1]).cast("B").cast("q")
        yield TopicRows(topic, rows.take(chosen), said, numbers[: len(chosen)])
