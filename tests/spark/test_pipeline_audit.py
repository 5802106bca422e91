"""Audits of real topics and archives: what is whole, and every kind of harm by its range."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow
import pyarrow.compute
import pyarrow.parquet
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from dlog.spark.errors import DataLossError
from dlog.spark.pipelines import comparison
from dlog.spark.pipelines.archive import archive
from dlog.spark.pipelines.archives.manifest import Hole
from dlog.spark.pipelines.audit import GONE, PROBLEM, AuditRules, _Run, audit
from dlog.spark.pipelines.comparison import (
    BUCKET_OFFSETS,
    DIFFERS,
    DUPLICATE,
    DUPLICATE_RIGHT,
    GAP,
    ONLY_LEFT,
    ONLY_RIGHT,
    SOMEWHERE,
    Finding,
)
from dlog.spark.pipelines.events import Found
from dlog.spark.pipelines.sides import ArchiveSide, Extent, TopicSide
from dlog.spark.settings import ClientSettings
from tests.spark.archives import Watch, fill, job_of, make_topic, rot
from tests.spark.log import Log

RULES = AuditRules()
LOOSE = AuditRules(may_have_gaps=True)


def topic_side(spark: SparkSession, log: Log) -> TopicSide:
    settings = ClientSettings(bootstrap=log.bootstrap)
    return TopicSide(spark, settings, log.topic, {"kafka.bootstrap.servers": log.bootstrap})


def archive_side(spark: SparkSession, log: Log, folder: Path) -> ArchiveSide:
    return ArchiveSide(spark, str(folder), log.topic)


def harm(folder: Path, partition: int, change: Callable[[pyarrow.Table], pyarrow.Table]) -> int:
    """Rewrite the archive's largest file of a partition; return the offset of its 4th record."""
    tables = [
        (path, pyarrow.parquet.ParquetFile(path).read()) for path in folder.rglob("*.parquet")
    ]
    mine = [each for each in tables if each[1].column("partition")[0].as_py() == partition]
    path, table = max(mine, key=lambda each: each[1].num_rows)
    changed = change(table)
    pyarrow.parquet.write_table(changed, path)
    (path.parent / f".{path.name}.crc").unlink(missing_ok=True)
    offset: int = table.column("offset")[3].as_py()
    return offset


