"""The columns of the source, in Spark's types and in Arrow's.

A query may give a schema of its own: some of these columns, in any order. Only these are made.
"""

from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from dlog.spark.errors import OptionError

if TYPE_CHECKING:
    import pyarrow

HEADERS = "headers"
COLUMNS: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    HEADERS: ArrayType(
        StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    ),
}
"""In the order of Spark's Kafka source."""
_MAY_BE_NULL = ("key", "value", HEADERS)


def source_schema(include_headers: bool) -> StructType:
    """Return the columns of a query that gives no schema."""
    return StructType(
        [
            StructField(name, kind)
            for name, kind in COLUMNS.items()
            if include_headers or name != HEADERS
        ]
    )


def check_schema(schema: StructType) -> None:
    """Raise OptionError unless all columns are ours, each once and of its type."""
    names = [field.name for field in schema.fields]
    columns = ", ".join(f"{each} {kind.simpleString()}" for each, kind in COLUMNS.items())
    cure = f"It may have these columns, each once and in any order: {columns}."
    if not names:
        raise OptionError("DLOG_NO_COLUMN", "The schema names no column.", cure)
    for field in schema.fields:
        wanted = COLUMNS.get(field.name)
        said = f"The schema has {field.name} {field.dataType.simpleString()}"
        if wanted is None:
            raise OptionError("DLOG_UNKNOWN_COLUMN", f"{said}.", cure)
        if not _is_same(field.dataType, wanted):
            raise OptionError("DLOG_COLUMN_TYPE", f"{said}.", f"{cure} Cast it behind the source.")
        if names.count(field.name) > 1:
            raise OptionError("DLOG_SCHEMA", f"{said} more than once.", cure)
        if field.name in _MAY_BE_NULL and not (field.nullable and _has_nulls(field.dataType)):
            raise OptionError(
                "DLOG_SCHEMA",
                f"The schema has {field.name}, or a part of it, as not null.",
                "A record may have none: leave that out, and filter behind the source.",
            )


def _is_same(given: DataType, wanted: DataType) -> bool:
    """Compare types, whatever is said of nulls inside them."""
    return given.simpleString() == wanted.simpleString()


def _has_nulls(kind: DataType) -> bool:
    """Return whether all that is inside a type may be null, as Arrow's types of rows have it."""
    if isinstance(kind, ArrayType):
        return kind.containsNull and _has_nulls(kind.elementType)
    return not isinstance(kind, StructType) or all(field.nullable for field in kind.fields)


def arrow_schema(schema: StructType) -> "pyarrow.Schema":
    """Return what record batches must have for Spark to take them."""
    return to_arrow_schema(schema, timezone="UTC")
