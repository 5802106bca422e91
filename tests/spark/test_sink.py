"""The batch and streaming sink in Spark: what was in the DataFrame is in the log, once."""

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from dlog.batch.native import murmur2
from dlog.spark.registration import register
from tests.spark.faulty import Faults, FaultySink
from tests.spark.long_form import IS_LONG
from tests.spark.reading import Topics

HEADERS = "array<struct<key:string,value:binary>>"
_numbers = itertools.count()


@pytest.fixture
def topics(bootstrap: str) -> Iterator[Topics]:
    with Topics(bootstrap) as made:
        yield made


@pytest.fixture
def topic(topics: Topics) -> str:
    """Give a topic of two partitions."""
    return topics.create(f"sink-{next(_numbers)}", 2)


@pytest.fixture
def faults(spark: SparkSession, tmp_path: Path) -> Faults:
    """Give the faults of a sink, none of them ordered."""
    spark.dataSource.register(FaultySink)
    folder = tmp_path / "faults"
    folder.mkdir()
    return Faults(str(folder))


def save(frame: DataFrame, topics: Topics, format_name: str = "dlog", **options: str) -> None:
    given = {"kafka.bootstrap.servers": topics.bootstrap, **options}
    frame.write.format(format_name).options(**given).mode("append").save()


def values_of(topics: Topics, topic: str, partitions: int = 2) -> Counter[int]:
    """Return how often each number is in the topic."""
    logs = topics.read_all(topic, partitions)
    return Counter(int(record.value or b"-1") for log in logs for record in log)


def test_every_column(spark: SparkSession, topics: Topics) -> None:
    names = [topics.create(f"sink-{next(_numbers)}", 2) for _ in range(2)]
    frame = spark.range(0, 3000, 1, 3).selectExpr(
        "if(id % 5 = 0, null, cast(concat('k', id % 17) as binary)) as key",
        "if(id % 7 = 0, null, cast(id as string)) as value",
        f"if(id % 2 = 0, '{names[0]}', '{names[1]}') as topic",
        "if(id % 3 = 0, cast(id % 2 as int), null) as partition",
        "cast(case when id % 4 = 0 then null when id % 4 = 1 then array() else array("
        "  struct('a' as key, cast(cast(id as string) as binary) as value),"
        f" struct('b' as key, cast(null as binary) as value)) end as {HEADERS}) as headers",
        "id",
    )
    rows = [row.asDict() for row in frame.collect()]
    save(frame, topics)
    for name in names:
        logs = topics.read_all(name, 2)
        expected: Counter[Any] = Counter()
        keyless: Counter[Any] = Counter()
        for row in rows:
            if row["topic"] != name:
                continue
            key = None if row["key"] is None else bytes(row["key"])
            value = None if row["value"] is None else row["value"].encode()
            headers = tuple(
                (each["key"], None if each["value"] is None else bytes(each["value"]))
                for each in row["headers"] or ()
            )
            if row["partition"] is not None:
                expected[row["partition"], key, value, headers] += 1
            elif key is not None:
                expected[(murmur2(key) & 0x7FFF_FFFF) % 2, key, value, headers] += 1
            else:
                keyless[key, value, headers] += 1
        found = Counter(
            (partition, record.key, record.value, record.headers)
            for partition, log in enumerate(logs)
            for record in log
        )
        assert not expected - found
        rest = found - expected
        anywhere: Counter[Any] = Counter()
        for entry, count in rest.items():
            anywhere[entry[1:]] += count
        assert anywhere == keyless
        # Rows of one task stay in order within a partition.
        for log in logs:
            numbers = [int(record.value) for record in log if record.value is not None]
            for first in (0, 1000, 2000):
                mine = [n for n in numbers if first <= n < first + 1000 and n % 3 == 0]
                assert mine == sorted(mine)


