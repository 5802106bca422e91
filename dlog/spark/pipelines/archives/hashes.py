"""Hashes of records as Spark's expressions: what archives and audits compare.

A record's hash covers its place and everything in it. A group's checksum is the XOR of its records'
hashes: the order in which they come does not matter, and groups can be put together.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

FIELDS = ("key", "value", "headers", "timestamp")
"""What of a record can be compared, beside its place."""


def record_hash(offset: Column, fields: tuple[str, ...] = FIELDS) -> Column:
    """Return the 64-bit hash of a record at `offset`, over these of its fields."""
    # xxhash64 passes over nulls: (null, b"a") would be (b"a", null).
    parts: list[Column] = [offset]
    for name in fields:
        column = sf.col(name)
        # A record without headers has none, however the reader says so.
        is_list = name == "headers"
        there = sf.coalesce(sf.size(column) > 0, sf.lit(False)) if is_list else column.isNotNull()
        parts += [column, there]
    if "headers" in fields:
        # Neither are nulls inside of them told apart otherwise.
        parts.append(sf.transform("headers", lambda each: each["value"].isNull()))
    return sf.xxhash64(*parts)


def record_bytes() -> Column:
    """Return the bytes of a record's key and value."""
    sizes = [sf.coalesce(sf.octet_length(name), sf.lit(0)) for name in ("key", "value")]
    return sizes[0] + sizes[1]


def content_of(records: DataFrame) -> tuple[Column, ...]:
    """Return the aggregates `rows`, `record_bytes` and `checksum` of records."""
    names = set(records.columns)
    fields = tuple(name for name in FIELDS if name in names)
    hashed = record_hash(sf.col("offset"), ("topic", "partition", *fields))
    return (
        sf.count(sf.lit(1)).alias("rows"),
        sf.coalesce(sf.sum(record_bytes()), sf.lit(0)).alias("record_bytes"),
        sf.coalesce(sf.bit_xor(hashed), sf.lit(0)).alias("checksum"),
    )
