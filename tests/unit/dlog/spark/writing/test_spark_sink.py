"""Options, schemas, rows and promises of the Spark sink, without Spark's JVM and without a node."""

import logging
import pickle
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from dlog.batch.header import HEADER_BYTES
from dlog.client.futures import BufferFullError, RefusedError, UnknownOutcomeError
from dlog.errors import (
    InvalidTimestampError,
    InvalidTopicError,
    NotEnoughReplicasError,
    RecordTooLargeError,
)
from dlog.spark.errors import OptionError, SparkSourceError
from dlog.spark.options import options as read_options
from dlog.spark.options.write_options import WriteOptions, parse_write_options
from dlog.spark.settings import ClientSettings
from dlog.spark.writing.promises import AtLeastOnce
from dlog.spark.writing.sink import BatchWriter, StreamWriter, batch_writer, stream_writer
from dlog.spark.writing.sink_errors import FailedRows, unsendable, write_failed
from dlog.spark.writing.sink_rows import TopicRows, check_schema, rows_by_topic
from dlog.spark.writing.tokens import NO_BATCH, PartitionWritten, TaskWritten, Token, token_of

ONE = WriteOptions(topic="t")
SETTINGS = ClientSettings(bootstrap="a:1")


def parse(**options: str) -> WriteOptions:
    given = {name.replace("__", "."): value for name, value in options.items()}
    return parse_write_options(CaseInsensitiveDict(given))


