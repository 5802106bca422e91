"""Archives replayed into topics, with runs and tasks that end at every step."""

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from dlog.client.admin_views import Resource
from dlog.client.blocking import Consumer
from dlog.client.producing.partitioner import partition_for_key
from dlog.spark.errors import OptionError, SparkSourceError
from dlog.spark.pipelines import replay_task
from dlog.spark.pipelines.archive import archive
from dlog.spark.pipelines.archives.archive_storage import Archive
from dlog.spark.pipelines.archives.folders import LocalFolder
from dlog.spark.pipelines.archives.manifest import MANIFEST, DamagedArchiveError, encode
from dlog.spark.pipelines.archives.resumption import Origin
from dlog.spark.pipelines.origins import find_origin
from dlog.spark.pipelines.replay import ReplayJob, replay
from dlog.spark.pipelines.replay_state import DisturbedReplayError
from dlog.spark.settings import ClientSettings
from dlog.types import PartitionId, TopicPartition
from tests.spark.archives import (
    Row,
    Watch,
    fill,
    job_of,
    make_topic,
    rot,
    rows_of_topic,
    rows_to_replay,
)
from tests.spark.log import Log

PHASES = ("begun", "planned", "written", "finished")


class Died(Exception):  # noqa: N818 - stands for the end of the process
    """Ends a run in the middle."""


def die() -> None:
    raise Died


@pytest.fixture
def target(log: Log) -> Log:
    made = Log(log.bootstrap, log.admin, f"{log.topic}-copy")
    made.create(2, configs={"retention.ms": "-1"})
    return made


def replay_of(log: Log, folder: Path, target: Log, **changes: Any) -> ReplayJob:
    return ReplayJob(
        folder=str(folder),
        topic=log.topic,
        target=target.topic,
        settings=ClientSettings(bootstrap=log.bootstrap),
        **changes,
    )


def contents(rows: list[Row]) -> list[Row]:
    """Leave out the topic, and offsets: but not the order."""
    return [(row[1], *row[3:]) for row in rows]


def assert_replayed(spark: SparkSession, log: Log, target: Log) -> None:
    assert contents(rows_of_topic(spark, target)) == contents(rows_of_topic(spark, log))


def test_every_record_comes_back_as_it_was(
    spark: SparkSession, log: Log, target: Log, tmp_path: Path
) -> None:
    make_topic(log, 100)
    archive(spark, job_of(log, tmp_path, batch_offsets=90))
    watch = Watch()
    done = replay(spark, replay_of(log, tmp_path, target), watch)
    assert (done.batches, done.written, done.passed_over) == (3, 200, 0)
    assert_replayed(spark, log, target)
    assert [each.lag for each in watch.done] == [110, 20, 0]
    # Again: nothing. Then what was archived meanwhile.
    assert replay(spark, replay_of(log, tmp_path, target)).batches == 0
    fill(log, 10)
    archive(spark, job_of(log, tmp_path))
    assert replay(spark, replay_of(log, tmp_path, target)).written == 20
    assert_replayed(spark, log, target)


@pytest.mark.parametrize("phase", PHASES)
def test_a_run_that_ends_at_any_step_loses_and_repeats_nothing(
    spark: SparkSession, log: Log, target: Log, tmp_path: Path, phase: str
) -> None:
    make_topic(log, 100)
    # What is there already stays before it.
    target.write(0, [b"before"])
    archive(spark, job_of(log, tmp_path, batch_offsets=90))
    with pytest.raises(Died):
        replay(
            spark,
            replay_of(log, tmp_path, target),
            Watch(phase, -1 if phase == "begun" else 1, die),
        )
    done = replay(spark, replay_of(log, tmp_path, target))
    assert done.passed_over == (90 if phase == "written" else 0)
    copied = rows_of_topic(spark, target)
    assert copied.pop(0)[6] == b"before"
    assert contents(copied) == contents(rows_of_topic(spark, log))