def test_rot_that_no_size_tells_is_found(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    make_topic(log, 40)
    archive(spark, job_of(log, tmp_path, batch_offsets=50, compression="none"))
    rot(tmp_path / "batch=00000001", b"1-34" * 4, b"4-31" * 4)
    watch = Watch()
    done = audit(archive_side(spark, log, tmp_path), None, RULES, watch)
    assert not done.good and not done.findings
    (told,) = done.problems
    assert told.startswith("batch=00000001 has other records than were archived, among ")
    assert f"{log.topic}-1 from 25 to 40" in told
    counted = [each for each in watch.events if isinstance(each, Found)]
    assert counted == [Found(kind=PROBLEM, count=1)]
    done = audit(topic_side(spark, log), archive_side(spark, log, tmp_path), RULES)
    assert done.findings == (Finding(1, 34, 35, DIFFERS),) and done.problems == (told,)


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_file_that_does_not_read_any_more_is_named(
    spark: SparkSession, log: Log, tmp_path: Path, is_cut: bool
) -> None:
    """It ended the whole audit, with Spark's words for it."""
    make_topic(log, 40)
    archive(spark, job_of(log, tmp_path, batch_offsets=50, compression="zstd"))
    path = max(
        (tmp_path / "batch=00000000").rglob("*.parquet"), key=lambda each: each.stat().st_size
    )
    (path.parent / f".{path.name}.crc").unlink()
    data = bytearray(path.read_bytes())
    if is_cut:
        del data[len(data) // 2 :]
    else:
        data[4 : len(data) // 2] = bytes(len(data) // 2 - 4)
    path.write_bytes(data)
    alone = audit(archive_side(spark, log, tmp_path), None, RULES)
    assert not alone.good and {each.kind for each in alone.findings} == {GAP}
    (told,) = alone.problems
    assert "batch=00000000" in told
    both = audit(topic_side(spark, log), archive_side(spark, log, tmp_path), RULES)
    assert {each.kind for each in both.findings} == {ONLY_LEFT} and both.problems == (told,)


def test_what_is_whole_has_no_findings(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    make_topic(log, 100)
    archive(spark, job_of(log, tmp_path, batch_offsets=90))
    for left, right in (
        (topic_side(spark, log), None),
        (archive_side(spark, log, tmp_path), None),
        (topic_side(spark, log), archive_side(spark, log, tmp_path)),
    ):
        done = audit(left, right, RULES)
        assert done.good and not done.not_compared
        assert (done.offsets, done.records) == (200, 200)
    fill(log, 10)
    done = audit(topic_side(spark, log), archive_side(spark, log, tmp_path), RULES)
    assert done.good and done.offsets == 200
    assert done.not_compared == tuple(Finding(each, 100, 110, "only here") for each in (0, 1))


def test_every_harm_to_an_archive_is_named(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    make_topic(log, 300)
    archive(spark, job_of(log, tmp_path))

    def remove(table: pyarrow.Table) -> pyarrow.Table:
        return pyarrow.concat_tables([table.slice(0, 3), table.slice(4)])

    def change(table: pyarrow.Table) -> pyarrow.Table:
        values = table.column("value").to_pylist()
        values[3] = b"forged"
        place = table.schema.get_field_index("value")
        return table.set_column(place, table.field(place), pyarrow.array(values, pyarrow.binary()))

    def repeat(table: pyarrow.Table) -> pyarrow.Table:
        return pyarrow.concat_tables([table, table.slice(3, 1)])

    removed = harm(tmp_path, 0, remove)
    forged = harm(tmp_path, 1, change)
    watch = Watch()
    done = audit(topic_side(spark, log), archive_side(spark, log, tmp_path), RULES, watch)
    wanted = [Finding(0, removed, removed + 1, ONLY_LEFT), Finding(1, forged, forged + 1, DIFFERS)]
    assert list(done.findings) == wanted and not done.good
    assert all("has another size than the manifest says" in each for each in done.problems)
    counted = [each for each in watch.events if isinstance(each, Found)]
    kinds = [DIFFERS, ONLY_LEFT]
    harms = [Found(kind=each, count=1) for each in kinds]
    assert counted == [*harms, Found(kind=PROBLEM, count=2)]
    alone = audit(archive_side(spark, log, tmp_path), None, RULES)
    assert list(alone.findings) == [Finding(0, removed, removed + 1, GAP)]
    assert not audit(archive_side(spark, log, tmp_path), None, LOOSE).findings
    # A duplicate, too, in another file of the same partition or this one.
    repeated = harm(tmp_path, 0, repeat)
    again = audit(topic_side(spark, log), archive_side(spark, log, tmp_path), RULES)
    assert Finding(0, repeated, repeated + 1, DUPLICATE_RIGHT) in again.findings
    for rules in (RULES, LOOSE):
        alone = audit(archive_side(spark, log, tmp_path), None, rules)
        assert Finding(0, repeated, repeated + 1, DUPLICATE) in alone.findings


def test_what_lies_beside_the_manifest_is_told(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    make_topic(log, 60)
    archive(spark, job_of(log, tmp_path, batch_offsets=50))
    files = sorted((tmp_path / "batch=00000001").rglob("*.parquet"))
    gone = pyarrow.parquet.ParquetFile(files[0]).read(["partition", "offset"])
    files[0].unlink()
    (tmp_path / "batch=00000000" / "foreign.parquet").write_bytes(b"?")
    (tmp_path / "batch=00000002" / "_manifest.json").unlink()
    done = audit(archive_side(spark, log, tmp_path), None, RULES)
    lost = {
        (each.partition, offset)
        for each in done.findings
        for offset in range(each.start_offset, each.end_offset)
    }
    assert lost == set(
        zip(*(gone.column(name).to_pylist() for name in gone.column_names), strict=True)
    )
    told = "\n".join(done.problems)
    assert "batch=00000002 has no manifest" in told
    assert "foreign.parquet is not in the manifest" in told
    assert f"{files[0].name} is missing" in told


def test_accepted_losses_are_no_findings(spark: SparkSession, log: Log, tmp_path: Path) -> None:
    make_topic(log, 50)
    archive(spark, job_of(log, tmp_path))
    fill(log, 50)
    log.trim(1, 60)
    archive(spark, job_of(log, tmp_path, accept_loss=True))
    done = audit(archive_side(spark, log, tmp_path), None, RULES)
    assert done.good
    assert done.not_compared == (Finding(1, 50, 60, "lost before it was archived"),)
    assert audit(archive_side(spark, log, tmp_path), topic_side(spark, log), RULES).good


def test_an_archive_with_many_accepted_losses_is_whole(
    spark: SparkSession, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All in one bucket, and more than are looked at offset by offset."""
    monkeypatch.setattr("dlog.spark.pipelines.audit.EXACT_MAX", 1)
    make_topic(log, 10)
    archive(spark, job_of(log, tmp_path))
    for turn in range(3):
        fill(log, 10)
        for partition in range(2):
            log.trim(partition, 10 * turn + 15)
        archive(spark, job_of(log, tmp_path, accept_loss=True))
    fill(log, 10)
    archive(spark, job_of(log, tmp_path))
    side = archive_side(spark, log, tmp_path)
    done = audit(side, None, RULES)
    assert done.good and len(done.not_compared) == 6 and done.offsets == 100 - 6 * 5
    # What is gone meanwhile in the other one spoils no span beside it.
    watch = Watch("counted", 0, lambda: [log.trim(partition, 43) for partition in range(2)])
    assert audit(side, topic_side(spark, log), RULES, watch).good


def test_what_retention_takes_meanwhile_is_left_out_and_told(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    make_topic(log, 100)
    archive(spark, job_of(log, tmp_path))
    left, right = topic_side(spark, log), archive_side(spark, log, tmp_path)
    # After the bounds were asked for, before anything is read.
    done = audit(left, None, RULES, Watch("planned", 0, lambda: log.trim(0, 10)))
    assert done.good and (done.offsets, done.records) == (190, 190)
    assert done.not_compared == (Finding(0, 0, 10, GONE),)
    done = audit(left, right, RULES, Watch("planned", 0, lambda: log.trim(0, 20)))
    assert done.good and done.offsets == 180
    assert done.not_compared[-1] == Finding(0, 10, 20, GONE)
    # Between the sums and the look at single offsets, of which some are bad.

    def forge(table: pyarrow.Table) -> pyarrow.Table:
        place = table.schema.get_field_index("value")
        forged = pyarrow.array([b"forged"] * table.num_rows, pyarrow.binary())
        return table.set_column(place, table.field(place), forged)

    harm(tmp_path, 0, forge)
    whole = audit(left, right, RULES)
    watch = Watch("counted", 0, lambda: log.trim(0, 60))
    done = audit(left, right, RULES, watch)
    assert Finding(0, 20, 60, GONE) in done.not_compared and not done.good
    assert [each for each in done.findings if each.start_offset < 60] == []
    late = [(max(each.start_offset, 60), each.end_offset) for each in whole.findings]
    wanted = [(start, end) for start, end in late if start < end]
    assert [(each.start_offset, each.end_offset) for each in done.findings] == wanted


def test_timestamps_that_spark_cannot_have_stop_no_archive_that_clips_them(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.create(1, configs={"message.timestamp.after.max.ms": str(2**63 - 1)})
    fill(log, 10, 1)
    log.write(0, [b"odd"], timestamp_ms=lambda _: 2**62)
    told = rf"KAFKA_MALFORMED_RECORD_TIMESTAMP.*offset 10 of {log.topic}-0 "
    with pytest.raises(PySparkException, match=told):
        archive(spark, job_of(log, tmp_path))
    clipping = {"kafka.bootstrap.servers": log.bootstrap, "timestampOverflow": "clip"}
    job = dataclasses.replace(job_of(log, tmp_path), source=clipping)
    assert archive(spark, job).records == 11
    settings = ClientSettings(bootstrap=log.bootstrap)
    topic = TopicSide(spark, settings, log.topic, clipping)
    done = audit(topic, archive_side(spark, log, tmp_path), RULES)
    assert done.good and done.records == 11


def test_a_topic_that_is_made_anew_under_an_audit_ends_it(spark: SparkSession, log: Log) -> None:
    make_topic(log, 10)

    def anew() -> None:
        log.admin.delete_topic(log.topic)
        make_topic(log, 10)

    with pytest.raises(DataLossError, match="recreated while it was read"):
        audit(topic_side(spark, log), None, RULES, Watch("planned", 0, anew))


def test_copies_of_a_topic_are_compared_by_offset_or_by_place(
    spark: SparkSession, log: Log
) -> None:
    make_topic(log, 100)
    copy = Log(log.bootstrap, log.admin, f"{log.topic}-copy")
    make_topic(copy, 100)
    assert audit(topic_side(spark, log), topic_side(spark, copy), RULES).good
    moved = Log(log.bootstrap, log.admin, f"{log.topic}-moved")
    moved.create(2, configs={"retention.ms": "-1"})
    for partition in range(2):
        moved.write(partition, [b"other"] * 7)
    fill(moved, 100)
    for partition in range(2):
        moved.trim(partition, 7)
    assert not audit(topic_side(spark, log), topic_side(spark, moved), RULES).good
    aligned = AuditRules(align=True)
    assert audit(topic_side(spark, log), topic_side(spark, moved), aligned).good
    fill(log, 3)
    moved.write(0, [b"0-0" * 0, b"forged", b"0-2" * 2], timestamp_ms=lambda number: number)
    done = audit(topic_side(spark, moved), topic_side(spark, log), aligned)
    assert done.findings == (Finding(0, 107, 110, DIFFERS),)
    kept = AuditRules(align=True, fields=("key", "value", "headers"))
    done = audit(topic_side(spark, moved), topic_side(spark, log), kept)
    assert done.findings == (Finding(0, 108, 109, DIFFERS),)


def test_more_harm_than_is_looked_at_closely_is_named_by_buckets(
    spark: SparkSession, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topic(log, 100, 1)
    other = Log(log.bootstrap, log.admin, f"{log.topic}-other")
    other.create(1, configs={"retention.ms": "-1"})
    other.write(0, [b"x"] * 100)
    for name in ("comparison", "audit"):
        monkeypatch.setattr(f"dlog.spark.pipelines.{name}.BUCKET_OFFSETS", 16)
    monkeypatch.setattr("dlog.spark.pipelines.audit.EXACT_MAX", 2)
    assert comparison.BUCKET_OFFSETS == 16
    done = audit(topic_side(spark, log), topic_side(spark, other), RULES)
    assert done.findings == (Finding(0, 0, 32, DIFFERS), Finding(0, 32, 100, SOMEWHERE))


class Far:
    """A side with one partition, of which these offsets are there."""

    def __init__(self, spark: SparkSession, offsets: range, *missing: int) -> None:
        self._spark = spark
        self._offsets = offsets
        self._missing = missing

    def extents(self) -> dict[int, Extent]:
        return {0: Extent(self._offsets.start, self._offsets.stop)}

    def starts(self) -> dict[int, int]:
        return {0: self._offsets.start}

    def problems(self) -> list[str]:
        return []

    def holes(self) -> list[Hole]:
        return []

    def records(self, wanted: Mapping[int, tuple[int, int]]) -> DataFrame:
        """Return the records of these offsets."""
        start, end = wanted[0]
        made = self._spark.range(start, end).where(~sf.col("id").isin(list(self._missing)))
        return made.selectExpr(
            "0 as partition",
            "id as offset",
            "cast(null as binary) as key",
            "cast('v' as binary) as value",
            "timestamp_millis(id % 1000) as timestamp",
            "0 as timestampType",
            "cast(null as array<struct<key string, value binary>>) as headers",
        )


def test_offsets_that_no_double_holds_are_in_their_own_buckets(spark: SparkSession) -> None:
    """Else the last ones before a bucket's end count to the next, and each bucket is looked at."""
    edge = (2**60 // BUCKET_OFFSETS + 1) * BUCKET_OFFSETS
    offsets = range(edge - 40, edge + 10)
    run = _Run(Far(spark, offsets), None, RULES)
    buckets = run.buckets(run._left, run.left_shifts)
    first = edge // BUCKET_OFFSETS
    assert {key: each.rows for key, each in buckets.items()} == {(0, first - 1): 40, (0, first): 10}
    done = audit(Far(spark, offsets, edge - 3), Far(spark, offsets), RULES)
    assert done.findings == (Finding(0, edge - 3, edge - 2, ONLY_RIGHT),)