def test_defaults() -> None:
    assert parse() == WriteOptions()
    assert pickle.loads(pickle.dumps(parse())) == parse()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"Topic": " flights "}, {"topic": "flights"}),
        ({"kafka.ACKS": "0"}, {"acks": "none", "idempotent": False}),
        ({"kafka.acks": "1"}, {"acks": "leader", "idempotent": False}),
        (
            {"kafka.acks": "1", "kafka.enable.idempotence": "false"},
            {"acks": "leader", "idempotent": False},
        ),
        (
            {"kafka.acks": "all", "kafka.enable.idempotence": "true"},
            {"acks": "all", "idempotent": True},
        ),
        ({"kafka.acks": "-1"}, {"acks": "all"}),
        ({"kafka.acks": "ALL"}, {"acks": "all"}),
        ({"kafka.compression.type": "ZSTD"}, {"compression": "zstd"}),
        ({"kafka.linger.ms": "0"}, {"linger_ms": 0}),
        ({"kafka.batch.size": "16384"}, {"batch_bytes": 16384}),
        ({"kafka.batch.size": "0"}, {"batch_bytes": HEADER_BYTES}),
        ({"kafka.batch.size": "7"}, {"batch_bytes": HEADER_BYTES}),
        ({"kafka.buffer.memory": "5000"}, {"memory_bytes": 5000, "batch_bytes": 5000}),
        ({"kafka.max.request.size": "77"}, {"request_bytes": 77}),
        ({"kafka.request.timeout.ms": "77"}, {"request_timeout_ms": 77}),
        ({"kafka.delivery.timeout.ms": "77"}, {"delivery_timeout_ms": 77}),
        ({"kafka.max.block.ms": "0"}, {"block_ms": 0}),
        ({"kafka.enable.idempotence": "false"}, {"idempotent": False}),
        ({"kafka.enable.idempotence": "true"}, {"idempotent": True}),
        ({"includeTimestamp": "true", "includeHeaders": "true"}, {"with_timestamps": True}),
    ],
)
def test_each_option(options: dict[str, str], expected: dict[str, Any]) -> None:
    assert parse_write_options(options) == replace(WriteOptions(), **expected)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kafka.key.serializer": "x"}, "kafka.key.serializer is not supported"),
        ({"kafka.value.serializer": "x"}, "cast or encode"),
        ({"kafka.partitioner.class": "x"}, "column `partition`"),
        ({"kafka.transactional.id": "x"}, "at least once"),
        ({"exactlyOnce": "perhaps"}, "true or false"),
        ({"topic": " "}, "topic is empty"),
        ({"kafka.acks": "2"}, "kafka.acks is '2'"),
        ({"kafka.compression.type": "rar"}, "none or gzip or snappy or lz4 or zstd"),
        ({"kafka.batch.size": "-1"}, "kafka.batch.size is '-1'"),
        ({"kafka.buffer.memory": "60"}, "kafka.buffer.memory is '60'"),
        ({"kafka.linger.ms": "-1"}, "kafka.linger.ms is '-1'"),
        ({"kafka.linger.ms": "soon"}, "whole number"),
        ({"kafka.enable.idempotence": "true", "kafka.acks": "0"}, "leave one of them out"),
        (
            {"kafka.enable.idempotence": "true", "kafka.acks": "1"},
            r"DLOG_OPTION_CONFLICT. Must set kafka\.acks to all .* kafka\.acks is 1\)",
        ),
    ],
)
def test_options_that_cannot_be(options: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        parse_write_options(options)


def test_what_has_no_effect_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    options = {
        "kafka.bootstrap.servers": "a:1",
        "kafka.retries": "3",
        "kafka.speed": "high",
        "dlog.tls.ca": "x",
        "dlog.tls.cert": "x",
        "checkpointLocation": "x",
    }
    for _ in range(3):
        parse_write_options(options)
    said = [(each.levelname, each.getMessage().partition("option=")[2]) for each in caplog.records]
    assert said == [
        ("WARNING", "dlog.tls.cert"),
        ("INFO", "kafka.retries"),
        ("WARNING", "kafka.speed"),
    ]


def test_a_mistyped_option_is_said_with_the_one_that_is_meant(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = {"topics": "t", "IncludeTimestamps": "true", "kafkaConsumer.pollTimeoutMs": "7"}
    # Those of reads, for a job may give both the same, and Spark's own.
    others = ["path", "checkpointLocation", "queryName", "mode", "header", *read_options._OPTIONS]
    for _ in range(2):
        parse_write_options({**dict.fromkeys(others, "x"), **given})
    assert [each.getMessage() for each in caplog.records] == [
        "Ignored an option option=includetimestamps meant=includeTimestamp",
        "Ignored an option option=topics meant=topic",
    ]


def headers(key: str = "key", kind: DataType | None = None) -> DataType:
    pair = StructType([StructField(key, StringType()), StructField("value", kind or BinaryType())])
    return ArrayType(pair)


KINDS: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "long": LongType(),
    "map": MapType(IntegerType(), IntegerType()),
    "headers": headers(),
    "text_headers": headers(kind=StringType()),
    "odd_headers": headers("k"),
}


def schema(text: str) -> StructType:
    """Return the schema of `name kind, name kind`; Spark's own parser needs a JVM."""
    pairs = [column.split() for column in text.split(", ")]
    return StructType([StructField(name, KINDS[kind]) for name, kind in pairs])


@pytest.mark.parametrize(
    "text",
    [
        "value string",
        "value binary, key string, topic string, partition int, other map",
        "value binary, headers headers",
    ],
)
def test_schemas(text: str) -> None:
    check_schema(schema(text), ONE)
    writers = (
        batch_writer(schema(text), False, SETTINGS, ONE),
        stream_writer(schema(text), SETTINGS, ONE),
    )
    assert isinstance(writers[0], BatchWriter) and isinstance(writers[1], StreamWriter)
    pickle.loads(pickle.dumps(writers))


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        ("key string", ONE, "Required attribute 'value' not found"),
        ("Value string", ONE, "Required attribute 'value' not found"),
        ("value string", WriteOptions(), "topic option required when no 'topic' attribute"),
        ("value int", ONE, "value attribute type must be a string or binary, it is int"),
        ("value string, key long", ONE, "key attribute type must be a string or binary"),
        ("value string, topic binary", ONE, "topic attribute type must be a string"),
        ("value string, partition long", ONE, "partition attribute type must be an int"),
        ("value string, headers map", ONE, "headers attribute type must be array"),
        ("value string, headers text_headers", ONE, "headers"),
        ("value string, headers odd_headers", ONE, "headers"),
        ("value string", replace(ONE, with_timestamps=True), "needs an attribute 'timestamp'"),
        ("value string, timestamp long", replace(ONE, with_timestamps=True), "timestamp"),
    ],
)
def test_schemas_that_cannot_be(text: str, options: WriteOptions, says: str) -> None:
    for make in (
        lambda: batch_writer(schema(text), False, SETTINGS, options),
        lambda: stream_writer(schema(text), SETTINGS, options),
    ):
        with pytest.raises(SparkSourceError, match=rf"\[DLOG_INVALID_SINK_SCHEMA\].*{says}"):
            make()