class DyingTask:
    """A task that ends after so many records were sent, once in each of its partitions."""

    def __init__(self, task: Any, marks: Path, after: int) -> None:
        self._task, self._marks, self._after = task, marks, after

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Take the batches, cut into small ones, and fail in the middle."""
        return iter(self._task(self._cut(batches)))

    def _cut(self, batches: Iterable[Any]) -> Iterator[Any]:
        count = 0
        for batch in batches:
            for start in range(0, batch.num_rows, 7):
                piece = batch.slice(start, 7)
                yield piece
                count += piece.num_rows
                mark = self._marks / str(piece.column("target")[0].as_py())
                if count > self._after and not mark.exists():
                    mark.touch()
                    raise RuntimeError("the task dies")


def test_tasks_that_fail_are_tried_again_without_repeating(
    spark: SparkSession, log: Log, target: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topic(log, 100)
    archive(spark, job_of(log, tmp_path / "a"))
    marks = tmp_path / "marks"
    marks.mkdir()
    whole = replay_task.ReplayTask

    def dying(**attributes: Any) -> DyingTask:
        return DyingTask(whole(**attributes), marks, 40)

    monkeypatch.setattr("dlog.spark.pipelines.replay.ReplayTask", dying)
    done = replay(spark, replay_of(log, tmp_path / "a", target))
    assert sorted(path.name for path in marks.iterdir()) == ["0", "1"]
    # The last attempt wrote less than all: the others' records were passed over.
    assert 0 < done.passed_over < 200
    assert_replayed(spark, log, target)


@pytest.mark.parametrize("has_records", [False, True])
def test_a_task_opens_one_consumer_and_only_where_there_is_something_to_look_at(
    target: Log, monkeypatch: pytest.MonkeyPatch, has_records: bool
) -> None:
    opened: list[Consumer] = []

    class Counted(Consumer):
        def start(self) -> None:
            opened.append(self)
            super().start()

    settings = ClientSettings(bootstrap=target.bootstrap)
    task = replay_task.ReplayTask(settings=settings, topic=target.topic, bases={0: 0, 1: 0})
    if has_records:
        list(task([rows_to_replay({0: [b"a", b"b"], 1: [b"a", b"b"]})]))
    monkeypatch.setattr(replay_task, "Consumer", Counted)
    (result,) = task([rows_to_replay({0: [b"a", b"b", b"c"], 1: [b"a", b"b", b"c"]})])
    assert result.column("written").to_pylist() == ([1, 1] if has_records else [3, 3])
    assert len(opened) == (1 if has_records else 0)


@pytest.mark.parametrize("stamped", ["CreateTime", "LogAppendTime"])
def test_records_of_somebody_else_are_told_by_their_times(log: Log, stamped: str) -> None:
    """All have the same key and value, as beats of a heart have; a leader's times tell nothing."""
    log.create(1, configs={"retention.ms": "-1", "message.timestamp.type": stamped})
    settings = ClientSettings(bootstrap=log.bootstrap)
    task = replay_task.ReplayTask(settings=settings, topic=log.topic, bases={0: 0})
    rows = rows_to_replay({0: [b"beat"] * 4})
    list(task([rows.slice(1, 3)]))
    rest = rows.slice(0, 4).set_column(0, "key", pyarrow.array([b"k1", b"k2", b"k3", b"k4"]))
    if stamped == "CreateTime":
        late = pyarrow.array([5000] * 4, rows.column("timestamp").type)
        place = rows.schema.get_field_index("timestamp")
        with pytest.raises(DisturbedReplayError, match="the last of them is another one"):
            list(task([rest.set_column(place, "timestamp", late)]))
    (result,) = task([rest])
    assert result.column("written").to_pylist() == [1]


def test_times_below_that_for_none_are_refused_aloud(log: Log) -> None:
    """As Kafka's producers refuse them, before anything is sent; the guide says what to do."""
    log.create(1)
    settings = ClientSettings(bootstrap=log.bootstrap)
    task = replay_task.ReplayTask(settings=settings, topic=log.topic, bases={0: 0})
    rows = rows_to_replay({0: [b"a", b"b"]})
    place, kind = rows.schema.get_field_index("timestamp"), rows.column("timestamp").type
    below, none = (pyarrow.array([each * 1000] * 2).cast(kind) for each in (-2, -1))
    with pytest.raises(SparkSourceError, match=r"DLOG_WRITE_FAILED.*-2 is not a timestamp in ms"):
        list(task([rows.set_column(place, "timestamp", below)]))
    (result,) = task([rows.set_column(place, "timestamp", none)])
    assert result.column("written").to_pylist() == [2]


