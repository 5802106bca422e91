"""Columns of several partitions as one `pyarrow.RecordBatch`.

Needs pyarrow, and imports it when it is first asked for something. What comes of one chunk of one
partition is handed on without a copy; several pieces are copied together once.
"""

import importlib
from collections.abc import Sequence
from functools import cache
from typing import Any

from dlog.batch.columns import Columns, arrow_schema
from dlog.types import TopicPartition

Piece = tuple[TopicPartition, Columns]


@cache
def consumed_schema() -> Any:
    """Return the schema of `Consumer.poll_arrow`: that of `dlog.batch.columns`, topic, partition.

    The topic is a dictionary: one number per record.
    """
    schema = arrow_schema()
    arrow = importlib.import_module("pyarrow")
    topic = arrow.field("topic", arrow.dictionary(arrow.int32(), arrow.string()), nullable=False)
    return schema.append(topic).append(arrow.field("partition", arrow.int32(), nullable=False))


def assemble(pieces: Sequence[Piece]) -> Any:
    """Return all pieces, in order, as one RecordBatch of `consumed_schema()`; none: no rows."""
    schema = consumed_schema()
    arrow = importlib.import_module("pyarrow")
    numpy = importlib.import_module("numpy")
    if not pieces:
        arrays = [arrow.array([], field.type) for field in schema]
        return arrow.RecordBatch.from_arrays(arrays, schema=schema)
    batches = [columns.to_arrow() for _, columns in pieces]
    whole = batches[0] if len(batches) == 1 else arrow.concat_batches(batches)
    names = list(dict.fromkeys(key.topic for key, _ in pieces))
    counts = [len(columns) for _, columns in pieces]
    numbers = [names.index(key.topic) for key, _ in pieces]
    topic = arrow.DictionaryArray.from_arrays(
        arrow.array(numpy.repeat(numpy.array(numbers, numpy.int32), counts)), arrow.array(names)
    )
    partitions = numpy.array([key.partition for key, _ in pieces], numpy.int32)
    partition = arrow.array(numpy.repeat(partitions, counts))
    return arrow.RecordBatch.from_arrays([*whole.columns, topic, partition], schema=schema)