def test_a_log_is_not_overwritten() -> None:
    with pytest.raises(SparkSourceError, match=r'DLOG_SAVE_MODE.*\.mode\("append"\)'):
        batch_writer(schema("value string"), True, SETTINGS, ONE)


def test_rows_by_topic() -> None:
    topics = ["a", "b", "a", "c", "b", "a"]
    batch = pa.record_batch(
        {
            "topic": topics,
            "value": [b"%d" % n for n in range(6)],
            "timestamp": [0] * 6,
            "partition": pa.array([None, 1, 2, None, 4, 5], pa.int32()),
        }
    )
    for start in (0, 1, 3):
        found = list(rows_by_topic(batch.slice(start), WriteOptions()))
        assert sorted(number for each in found for number in each.numbers) == [*range(6 - start)]
        for each in found:
            assert each.rows.schema.names == ["value"]
            values = [int(value) for value in each.rows.column("value").to_pylist()]
            assert values == [number + start for number in each.numbers]
            assert all(topics[value] == each.topic for value in values)
            said = None if each.partitions is None else each.partitions.to_pylist()
            assert said == [None if value in (0, 3) else value for value in values]
    (whole,) = rows_by_topic(batch, ONE)
    assert whole.topic == "t" and whole.numbers == range(6)
    (lone,) = rows_by_topic(batch.slice(3, 1), WriteOptions())
    assert (lone.topic, lone.partitions) == ("c", None)
    assert not list(rows_by_topic(batch.slice(0, 0), WriteOptions()))


def test_a_null_topic_is_named() -> None:
    batch = pa.record_batch({"topic": pa.array(["a", "a", None]), "value": [b""] * 3})
    with pytest.raises(SparkSourceError, match=r"KAFKA_NULL_TOPIC_IN_DATA.*first in row 1 "):
        list(rows_by_topic(batch.slice(1), WriteOptions()))
    assert len(list(rows_by_topic(batch, ONE))) == 1


def test_errors_name_the_record() -> None:
    rows = pa.record_batch({"value": ["a", "b", None], "key": ["k", None, "l"]})
    sent = TopicRows("t", rows, None, [10, 20, 30])
    refused = RefusedError("t-0: no")
    refused.__cause__ = NotEnoughReplicasError("1 of 2")
    text = str(write_failed(FailedRows(sent, 100, [2, 1]), "task 1 of q/3", refused))
    assert text.startswith("[DLOG_WRITE_FAILED] task 1 of q/3: 2 records were refused: t-0: no")
    assert "(NOT_ENOUGH_REPLICAS: 1 of 2). The first one is row 130 of the task, key b'l'" in text
    assert "no value. Bring the missing nodes back" in text
    unknown = UnknownOutcomeError("t-0: late")
    text = str(write_failed(FailedRows(sent, 0, [1]), "task 0 of q/0", unknown))
    assert "a record was perhaps written, perhaps not: t-0: late. The first" in text
    assert "row 20 of the task, no key, a value of 1 bytes" in text


def test_a_cure_fits_what_was_wrong() -> None:
    rows = TopicRows("a b", pa.record_batch({"value": ["a"]}), None, [0])
    for error, cure in (
        (InvalidTopicError("a b"), "Correct the option or the column topic"),
        (InvalidTimestampError("too far ahead"), "The topic does not take such records"),
        (ValueError("a header's key is null"), "correct them, or filter them out"),
    ):
        assert cure in str(unsendable(rows, 7, "task 1 of q/3", error))


def test_of_what_does_not_fit_the_largest_is_named() -> None:
    """Also where something lies behind a null list of headers."""
    pairs = pa.StructArray.from_arrays(
        [pa.array(["k"] * 5), pa.array([b"", b"x" * 900, b"x" * 900, b"y" * 800, None])],
        ["key", "value"],
    )
    nulls = pa.array([False, True, False])
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 3, 5], pa.int32()), pairs, mask=nulls)
    batch = pa.record_batch([pa.array([b"a", b"b" * 700, None]), lists], ["value", "headers"])
    for rows, numbers in ((batch, [4, 5, 6]), (batch.slice(1), [5, 6])):
        sent = TopicRows("t", rows, None, numbers)
        text = str(unsendable(sent, 10, "task 1 of q/3", RecordTooLargeError("1 MB")))
        assert "a record for topic t could not be sent (MESSAGE_TOO_LARGE: 1 MB)" in text
        assert "The largest one is row 16 of the task, no value." in text