def test_options_of_the_producer(spark: SparkSession, topics: Topics, topic: str) -> None:
    frame = spark.range(2000).selectExpr("cast(id as string) as value", "'nowhere' as topic")
    options = {
        "topic": topic,
        "kafka.acks": "1",
        "kafka.compression.type": "zstd",
        "kafka.batch.size": "2000",
        "kafka.speed": "ignored",
    }
    save(frame, topics, **options)
    assert values_of(topics, topic) == Counter(range(2000))


def test_what_cannot_be_written(spark: SparkSession, topics: Topics, topic: str) -> None:
    frame = spark.range(3).selectExpr("cast(id as string) as value")
    for made, options, says in (
        (frame, {}, "topic option required when no 'topic' attribute is present"),
        (frame.drop("value").selectExpr("1 as a"), {"topic": topic}, "'value' not found"),
        (frame, {"topic": topic, "kafka.acks": "7"}, r"kafka.acks is '7'"),
        (frame, {"topic": topic, "kafka.key.serializer": "x"}, "is not supported"),
    ):
        with pytest.raises(AnalysisException, match=says):
            save(made, topics, **options)
    with pytest.raises(AnalysisException, match=r"kafka\.bootstrap\.servers"):
        frame.write.format("dlog").option("topic", topic).mode("append").save()
    with pytest.raises(AnalysisException, match="Save mode overwrite not allowed"):
        frame.write.format("dlog").options(
            **{"kafka.bootstrap.servers": topics.bootstrap, "topic": topic}
        ).mode("overwrite").save()
    assert topics.read_all(topic, 2) == [[], []]


def test_failures_name_the_record(spark: SparkSession, topics: Topics) -> None:
    topic = topics.create(f"sink-{next(_numbers)}", 1, max_message_bytes="2000")
    frame = spark.range(0, 100, 1, 1).selectExpr(
        "cast(concat('k', id) as binary) as key",
        "if(id = 70, repeat('x', 5000), 'y') as value",
    )
    with pytest.raises(PythonException) as caught:
        save(frame, topics, topic=topic)
    text = str(caught.value)
    assert "DLOG_WRITE_FAILED" in text and f"{topic}-0" in text
    assert "row 70 of the task, key b'k70', a value of 5000 bytes" in text
    nowhere = frame.selectExpr("'x' as value", "cast(null as string) as topic")
    with pytest.raises(PythonException, match="KAFKA_NULL_TOPIC_IN_DATA"):
        save(nowhere, topics)
    # With the option it does not matter what the column says.
    other = topics.create(f"sink-{next(_numbers)}", 1)
    save(nowhere, topics, topic=other)
    assert len(topics.read(other)) == 100


@pytest.mark.parametrize(
    ("step", "duplicates_max"),
    [("before_write", 0), ("in_write", 3000), ("in_write!", 3000), ("after_write", 3000)],
)
def test_a_task_that_fails_is_repeated(
    spark: SparkSession,
    topics: Topics,
    topic: str,
    faults: Faults,
    step: str,
    duplicates_max: int,
) -> None:
    faults.order(step)
    frame = spark.range(0, 6000, 1, 2).selectExpr("cast(id as string) as value")
    save(frame, topics, "dlog-faulty", topic=topic, faults=faults.folder)
    assert not faults.left()
    found = values_of(topics, topic)
    assert set(found) == set(range(6000))
    duplicates = found.total() - 6000
    assert duplicates <= duplicates_max
    if step == "after_write":  # all of one task were acknowledged
        assert duplicates == 3000


@pytest.mark.parametrize("step", ["before_commit", "after_commit"])
def test_a_job_whose_commit_fails(
    spark: SparkSession, topics: Topics, topic: str, faults: Faults, step: str
) -> None:
    """At least once: the records are there, and the job that is run again writes them again."""
    faults.order(step)
    frame = spark.range(0, 100, 1, 2).selectExpr("cast(id as string) as value")
    for count in (1, 2):
        if count == 1:
            with pytest.raises(Exception, match=f"a fault at {step}"):
                save(frame, topics, "dlog-faulty", topic=topic, faults=faults.folder)
        else:
            save(frame, topics, "dlog-faulty", topic=topic, faults=faults.folder)
        assert values_of(topics, topic) == Counter({number: count for number in range(100)})


