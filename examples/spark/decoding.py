"""Values of records as columns, with Spark's own functions: JSON, Avro, Protobuf.

JSON needs nothing more. Avro and Protobuf need a jar each that the pip package of Spark does not
have: spark-avro_2.13, spark-protobuf_2.13 (`spark.jars.packages` or `--packages`; a jar of 4.0.0
works with Spark 4.3 for Avro).
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

CONFLUENT_HEAD = 5
"""A zero and four bytes of the schema's id, which Confluent's serializers put before a value."""


def decode_json(records: DataFrame, schema: str) -> DataFrame:
    """Return the fields of JSON values as columns; `problem` has what is no such JSON."""
    text = sf.col("value").cast("string")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "problem"}
    parsed = sf.from_json(text, f"{schema}, problem string", options)
    # Not `parsed.*`: the optimizer would parse the value once for each field.
    return records.select(*_places(records), sf.inline(sf.array(parsed)))


def decode_avro(records: DataFrame, schema: str, head_bytes: int = 0) -> DataFrame:
    """Return the fields of Avro values as columns; values that are none have nulls.

    `schema` is the writer's, as JSON. `head_bytes`: CONFLUENT_HEAD where a registry is used.
    """
    from pyspark.sql.avro.functions import from_avro

    parsed = from_avro(_body(head_bytes), schema, {"mode": "PERMISSIVE"})
    return records.select(*_places(records), sf.inline(sf.array(parsed)))


def decode_protobuf(records: DataFrame, message: str, descriptor: bytes) -> DataFrame:
    """Return the fields of Protobuf values as columns; values that are none have nulls.

    `descriptor`: what `protoc --include_imports --descriptor_set_out=FILE` wrote.
    """
    from pyspark.sql.protobuf.functions import from_protobuf

    options = {"mode": "PERMISSIVE"}
    parsed = from_protobuf(
        sf.col("value"), message, options=options, binaryDescriptorSet=descriptor
    )
    return records.select(*_places(records), sf.inline(sf.array(parsed)))


def _body(head_bytes: int) -> Column:
    if not head_bytes:
        return sf.col("value")
    return sf.substring("value", head_bytes + 1, 2**31 - 1)


def _places(records: DataFrame) -> list[str]:
    """Where each record was: what one wants beside its fields."""
    wanted = ("topic", "partition", "offset", "timestamp")
    return [name for name in wanted if name in records.columns]