def test_nothing_is_written_behind_a_record_that_is_refused(target: Log) -> None:
    """What a partition has is the beginning of what it shall have: the next run counts on it."""
    values = [b"same", b"large" * 1000, b"same", b"same"]
    rows = rows_to_replay({0: values})
    keys = pyarrow.nulls(len(values), pyarrow.binary())
    rows = rows.set_column(rows.schema.get_field_index("key"), "key", keys)
    settings = ClientSettings(bootstrap=target.bootstrap)
    task = replay_task.ReplayTask(settings=settings, topic=target.topic, bases={0: 0, 1: 0})
    alter = target.admin.alter_configs
    alter(Resource.TOPIC, target.topic, set_values={"max.message.bytes": "1000"})
    with pytest.raises(SparkSourceError, match=r"DLOG_WRITE_FAILED.*MESSAGE_TOO_LARGE"):
        list(task([rows]))
    alter(Resource.TOPIC, target.topic, set_values={"max.message.bytes": "100000"})
    (result,) = task([rows])
    assert result.column("written").to_pylist() == [3]
    with Consumer(target.bootstrap) as consumer:
        consumer.assign([TopicPartition(target.topic, PartitionId(0))], 0)
        found: list[bytes | None] = []
        while len(found) < len(values):  # a poll returns what has come so far
            polled = consumer.poll(max_records=4, timeout_ms=10_000)
            assert polled
            found += [each.value for each in polled]
    assert found == values


