"""Which partitions a subscription means, of the topics that a cluster has."""

import re
from uuid import UUID

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from dlog.client.views import PartitionView, TopicView
from dlog.spark.errors import OptionError
from dlog.spark.options.subscription import Assign, Subscribe, SubscribePattern
from dlog.spark.schema import arrow_schema, check_schema, source_schema
from dlog.types import PartitionId, TopicPartition


def topic(name: str, count: int, *, is_internal: bool = False) -> TopicView:
    partitions = tuple(
        PartitionView(partition=n, leader=1, leader_epoch=0, replicas=(1,), isr=(1,), offline=())
        for n in range(count)
    )
    return TopicView(
        name=name, topic_id=UUID(int=7), is_internal=is_internal, partitions=partitions
    )


TOPICS = {
    each.name: each
    for each in (topic("ab", 2), topic("a", 12), topic("b.c", 1), topic("a_", 1, is_internal=True))
}


def names(partitions: list[TopicPartition]) -> list[str]:
    return [str(each) for each in partitions]


def test_subscriptions_choose_what_exists_in_order() -> None:
    every_a = [f"a-{number}" for number in range(12)]
    assert names(Subscribe(("ab", "a", "none")).choose(TOPICS)) == [*every_a, "ab-0", "ab-1"]
    wanted = tuple(
        TopicPartition(*each) for each in (("ab", PartitionId(1)), ("ab", PartitionId(2)))
    )
    assert names(Assign(wanted).choose(TOPICS)) == ["ab-1"]
    assert Assign(wanted).topics == ("ab",)


def test_a_pattern_is_found_anywhere_in_a_name_but_in_no_internal_topic() -> None:
    """As Spark's Kafka source does it: a job that moves over reads the same topics."""
    for pattern, found in (
        ("a.*", {"a", "ab"}),
        ("a", {"a", "ab"}),
        ("^a$", {"a"}),
        (r"b\.c|ab", {"ab", "b.c"}),
        ("b", {"ab", "b.c"}),
        ("^b", {"b.c"}),
        (r"\.", {"b.c"}),
        ("d", set()),
        (".*", {"a", "ab", "b.c"}),
    ):
        chosen = SubscribePattern(pattern).choose(TOPICS)
        assert {key.topic for key in chosen} == found, pattern
        assert chosen == sorted(chosen)
    assert SubscribePattern("a").topics is None


def test_a_schema_may_have_some_columns_in_any_order() -> None:
    assert source_schema(False).names == source_schema(True).names[:-1]
    check_schema(source_schema(True))
    check_schema(
        StructType([StructField("value", BinaryType()), StructField("offset", LongType())])
    )
    headers = ArrayType(StructType([StructField("key", StringType())]))
    pair = source_schema(True)["headers"].dataType.elementType  # type: ignore[attr-defined]
    strict = StructType([StructField("key", StringType(), nullable=False), pair["value"]])
    for name, wrong in (
        ("DLOG_NO_COLUMN", StructType([])),
        ("DLOG_UNKNOWN_COLUMN", StructType([StructField("Value", BinaryType())])),
        ("DLOG_COLUMN_TYPE", StructType([StructField("value", StringType())])),
        ("DLOG_COLUMN_TYPE", StructType([StructField("headers", headers)])),
    ):
        with pytest.raises(OptionError, match=re.escape(f"[{name}]")):
            check_schema(wrong)
    for wrong in (
        StructType([StructField("value", BinaryType()), StructField("value", BinaryType())]),
        # Spark would take it at its word, and fall over the first record without a key.
        StructType([StructField("key", BinaryType(), nullable=False)]),
        # Each task would refuse it.
        StructType([StructField("headers", ArrayType(pair, containsNull=False))]),
        StructType([StructField("headers", ArrayType(strict))]),
    ):
        with pytest.raises(OptionError, match=re.escape("[DLOG_SCHEMA]")):
            check_schema(wrong)


def test_what_is_never_null_may_be_said_to_be_so() -> None:
    check_schema(StructType([StructField("offset", LongType(), nullable=False)]))


def test_the_columns_are_those_that_rows_are_made_of() -> None:
    from dlog.spark.reading.rows import COLUMN_TYPES

    found = arrow_schema(source_schema(True))
    assert dict(zip(found.names, found.types, strict=True)) == COLUMN_TYPES