def test_a_thread_of_ones_own(spark: SparkSession, topics: Topics, topic: str) -> None:
    """Spark looks sinks in Python up in the session of the thread, which a new one lacks."""
    frame = spark.range(10).selectExpr("cast(id as string) as value")
    given = {"kafka.bootstrap.servers": topics.bootstrap, "subscribe": topic}

    def write() -> None:
        with pytest.raises(Py4JJavaError, match="DATA_SOURCE_NOT_FOUND"):
            save(frame, topics, topic=topic)
        assert spark.read.format("dlog").options(**given).load().count() == 0
        register(spark)
        save(frame, topics, topic=topic)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(write).result()
    assert values_of(topics, topic) == Counter(range(10))


class Stream:
    """A query from files of numbers, one file a batch, into a topic."""

    FILES, ROWS = 4, 50

    def __init__(self, spark: SparkSession, topics: Topics, topic: str, folder: Path) -> None:
        self.spark = spark
        self.topics = topics
        self.topic = topic
        self.folder = folder
        self.source = folder / "in"
        self.source.mkdir()

    def feed(self, files: int = FILES) -> None:
        """Write files; each has the numbers that follow."""
        for _ in range(files):
            number = len(list(self.source.iterdir()))
            first = number * self.ROWS
            lines = [str(n) for n in range(first, first + self.ROWS)]
            hidden = self.folder / "part"
            hidden.write_text("\n".join(lines) + "\n")
            hidden.rename(self.source / f"{number:04}.txt")

    def run(self, format_name: str = "dlog", mode: str = "append", **options: str) -> int:
        """Write what there is; return the number of batches."""
        lines = self.spark.readStream.schema("value string").option("maxFilesPerTrigger", "1")
        # Two tasks a batch, whatever the files are.
        frame = lines.text(str(self.source)).repartition(2, "value")
        return self.write(frame, format_name, mode, **options)

    def write(self, frame: DataFrame, format_name: str, mode: str, **options: str) -> int:
        """Run a query to the end of what there is."""
        query = (
            frame.writeStream.format(format_name)
            .options(**{"kafka.bootstrap.servers": self.topics.bootstrap, "topic": self.topic})
            .options(**options)
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .outputMode(mode)
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(90)
        finally:
            query.stop()
        return sum(1 for batch in query.recentProgress if batch.numInputRows)

    def found(self) -> Counter[int]:
        """Return how often each number is in the topic."""
        return values_of(self.topics, self.topic)


@pytest.fixture
def stream(spark: SparkSession, topics: Topics, topic: str, tmp_path: Path) -> Stream:
    return Stream(spark, topics, topic, tmp_path)


def test_a_stream_goes_on_after_a_restart(stream: Stream) -> None:
    stream.feed(2)
    assert stream.run() == 2
    stream.feed(1)
    assert stream.run() == 1
    assert stream.run() == 0
    assert stream.found() == Counter(range(150))


def retried(stream: Stream, faults: Faults) -> int:
    """Run until the query ends well; return how often it failed."""
    for failures in range(6):
        try:
            stream.run("dlog-faulty", faults=faults.folder)
        except StreamingQueryException:
            continue
        return failures
    raise AssertionError("the query does not end well")


# How often the query fails, and how many records are there twice, at least and at most: some of a
# task's when that is repeated, the whole batch when the query is. A task may fail four times.
TASK, BATCH = Stream.ROWS, Stream.ROWS
FAULTS: dict[tuple[str, ...], tuple[int, int, int]] = {
    ("in_write!",): (0, 0, TASK),
    ("after_write",): (0, 1, TASK),
    # All is acknowledged, and the message with it is lost.
    ("after_write!",): (0, 1, TASK),
    ("before_commit", "in_abort"): (1, BATCH, BATCH),
    ("after_commit!",): (1, BATCH, BATCH),
    ("before_write", "in_write", "after_write", "after_commit"): (1, BATCH, 3 * BATCH),
}
if IS_LONG:
    FAULTS |= {
        ("before_write",): (0, 0, 0),
        ("before_write!",): (0, 0, 0),
        ("in_write",): (0, 0, TASK),
        ("before_commit!",): (1, BATCH, BATCH),
        ("after_commit",): (1, BATCH, BATCH),
        ("before_commit",): (1, BATCH, BATCH),
        ("before_commit", "in_abort!"): (1, BATCH, BATCH),
        # A task fails for good, so nothing is committed; its neighbour may still write meanwhile.
        ("before_write*", "in_abort"): (1, 0, TASK),
        ("before_write*", "in_abort!"): (1, 0, TASK),
        ("after_write*", "in_abort"): (1, 4, 4 * BATCH),
    }


@pytest.mark.parametrize("steps", FAULTS, ids="+".join)
def test_a_stream_with_a_fault(stream: Stream, faults: Faults, steps: tuple[str, ...]) -> None:
    failures, duplicates_min, duplicates_max = FAULTS[steps]
    stream.feed(2)
    faults.order(*steps)
    assert retried(stream, faults) == failures
    assert not faults.left()
    stream.feed(1)
    stream.run("dlog-faulty", faults=faults.folder)
    found = stream.found()
    assert set(found) == set(range(150))
    assert duplicates_min <= found.total() - 150 <= duplicates_max
    # All tasks of a batch, and those of its repetition, have one token: exactly once needs it.
    told = faults.commits()
    query_id = json.loads((stream.folder / "checkpoint" / "metadata").read_text())["id"]
    assert set(told) == {f"{batch} {query_id}/{batch}" for batch in range(3)}
    is_told = not any(step.endswith("*") for step in steps)
    assert len(told) == 3 + (failures if is_told else 0)


def test_complete_mode_appends_each_result(stream: Stream) -> None:
    stream.feed(2)
    lines = stream.spark.readStream.schema("value string").option("maxFilesPerTrigger", "1")
    counts = (
        lines.text(str(stream.source))
        .groupBy()
        .count()
        .selectExpr("cast(count as string) as value")
    )
    stream.write(counts, "dlog", "complete")
    assert stream.found() == Counter({50: 1, 100: 1})


def test_update_mode_goes_by_foreach_batch(stream: Stream) -> None:
    """Spark refuses update mode for sinks in Python."""
    stream.feed(2)
    lines = stream.spark.readStream.schema("value string").option("maxFilesPerTrigger", "1")
    counts = lines.text(str(stream.source)).groupBy().count()
    frame = counts.selectExpr("cast(count as string) as value")
    with pytest.raises(Exception, match="does not support Update mode"):
        stream.write(frame, "dlog", "update")

    def write(batch: DataFrame, _number: int) -> None:
        save(batch, stream.topics, topic=stream.topic)

    query = (
        frame.writeStream.foreachBatch(write)
        .outputMode("update")
        .option("checkpointLocation", str(stream.folder / "other"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(90)
    assert stream.found() == Counter({50: 1, 100: 1})


SCHEMA = StructType(
    [
        StructField("value", BinaryType(), nullable=False),
        StructField("key", StringType(), nullable=False),
        StructField("partition", IntegerType(), nullable=False),
    ]
)


def test_columns_that_are_never_null(spark: SparkSession, topics: Topics, topic: str) -> None:
    rows = [(b"%d" % number, str(number), number % 2) for number in range(10)]
    save(spark.createDataFrame(rows, SCHEMA), topics, topic=topic)
    assert [len(log) for log in topics.read_all(topic, 2)] == [5, 5]
    save(spark.createDataFrame([], SCHEMA), topics, topic=topic)
    assert values_of(topics, topic).total() == 10