def test_records_go_where_their_keys_belong(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    make_topic(log, 60)
    archive(spark, job_of(log, tmp_path, batch_offsets=70))
    wide = Log(log.bootstrap, log.admin, f"{log.topic}-wide")
    wide.create(3, configs={"retention.ms": "-1"})
    with pytest.raises(Died):
        replay(spark, replay_of(log, tmp_path, wide, placing="key"), Watch("written", 0, die))
    replay(spark, replay_of(log, tmp_path, wide, placing="key"))
    found = rows_of_topic(spark, wide)
    assert all(row[1] == partition_for_key(row[5], 3) for row in found)
    wanted = rows_of_topic(spark, log)
    assert sorted(row[3:] for row in found) == sorted(row[3:] for row in wanted)


def test_a_target_that_somebody_else_writes_to_is_noticed(
    spark: SparkSession, log: Log, target: Log, tmp_path: Path
) -> None:
    make_topic(log, 100)
    archive(spark, job_of(log, tmp_path, batch_offsets=90))
    with pytest.raises(DisturbedReplayError, match="ends at 46, not at 45"):
        replay(
            spark,
            replay_of(log, tmp_path, target),
            Watch("written", 0, lambda: target.write(0, [b"foreign"])),
        )
    with pytest.raises(PythonException, match="DLOG_REPLAY_DISTURBED"):
        replay(spark, replay_of(log, tmp_path, target))
    # The same number of records, but others.
    job = replay_of(log, tmp_path, target, name="second")
    with pytest.raises(Died):
        replay(spark, job, Watch("begun", -1, die))
    target.write(1, [b"foreign"] * 3)
    with pytest.raises(PythonException, match="the last of them is another one"):
        replay(spark, job)


def test_what_the_target_had_uncommitted_is_not_taken_for_what_was_replayed(
    spark: SparkSession, log: Log, target: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica was silent when the replay began: consumers saw nothing of these records yet."""
    log.create(2)
    for each in (log, target):
        each.write(0, [b"same"] * 20)
    archive(spark, job_of(log, tmp_path))

    def of_consumers(*arguments: Any) -> Origin:
        origin = find_origin(*arguments)
        bounds = tuple(dataclasses.replace(each, end_offset=0) for each in origin.partitions)
        return dataclasses.replace(origin, partitions=bounds)

    monkeypatch.setattr("dlog.spark.pipelines.replay.find_origin", of_consumers)
    assert replay(spark, replay_of(log, tmp_path, target)).written == 20
    assert len(rows_of_topic(spark, target)) == 40


def test_a_replay_keeps_to_what_it_began_with(
    spark: SparkSession, log: Log, target: Log, tmp_path: Path
) -> None:
    make_topic(log, 10)
    with pytest.raises(SparkSourceError, match=r"DLOG_NOT_ARCHIVED.*has nothing of topic"):
        replay(spark, replay_of(log, tmp_path, target))
    archive(spark, job_of(log, tmp_path))
    job = replay_of(log, tmp_path, target)
    replay(spark, job)
    with pytest.raises(SparkSourceError, match=r"DLOG_REPLAY_OF_OTHER.*begun with placing keep"):
        replay(spark, replay_of(log, tmp_path, target, placing="key"))
    log.admin.create_partitions(target.topic, 3)
    with pytest.raises(SparkSourceError, match="2 partitions when this replay began"):
        replay(spark, job)
    log.admin.delete_topic(target.topic)
    target.create(2)
    with pytest.raises(SparkSourceError, match="target_id"):
        replay(spark, job)
    narrow = Log(log.bootstrap, log.admin, f"{log.topic}-narrow")
    narrow.create(1)
    with pytest.raises(OptionError, match=r"DLOG_TOO_FEW_PARTITIONS.*with 2 partitions"):
        replay(spark, replay_of(log, tmp_path, narrow))


def test_what_is_not_whole_is_not_replayed(
    spark: SparkSession, log: Log, target: Log, tmp_path: Path
) -> None:
    make_topic(log, 40)
    archive(spark, job_of(log, tmp_path, batch_offsets=30))
    job = replay_of(log, tmp_path, target)
    (path, *_) = sorted((tmp_path / "batch=00000001").rglob("*.parquet"))
    whole, table = path.read_bytes(), pyarrow.parquet.ParquetFile(path).read()
    path.unlink()
    with pytest.raises(DamagedArchiveError, match=f"{path.name} is missing"):
        replay(spark, job)
    pyarrow.parquet.write_table(table.slice(1), path, compression="zstd")
    # Hadoop's own checksum of the file: without it nothing but the rows tells.
    path.with_name(f".{path.name}.crc").unlink()
    archives = Archive(LocalFolder(tmp_path))
    said = archives.load(1)
    assert said is not None
    with pytest.raises(DamagedArchiveError, match=f"{path.name} has another size"):
        replay(spark, job)
    name = path.relative_to(tmp_path / "batch=00000001").as_posix()
    sizes = {**said.files, name: path.stat().st_size}
    manifest = tmp_path / "batch=00000001" / MANIFEST
    manifest.write_bytes(encode(dataclasses.replace(said, files=sizes)))
    with pytest.raises(DamagedArchiveError, match=r"batch=00000001 has 29 records, .* says 30"):
        replay(spark, job)
    # The first batch was whole, and was replayed; the rest is, once the file is back.
    path.write_bytes(whole)
    manifest.write_bytes(encode(said))
    (tmp_path / "batch=00000001").rename(tmp_path / "elsewhere")
    with pytest.raises(DamagedArchiveError, match="batch=00000001 is missing"):
        replay(spark, job)
    (tmp_path / "elsewhere").rename(tmp_path / "batch=00000001")
    assert replay(spark, job).written == 50
    assert_replayed(spark, log, target)


def test_what_has_rotten_in_an_archive_is_not_replayed(
    spark: SparkSession, log: Log, target: Log, tmp_path: Path
) -> None:
    make_topic(log, 40)
    archive(spark, job_of(log, tmp_path, batch_offsets=50, compression="none"))
    path = rot(tmp_path / "batch=00000001", b"1-34" * 4, b"4-31" * 4)
    job = replay_of(log, tmp_path, target)
    with pytest.raises(DamagedArchiveError, match=r"batch=00000001 has other records .*-1 from 25"):
        replay(spark, job)
    rot(path.parent, b"4-31" * 4, b"1-34" * 4)
    assert replay(spark, job).written == 30
    assert_replayed(spark, log, target)


def test_placing_gives_records_without_a_key_a_fixed_partition() -> None:
    schema = pyarrow.schema(
        [("key", pyarrow.binary()), ("value", pyarrow.binary()), ("partition", pyarrow.int32()),
         ("target", pyarrow.int32())]
    )  # fmt: skip
    batch = pyarrow.record_batch(
        [
            pyarrow.array([b"a", None, b"b", None], pyarrow.binary()),
            pyarrow.array([b"1", b"2", b"3", None], pyarrow.binary()),
            pyarrow.array([0, 1, 2, 5], pyarrow.int32()),
        ],
        names=["key", "value", "partition"],
    )
    (placed,) = replay_task.Placing(4, True, schema)([batch.slice(0, 4)])
    wanted = [partition_for_key(b"a", 4), 1, partition_for_key(b"b", 4), 1]
    assert placed.column("target").to_pylist() == wanted
    (tail,) = replay_task.Placing(4, True, schema)([batch.slice(1, 1)])
    assert tail.column("target").to_pylist() == [1]