def test_what_was_perhaps_taken_over_in_part_is_not_said_to_be_unsent() -> None:
    rows = TopicRows("t", pa.record_batch({"value": ["a", "b"]}), None, [3, 5])
    text = str(unsendable(rows, 10, "task 1 of q/3", BufferFullError("memory is full")))
    assert "task 1 of q/3: 2 records for topic t could not all be sent (BufferFullError" in text
    assert "The first one is row 13 of the task, a value of 1 bytes." in text


def test_tokens() -> None:
    nothing: dict[str, str] = {}
    assert token_of(nothing.get, "job") == Token("job", NO_BATCH)
    properties = {"sql.streaming.queryId": "q", "streaming.sql.batchId": "7"}
    assert token_of(properties.get, "job") == Token("q", 7)
    assert str(Token("q", 7)) == "q/7"


class ContextOfQuery:
    """A task's context, of batch 7 of query q."""

    @classmethod
    def get(cls) -> "ContextOfQuery":
        return cls()

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802
        return {"sql.streaming.queryId": "q", "streaming.sql.batchId": "7"}.get(name)

    def partitionId(self) -> int:  # noqa: N802
        return 3

    def attemptNumber(self) -> int:  # noqa: N802
        return 1


def test_a_batch_of_a_query_has_its_token_and_each_job_within_it_one_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dlog.spark.writing.sink.TaskContext", ContextOfQuery)
    jobs = [BatchWriter(SETTINGS, ONE).write(iter([])) for _ in range(2)]
    queries = [StreamWriter(SETTINGS, ONE).write(iter([])) for _ in range(2)]
    assert all(isinstance(each, TaskWritten) for each in [*jobs, *queries])
    tokens = [each.token for each in jobs if isinstance(each, TaskWritten)]
    assert len({*tokens}) == 2 and {each.batch_id for each in tokens} == {NO_BATCH}
    assert queries[0] == queries[1] == TaskWritten(Token("q", 7), 3, 1, 0, ())


def test_what_cannot_be_promised_is_refused() -> None:
    with pytest.raises(OptionError, match="exactlyOnce needs transactions"):
        StreamWriter(SETTINGS, parse(topic="t", exactlyOnce="true"))


def message(task: int, token: Token) -> TaskWritten:
    return TaskWritten(token, task, 0, 5, (PartitionWritten("t", 0, 5, 10, 14),))


def test_commits_and_aborts_may_come_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    token = Token("q", 7)
    messages = [message(0, token), message(1, token)]
    promise = pickle.loads(pickle.dumps(AtLeastOnce(SETTINGS, ONE)))
    for _ in range(2):
        promise.commit(messages, 7)
        promise.abort(messages, 7)
        AtLeastOnce(SETTINGS, ONE).abort([None, messages[0]], 7)
    promise.commit([], 7)
    assert not promise.is_committed(token)
    said = [each.getMessage() for each in caplog.records]
    assert said[0] == "Committed a batch token=q/7 tasks=2 records=10"
    assert said[1] == "Aborted a batch batch_id=7 tasks_written=2 records_that_stay=10"
    assert said[2] == "Aborted a batch batch_id=7 tasks_written=1 records_that_stay=5"


def test_a_batch_that_is_not_whole() -> None:
    with pytest.raises(SparkSourceError, match=r"DLOG_INCOMPLETE_BATCH. 1 of 2 tasks of batch 7"):
        AtLeastOnce(SETTINGS, ONE).commit([None, message(0, Token("q", 7))], 7)
    mixed = [message(0, Token("q", 7)), message(1, Token("q", 8))]
    with pytest.raises(SparkSourceError, match="q/7, q/8"):
        AtLeastOnce(SETTINGS, ONE).commit(mixed, 7)
