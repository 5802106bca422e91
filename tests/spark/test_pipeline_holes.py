"""Offsets of an archived range without a record: told, counted, noted, and named by an audit."""

import logging
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dlog.client.admin_views import Resource
from dlog.client.blocking import Admin
from dlog.client.views import ConfigEntry
from dlog.spark.pipelines import archive as archiving
from dlog.spark.pipelines import origins
from dlog.spark.pipelines.archive import archive
from dlog.spark.pipelines.archives.archive_storage import Archive
from dlog.spark.pipelines.archives.folders import LocalFolder
from dlog.spark.pipelines.archives.manifest import Hole, Manifest
from dlog.spark.pipelines.audit import NO_RECORD, AuditRules, audit
from dlog.spark.pipelines.comparison import GAP, ONLY_LEFT, Finding
from dlog.spark.pipelines.metrics import Names, exported
from dlog.spark.pipelines.sides import ArchiveSide, TopicSide
from dlog.spark.settings import ClientSettings
from tests.spark.archives import Watch, fill, job_of, lose_in_the_log, make_topic
from tests.spark.log import Log

HOLES = [(0, 0, 3), (0, 40, 45), (0, 47, 48), (1, 90, 100)]
"""At the beginning, in the middle, at the end of a range; of two batches, the second one whole."""


class CompactingAdmin(Admin):
    """Says of every topic that it is compacted, as a node of ours never does."""

    def describe_configs(self, resource: Resource, name: str) -> list[ConfigEntry]:
        """Return what the node says, with another policy."""
        return [
            each._replace(value="delete,compact") if each.name == "cleanup.policy" else each
            for each in super().describe_configs(resource, name)
        ]


def manifests(folder: Path) -> list[Manifest]:
    return Archive(LocalFolder(folder)).all()


def holes(log: Log, places: list[tuple[int, int, int]]) -> tuple[Hole, ...]:
    return tuple(
        Hole(topic=log.topic, partition=partition, start_offset=start, end_offset=end)
        for partition, start, end in places
    )


def test_holes_that_nothing_explains_are_told_counted_and_noted(
    spark: SparkSession,
    log: Log,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    make_topic(log, 100)
    lose_in_the_log(monkeypatch, HOLES)
    watch = Watch()
    metrics = tmp_path / "archive.prom"
    with exported(Names("archive", "a"), metrics, None) as count:
        done = archive(spark, job_of(log, tmp_path / "a"), watch)
        fill(log, 10)
        whole = archive(spark, job_of(log, tmp_path / "a"), watch)
        for event in watch.done:
            count(event)
    assert (done.records, done.missing, whole.records, whole.missing) == (181, 19, 20, 0)
    assert [each.missing for each in watch.done] == [19, 0]
    first, second = manifests(tmp_path / "a")
    assert (first.missing, first.holes) == (19, holes(log, HOLES))
    assert (second.missing, second.holes) == (0, ())
    told = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    named = [each for each in told if "without a record" in each]
    assert len(named) == len(HOLES)
    assert f"topic={log.topic} partition=0 from=40 to=44 batch=0" in named[1]
    assert 'missing_offsets_total{job_name="a",pipeline="archive"} 19.0' in metrics.read_text()


def test_a_whole_partition_without_records_is_one_hole_and_many_are_named_in_part(
    spark: SparkSession,
    log: Log,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    make_topic(log, 60)
    monkeypatch.setattr("dlog.spark.pipelines.archives.holes.HOLES_MAX", 3)
    monkeypatch.setattr(archiving, "_TOLD_MAX", 2)
    many = [(0, offset, offset + 1) for offset in range(1, 41, 2)]
    lose_in_the_log(monkeypatch, [*many, (1, 0, 60)])
    assert archive(spark, job_of(log, tmp_path)).missing == 80
    (only,) = manifests(tmp_path)
    assert (only.missing, only.holes) == (80, holes(log, many[:3]))
    assert "further offsets without a record count=78 batch=0" in caplog.text
    (first_of_all,) = [each for each in only.ranges if each.partition == 1]
    assert first_of_all.size == 60


def test_a_topic_that_is_compacted_has_holes_by_right(
    spark: SparkSession,
    log: Log,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    make_topic(log, 20)
    lose_in_the_log(monkeypatch, [(0, 5, 10)])
    monkeypatch.setattr(origins, "Admin", CompactingAdmin)
    assert archive(spark, job_of(log, tmp_path)).missing == 0
    assert manifests(tmp_path)[0].holes == () and "without a record" not in caplog.text


def test_of_a_topic_that_is_gone_nothing_is_known(log: Log) -> None:
    settings = ClientSettings(bootstrap=log.bootstrap)
    assert origins.find_compacted(settings, ["nothing-of-this-name"]) == {
        "nothing-of-this-name": False
    }


def test_an_audit_names_what_was_noted_and_still_compares_it(
    spark: SparkSession, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topic(log, 50)
    with monkeypatch.context() as patch:
        lose_in_the_log(patch, [(1, 20, 24)])
        archive(spark, job_of(log, tmp_path))
    side = ArchiveSide(spark, str(tmp_path), log.topic)
    done = audit(side, None, AuditRules())
    assert done.findings == (Finding(1, 20, 24, GAP),)
    assert done.not_compared == (Finding(1, 20, 24, NO_RECORD),)
    done = audit(side, None, AuditRules(may_have_gaps=True))
    assert done.good and done.not_compared == (Finding(1, 20, 24, NO_RECORD),)
    # The log has them after all: it was the reader that did not see them.
    where = {"kafka.bootstrap.servers": log.bootstrap}
    topic = TopicSide(spark, ClientSettings(bootstrap=log.bootstrap), log.topic, where)
    done = audit(topic, side, AuditRules())
    assert done.findings == (Finding(1, 20, 24, ONLY_LEFT),)
    assert done.not_compared == (Finding(1, 20, 24, NO_RECORD),)


def test_an_audit_by_place_tells_holes_by_the_offsets_of_the_left_side(
    spark: SparkSession, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topic(log, 50, 1)
    log.trim(0, 10)
    with monkeypatch.context() as patch:
        lose_in_the_log(patch, [(0, 20, 24)])
        archive(spark, job_of(log, tmp_path / "a"))
    copy = Log(log.bootstrap, log.admin, f"{log.topic}-copy")
    copy.create(1)
    fill(copy, 40, 1)
    where = {"kafka.bootstrap.servers": log.bootstrap}
    left = TopicSide(spark, ClientSettings(bootstrap=log.bootstrap), copy.topic, where)
    right = ArchiveSide(spark, str(tmp_path / "a"), log.topic)
    rules = AuditRules(align=True, fields=())
    assert audit(left, right, rules).not_compared == (Finding(0, 10, 14, NO_RECORD),)
