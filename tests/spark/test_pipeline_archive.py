"""Archives of real topics, with runs that end at every step: each record is there once."""

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dlog.spark.errors import DataLossError, SparkSourceError
from dlog.spark.pipelines.archive import LESS_MAX, _Run, archive
from dlog.spark.pipelines.archives.archive_storage import Archive
from dlog.spark.pipelines.archives.folders import HadoopFolder, LocalFolder
from dlog.spark.pipelines.archives.manifest import DamagedArchiveError
from dlog.spark.pipelines.jobs import JobFrame, run_every
from dlog.spark.pipelines.sides import ArchiveSide
from tests.spark.archives import (
    Watch,
    assert_same,
    fill,
    job_of,
    make_topic,
    rows_of_archive,
    rows_of_topic,
)
from tests.spark.log import Log

PHASES = ("planned", "written", "sealed", "published", "cleaned")


class Died(Exception):  # noqa: N818 - stands for the end of the process
    """Ends a run in the middle."""


def die() -> None:
    raise Died


def manifests(folder: Path) -> Archive:
    return Archive(LocalFolder(folder))


def left(folder: Path) -> list[Path]:
    """Return what runs have left of batches that are no part of the archive."""
    return list((folder / "_staging").iterdir())


def test_any_reader_finds_every_record_once(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    make_topic(log)
    watch = Watch()
    done = archive(spark, job_of(log, tmp_path / "a", batch_offsets=250), watch)
    assert (done.batches, done.records, done.lag) == (3, 600, 0)
    assert_same(rows_of_archive(tmp_path / "a"), rows_of_topic(spark, log))
    assert [(each.batch, each.lag) for each in watch.done] == [(0, 350), (1, 100), (2, 0)]
    assert watch.phases == [(name, batch) for batch in range(3) for name in PHASES]
    folders = {path.name for path in (tmp_path / "a" / "batch=00000000").iterdir()}
    assert {f"topic={log.topic}", "_manifest.json"} <= folders
    # Nothing new: nothing is written, and nothing is left beside the batches.
    assert archive(spark, job_of(log, tmp_path / "a")).batches == 0
    fill(log, 7)
    assert archive(spark, job_of(log, tmp_path / "a")).records == 14
    assert_same(rows_of_archive(tmp_path / "a"), rows_of_topic(spark, log))
    assert left(tmp_path / "a") == []


@pytest.mark.parametrize(("phase", "batch"), [*((each, 1) for each in PHASES), ("sealed", 0)])
def test_a_run_that_ends_at_any_step_loses_and_repeats_nothing(
    spark: SparkSession, log: Log, tmp_path: Path, phase: str, batch: int
) -> None:
    make_topic(log, 100)
    job = job_of(log, tmp_path, batch_offsets=90)
    with pytest.raises(Died):
        archive(spark, job, Watch(phase, batch, die))
    # A reader that comes now finds whole batches only.
    there = rows_of_archive(tmp_path)
    assert len(there) == sum(each.content.rows for each in manifests(tmp_path).all())
    fill(log, 20)
    archive(spark, job)
    assert_same(rows_of_archive(tmp_path), rows_of_topic(spark, log))


@pytest.mark.parametrize("phase", ["planned", "sealed"])
def test_of_two_runs_at_once_one_wins_each_batch(
    spark: SparkSession, log: Log, tmp_path: Path, phase: str
) -> None:
    make_topic(log, 100)
    job = job_of(log, tmp_path, batch_offsets=90)
    other = Watch(phase, 1, lambda: archive(spark, job))
    archive(spark, job, other)
    assert_same(rows_of_archive(tmp_path), rows_of_topic(spark, log))
    assert [each.batch for each in other.done] == [0]
    assert [each.batch for each in manifests(tmp_path).all()] == [0, 1, 2]


@pytest.mark.parametrize("phase", ["written", "sealed", "published"])
def test_where_moves_are_not_atomic_the_manifest_decides(
    spark: SparkSession, log: Log, tmp_path: Path, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalFolder, "has_atomic_moves", False)
    make_topic(log, 100)
    job = job_of(log, tmp_path, batch_offsets=150)
    with pytest.raises(Died):
        archive(spark, job, Watch(phase, 0, die))
    archive(spark, job)
    assert_same(rows_of_archive(tmp_path), rows_of_topic(spark, log))


@pytest.mark.parametrize("phase", ["planned", "written", "sealed"])
def test_where_moves_are_not_atomic_runs_at_once_leave_each_others_files_alone(
    spark: SparkSession, log: Log, tmp_path: Path, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalFolder, "has_atomic_moves", False)
    make_topic(log, 100)
    job = job_of(log, tmp_path, batch_offsets=90)
    other = Watch()
    archive(spark, job, Watch(phase, 1, lambda: archive(spark, job, other)))
    assert [each.batch for each in other.done] == [1, 2]
    for each in manifests(tmp_path).all():
        assert manifests(tmp_path).differences(each) == []
    assert_same(rows_of_archive(tmp_path), rows_of_topic(spark, log))


def test_where_moves_are_not_atomic_what_others_have_not_finished_stays(
    spark: SparkSession, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their tasks would fail, or their files come into place with ours."""
    monkeypatch.setattr(LocalFolder, "has_atomic_moves", False)
    make_topic(log, 100)
    unfinished = tmp_path / "batch=00000000" / "_temporary"
    others = [
        unfinished / "0" / each / f"part-{'f' * 32}-0.parquet"
        for each in ("task_1_m_000000/topic=t/date=2020-01-01", "_temporary/attempt_1_m_000001_2")
    ]
    for each in others:
        each.parent.mkdir(parents=True)
        each.write_bytes(b"x")
    seen: list[tuple[bool, list[str]]] = []

    def look() -> None:
        folders = sorted(each.name for each in unfinished.iterdir())
        seen.append((all(each.exists() for each in others), folders))

    archive(spark, job_of(log, tmp_path), Watch("written", 0, look))
    assert seen == [(True, ["0"])]
    # Now that the batch is whole nobody can publish them any more.
    assert not unfinished.exists()
    assert_same(rows_of_archive(tmp_path), rows_of_topic(spark, log))


def test_an_archive_on_a_file_system_of_hadoop(
    spark: SparkSession, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlog.spark.pipelines.archive.open_folder", HadoopFolder)
    make_topic(log, 100)
    job = job_of(log, (tmp_path / "a").as_uri(), batch_offsets=90)
    other = Watch("sealed", 1, lambda: archive(spark, job))
    with pytest.raises(Died):
        archive(spark, job, Watch("sealed", 0, die))
    archive(spark, job, other)
    assert_same(rows_of_archive(tmp_path / "a"), rows_of_topic(spark, log))


@pytest.mark.parametrize("name", ["with space", "größe 100%", "a[b]{c,d}*?#"])
def test_a_folder_may_have_any_name(
    spark: SparkSession, log: Log, tmp_path: Path, name: str
) -> None:
    make_topic(log, 30)
    archive(spark, job_of(log, str(tmp_path / name)))
    fill(log, 10)
    archive(spark, job_of(log, f"file://{tmp_path}/{name}"))
    assert [each.name for each in tmp_path.iterdir()] == [name]
    assert_same(rows_of_archive(tmp_path / name), rows_of_topic(spark, log))
    side = ArchiveSide(spark, str(tmp_path / name), log.topic)
    assert side.records({0: (0, 40), 1: (0, 40)}).count() == 80


def test_files_that_are_elsewhere_are_missed(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    make_topic(log, 30)

    def lose() -> None:
        # As on a cluster whose hosts have a folder each: a task's file is on another one.
        next((tmp_path / "a" / "_staging").rglob("*.parquet")).unlink()

    with pytest.raises(
        DamagedArchiveError, match=r"Batch 0 has 60 records, but only .*share that folder"
    ):
        archive(spark, job_of(log, tmp_path / "a"), Watch("written", 0, lose))
    assert manifests(tmp_path / "a").all() == [] and rows_of_archive(tmp_path / "a") == []
    assert left(tmp_path / "a") == []
    archive(spark, job_of(log, tmp_path / "a"))
    assert_same(rows_of_archive(tmp_path / "a"), rows_of_topic(spark, log))


def test_a_full_disk_is_not_filled_further(
    spark: SparkSession, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of a batch fit, its manifest does not: each attempt would leave a copy of them."""
    make_topic(log, 30)
    with monkeypatch.context() as full:
        full.setattr(LocalFolder, "write_new", lambda *_: os.close(-1))
        with pytest.raises(OSError, match="Bad file descriptor"):
            archive(spark, job_of(log, tmp_path))
    assert left(tmp_path) == []
    archive(spark, job_of(log, tmp_path))
    assert_same(rows_of_archive(tmp_path), rows_of_topic(spark, log))


def test_what_retention_took_is_told_or_noted(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    make_topic(log, 50)
    archive(spark, job_of(log, tmp_path))
    kept = rows_of_topic(spark, log)
    fill(log, 50)
    log.trim(1, 60)
    with pytest.raises(DataLossError, match=f"Offsets 50 to 59 of {log.topic}-1 are deleted"):
        archive(spark, job_of(log, tmp_path))
    assert_same(rows_of_archive(tmp_path), kept)
    watch = Watch()
    archive(spark, job_of(log, tmp_path, accept_loss=True), watch)
    assert [each.lost for each in watch.done] == [10]
    found = rows_of_archive(tmp_path)
    assert sorted(row[2] for row in found if row[1] == 1) == [*range(50), *range(60, 100)]


def test_what_retention_takes_while_a_batch_is_read_is_noted_too(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    make_topic(log, 50)
    archive(spark, job_of(log, tmp_path))
    fill(log, 100)
    overtaken = Watch("planned", 1, lambda: log.trim(1, 90))
    with pytest.raises(PySparkException, match="KAFKA_DATA_LOSS"):
        archive(spark, job_of(log, tmp_path), overtaken)
    log.trim(0, 60)
    overtaken = Watch("planned", 1, lambda: log.trim(1, 95))
    done = archive(spark, job_of(log, tmp_path, accept_loss=True, batch_offsets=120), overtaken)
    # The first plan took 120 offsets, the next ones less at once, and all that is there in the end.
    assert overtaken.done[0].offsets <= 60 and done.records == 90 + 55
    lost = [
        (each.partition, each.lost_from, each.start_offset)
        for one in manifests(tmp_path).all()
        for each in one.ranges
        if each.lost_from is not None
    ]
    assert sorted(lost) == [(0, 50, 60), (1, 50, 95)]
    assert_same(
        [row for row in rows_of_archive(tmp_path) if row[2] >= 95],
        [row for row in rows_of_topic(spark, log) if row[2] >= 95],
    )
    # Who is always overtaken gives up.
    fill(log, 1)
    run = _Run(spark, job_of(log, tmp_path, accept_loss=True), Watch())
    gone = PySparkException(message="KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE")

    def overtake(*_: object) -> Any:
        raise gone

    run._write = overtake  # type: ignore[method-assign]
    with pytest.raises(PySparkException):
        run.batch()
    assert run._halved == LESS_MAX


def test_partitions_that_are_added_and_topics_that_come_later(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    make_topic(log, 20)
    archive(spark, job_of(log, tmp_path))
    log.admin.create_partitions(log.topic, 3)
    log.write(2, [b"x"] * 5)
    archive(spark, job_of(log, tmp_path))
    assert_same(rows_of_archive(tmp_path), rows_of_topic(spark, log))
    later = Log(log.bootstrap, log.admin, f"{log.topic}-later")
    make_topic(later, 5)
    archive(spark, job_of(later, tmp_path))
    last = manifests(tmp_path).last()
    assert last is not None and {topic for topic, _ in last.ends} == {log.topic, later.topic}


def test_a_topic_made_anew_is_not_put_behind_the_old_one(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    make_topic(log, 20)
    archive(spark, job_of(log, tmp_path))
    log.admin.delete_topic(log.topic)
    with pytest.raises(SparkSourceError, match=f"has no topic {log.topic}. See dlogctl topic list"):
        archive(spark, job_of(log, tmp_path))
    make_topic(log, 30)
    with pytest.raises(SparkSourceError, match="deleted and recreated"):
        archive(spark, job_of(log, tmp_path))


def test_a_folder_without_manifest_in_the_way_is_named(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    make_topic(log, 20)
    (tmp_path / "batch=00000000").mkdir()
    with pytest.raises(DamagedArchiveError, match="Batch 0 has a folder"):
        archive(spark, job_of(log, tmp_path))


def test_a_job_that_runs_again_and_again(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    make_topic(log, 20)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            raise Died
        fill(log, 5)

    prom = tmp_path / "archive.prom"
    frame = JobFrame(pipeline="archive", job="a", metrics_path=prom)
    job = job_of(log, tmp_path / "a")
    with pytest.raises(Died):
        run_every(frame, lambda session, tell: archive(session, job, tell), 3600.0, wait=wait)
    assert all(3000 < each <= 3600 for each in waits)
    assert_same(rows_of_archive(tmp_path / "a"), rows_of_topic(spark, log))
    text = prom.read_text()
    assert 'dlog_pipeline_runs_total{job_name="a",pipeline="archive"} 2.0' in text
    assert 'dlog_pipeline_records_total{job_name="a",pipeline="archive"} 50.0' in text


def test_a_topic_made_anew_while_a_batch_is_written_is_not_archived(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    """It has the same offsets, with other records."""
    make_topic(log, 100)

    def make_anew() -> None:
        log.admin.delete_topic(log.topic)
        make_topic(log, 100)

    with pytest.raises(SparkSourceError, match="deleted and recreated"):
        archive(spark, job_of(log, tmp_path), Watch("planned", 0, make_anew))
    assert manifests(tmp_path).all() == [] and left(tmp_path) == []
    # Nothing was archived yet: the new one may be.
    archive(spark, job_of(log, tmp_path))
    assert_same(rows_of_archive(tmp_path), rows_of_topic(spark, log))


def test_a_topic_deleted_behind_its_last_read_is_archived(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    make_topic(log, 100)
    wanted = rows_of_topic(spark, log)
    watch = Watch("written", 0, lambda: log.admin.delete_topic(log.topic))
    archive(spark, job_of(log, tmp_path), watch)
    assert_same(rows_of_archive(tmp_path), wanted)


def test_who_loses_a_batch_while_its_files_are_written_plans_again(
    spark: SparkSession, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The winner removes the files of the loser, whose job then fails."""
    make_topic(log, 100)
    job = job_of(log, tmp_path, batch_offsets=150)
    real = _Run._write_files
    runs: list[_Run] = []

    def write(run: _Run, *arguments: Any) -> Any:
        runs.append(run)
        if len(runs) == 1:
            archive(spark, job)
            raise FileNotFoundError("_temporary/0")
        return real(run, *arguments)

    monkeypatch.setattr(_Run, "_write_files", write)
    archive(spark, job)
    assert_same(rows_of_archive(tmp_path), rows_of_topic(spark, log))
    assert runs[0] not in runs[1:], "the other one had taken everything"
