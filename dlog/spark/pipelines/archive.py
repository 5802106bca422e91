"""Archive job: topics to Parquet, each record exactly once; docs/formats/archive.md.

A batch is planned from the newest manifest and the cluster, read and written beside the archive,
and published with its manifest by one move of its folder. No checkpoint and no lock: a run that
dies leaves files that nobody looks at, and the next one begins where the archive ends. Of two runs
at once one wins each batch, the other plans again.
"""

import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as sf

from dlog.spark.errors import OptionError, SparkSourceError
from dlog.spark.pipelines.archives.archive_storage import Archive, Staged
from dlog.spark.pipelines.archives.archived import count_rows, read_places
from dlog.spark.pipelines.archives.folders import join, open_folder
from dlog.spark.pipelines.archives.hashes import content_of
from dlog.spark.pipelines.archives.holes import NO_HOLES, Holes, find_holes, of_topics
from dlog.spark.pipelines.archives.manifest import (
    ArchivedRange,
    Content,
    DamagedArchiveError,
    Manifest,
)
from dlog.spark.pipelines.archives.resumption import (
    Origin,
    check_same_origin,
    ends_after,
    lag_of,
    plan_batch,
)
from dlog.spark.pipelines.events import BatchDone, Event, Observer, Phase, nobody
from dlog.spark.pipelines.origins import find_again, find_compacted, find_origin
from dlog.spark.settings import ClientSettings

BATCH_OFFSETS = 5_000_000
TASK_RECORDS = 1_000_000
WRITING: Mapping[str, str] = {
    # So many files a task keeps open: below it nothing has to be sorted by topic and date.
    "spark.sql.maxConcurrentOutputFileWriters": "64",
    # Not INT96, which has no time zone and is of Spark's past.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
"""Settings of the session while files are written."""
_BASE_NAME = "mapreduce.output.basename"
"""Hadoop's setting that says what the names of files begin with; Spark's committers heed it."""
_APART: Mapping[str, str] = {
    # Else who has written his files deletes what the tasks of others have not finished.
    "mapreduce.fileoutputcommitter.cleanup.skipped": "true",
}
_ATTEMPT = "mapreduce.job.application.attempt.id"
"""Names the folder in which a job's tasks write; 0 for all jobs of Spark."""
LESS_MAX = 7
"""So many times a batch is halved that retention overtakes while it is read."""
_GONE = "KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE"
_DAY_MS = 86_400_000
_TOLD_MAX = 10
"""So many holes of a batch are told one by one; the manifest has more of them."""
_NO_NAME = "__HIVE_DEFAULT_PARTITION__"
"""What Spark and Hive write for null into the name of a folder, and read as null."""
_log = logging.getLogger("dlog.spark")
# They would win over the offsets that are asked for.
_OF_TIMES = frozenset(
    {
        *("startingtimestamp", "startingoffsetsbytimestamp"),
        *("endingtimestamp", "endingoffsetsbytimestamp"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveJob:
    """What to archive, and where to. `source` are the options of the data source."""

    topics: tuple[str, ...]
    folder: str
    settings: ClientSettings
    source: Mapping[str, str] = field(default_factory=dict)
    batch_offsets: int = BATCH_OFFSETS
    task_records: int = TASK_RECORDS
    compression: str = "zstd"
    accept_loss: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """What a run has done."""

    batches: int
    records: int
    lag: int
    missing: int = 0
    """Offsets without a record that nothing explains; the manifests name them."""


class _Lost(Exception):  # noqa: N818 - no error: another run was first
    """Another run published the batch first."""


def archive(spark: SparkSession, job: ArchiveJob, observe: Observer = nobody) -> Archived:
    """Archive everything that the topics have when a batch is planned, and return."""
    if _NO_NAME in job.topics:
        raise OptionError(
            "DLOG_OPTION_VALUE",
            f"A topic of the name {_NO_NAME} cannot be archived.",
            "Readers of Parquet would take the folder of that name for one of no topic.",
        )
    run = _Run(spark, job, observe)
    batches = records = missing = 0
    while (done := run.batch()) is not None:
        batches, records = batches + 1, records + done.records
        missing += done.missing
        if done.lag == 0:
            break
    return Archived(batches=batches, records=records, lag=run.lag, missing=missing)


class _Run:
    """One run. Owner: the driver's thread."""

    def __init__(self, spark: SparkSession, job: ArchiveJob, observe: Observer) -> None:
        self._spark = spark
        self._job = job
        self._observe = observe
        self._archive = Archive(open_folder(job.folder, spark))
        self._halved = 0
        """How often the size of a batch is halved at present."""
        self.lag = 0

    def batch(self) -> BatchDone | None:
        """Archive the next batch; None when there is nothing to archive."""
        while True:
            started_s = time.monotonic()
            last = self._archive.last()
            origin = find_origin(self._job.settings, self._job.topics)
            check_same_origin(last, origin)
            ends = {} if last is None else last.ends
            number = 0 if last is None else last.batch + 1
            size = max(1, self._job.batch_offsets >> self._halved)
            ranges = plan_batch(ends, origin.partitions, size, accept_loss=self._job.accept_loss)
            if not ranges:
                self.lag = 0
                return None
            self._say("planned", number)
            try:
                manifest = self._write(number, last, origin, ranges)
            except _Lost:
                self._check_taken(number)
                continue
            except PySparkException as error:
                self._plan_less(error)
                continue
            self._halved = max(0, self._halved - 1)
            self.lag = lag_of(manifest.ends, origin.partitions)
            done = _done(manifest, time.monotonic() - started_s, self.lag)
            self._observe(done)
            return done

    def _plan_less(self, error: PySparkException) -> None:
        """Take less at once when retention was faster, and that is accepted; else raise.

        The next plan begins where the log begins then, and notes what is missing before it.
        """
        is_accepted = self._job.accept_loss and _GONE in str(error)
        if not is_accepted or self._halved >= LESS_MAX:
            raise error
        self._halved += 1

    def _check_taken(self, number: int) -> None:
        """Raise unless the number was taken by a whole batch: we would try for ever."""
        if self._archive.load(number) is None:
            raise DamagedArchiveError(
                f"Batch {number} has a folder in {self._job.folder} without a manifest.",
                "It is not part of the archive: delete that folder.",
            )

    def _write(
        self,
        number: int,
        last: Manifest | None,
        origin: Origin,
        ranges: Sequence[ArchivedRange],
    ) -> Manifest:
        self._archive.clean(number)
        staged = self._archive.stage(number)
        if staged is None:
            raise _Lost
        with self._taking_away(staged):
            content = self._write_files(staged, ranges)
            self._say("written", number)
            files = self._archive.data_files(staged)
            self._check_written(staged, files, content.rows)
            holes = self._holes(staged, files, ranges, content.rows)
        manifest = Manifest(
            batch=number,
            owner=staged.owner,
            created_ms=time.time_ns() // 1_000_000,
            cluster_id=origin.cluster_id,
            topic_ids={**(last.topic_ids if last else {}), **origin.topic_ids},
            ranges=tuple(ranges),
            ends=ends_after(last.ends if last else {}, origin.partitions, ranges),
            content=content,
            files=files,
            missing=holes.offsets,
            holes=holes.first,
        )
        # What was read may be another topic's, that was made while the tasks ran.
        with self._taking_away(staged):
            check_same_origin(manifest, find_again(self._job.settings, origin))
        with self._taking_away(staged, may_be_published=True):
            is_ours = self._archive.publish(staged, manifest, lambda name: self._say(name, number))
        if not is_ours:
            self._archive.withdraw(staged)
            raise _Lost
        _warn(manifest)
        self._say("published", number)
        self._archive.clean(number + 1)
        self._say("cleaned", number)
        return manifest

    def _write_files(self, staged: Staged, ranges: Sequence[ArchivedRange]) -> Content:
        wanted = [each for each in ranges if each.size]
        if not wanted:
            return Content(rows=0, record_bytes=0, checksum=0)
        records = read_ranges(self._spark, self._job.source, wanted, self._job.task_records)
        observation = Observation()
        target = join(self._archive.folder, staged.path)
        writer = (
            records.observe(observation, *content_of(records))
            .withColumn("date", _date())
            # Where folders cannot be moved, another run may be writing into this one.
            .write.mode("append")
            .option("compression", self._job.compression)
            .option(_BASE_NAME, staged.base_name)
            .partitionBy("topic", "date")
        )
        is_shared = not self._archive.folder.has_atomic_moves
        if is_shared:
            writer = writer.options(**_APART).option(_ATTEMPT, staged.attempt)
        with _set(self._spark, WRITING):
            writer.parquet(target)
        if is_shared:
            self._archive.folder.delete(staged.unfinished)
        found = observation.get
        return Content(
            rows=found["rows"], record_bytes=found["record_bytes"], checksum=found["checksum"]
        )

    def _check_written(self, staged: Staged, files: Mapping[str, int], rows: int) -> None:
        """Raise unless the files that a manifest would name have all rows that were written."""
        folder = self._archive.folder
        there = count_rows(self._spark, folder, [f"{staged.path}/{each}" for each in files])
        if there == rows:
            return
        raise DamagedArchiveError(
            f"Batch {staged.batch} has {rows} records, but only {there} are in files below "
            f"{folder.uri}. Nothing was published.",
            "All hosts that run tasks must share that folder: mount it there, or archive to HDFS "
            "or an object store.",
        )

    def _holes(
        self, staged: Staged, files: Mapping[str, int], ranges: Sequence[ArchivedRange], rows: int
    ) -> Holes:
        """Return which offsets have no record in the files, where each should have one."""
        if rows == sum(each.size for each in ranges):
            return NO_HOLES
        topics = {each.topic for each in ranges}
        whole = of_topics(ranges, find_compacted(self._job.settings, topics))
        if not whole:
            return NO_HOLES
        paths = [f"{staged.path}/{each}" for each in files]
        return find_holes(read_places(self._spark, self._archive.folder, staged.path, paths), whole)

    @contextmanager
    def _taking_away(self, staged: Staged, *, may_be_published: bool = False) -> Iterator[None]:
        """Take the files of a batch away that fails in this block, and go on where it was lost.

        Else each attempt would leave as many, on a disk that is full, say, until one succeeds.
        """
        try:
            yield
        except (SparkSourceError, PySparkException, Py4JError, OSError):
            with suppress(Py4JError, OSError):  # the error that is told is the first one
                self._check_unpublished(staged)
                # Once the folder has its name, nothing is left in the place that it was moved from.
                if self._archive.folder.has_atomic_moves or not may_be_published:
                    self._archive.withdraw(staged)
            raise

    def _check_unpublished(self, staged: Staged) -> None:
        there = self._archive.load(staged.batch)
        if there is not None and there.owner != staged.owner:
            self._archive.withdraw(staged)
            raise _Lost from None

    def _say(self, name: str, number: int) -> None:
        event: Event = Phase(name=name, batch=number)
        self._observe(event)


def _warn(manifest: Manifest) -> None:
    """Say which offsets of a batch hold no record; nobody asks for it, and somebody has to know."""
    for each in manifest.holes[:_TOLD_MAX]:
        _log.warning(
            "Archived offsets without a record topic=%s partition=%d from=%d to=%d batch=%d "
            "reason=nothing explains it",
            each.topic, each.partition, each.start_offset, each.end_offset - 1, manifest.batch,
        )  # fmt: skip
    told = sum(each.end_offset - each.start_offset for each in manifest.holes[:_TOLD_MAX])
    if told < manifest.missing:
        _log.warning(
            "Archived further offsets without a record count=%d batch=%d",
            manifest.missing - told, manifest.batch,
        )  # fmt: skip


@contextmanager
def _set(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Give settings to the session for the block."""
    before = {key: spark.conf.get(key, None) for key in values}
    for key, value in values.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            if old is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, old)


def _date() -> Column:
    """Return the day of the record's timestamp, UTC, whatever the session's time zone is."""
    days = sf.floor(sf.unix_millis("timestamp") / _DAY_MS)
    return sf.date_from_unix_date(days.cast("int"))


def read_ranges(
    spark: SparkSession,
    source: Mapping[str, str],
    ranges: Sequence[ArchivedRange],
    task_records: int,
    *,
    fail_on_data_loss: bool = True,
) -> DataFrame:
    """Return the records of exactly these ranges; raises OptionError for a source of others.

    Without `fail_on_data_loss` those that are gone are passed over.
    """
    for name in source:
        if name.lower() in _OF_TIMES:
            raise OptionError(
                "DLOG_OPTION_CONFLICT",
                f"Option {name} says where to read, but that is decided by the pipeline.",
                "Leave it out.",
            )
    partitions: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for each in ranges:
        partitions.setdefault(each.topic, []).append(each.partition)
        starts.setdefault(each.topic, {})[str(each.partition)] = each.start_offset
        ends.setdefault(each.topic, {})[str(each.partition)] = each.end_offset
    options = {
        **source,
        "assign": json.dumps(partitions),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
        "includeHeaders": "true",
        "failOnDataLoss": str(fail_on_data_loss).lower(),
        "maxRecordsPerPartition": str(task_records),
    }
    return spark.read.format("dlog").options(**options).load()


def _done(manifest: Manifest, seconds: float, lag: int) -> BatchDone:
    return BatchDone(
        batch=manifest.batch,
        records=manifest.content.rows,
        record_bytes=manifest.content.record_bytes,
        offsets=sum(each.size for each in manifest.ranges),
        files=len(manifest.files),
        seconds=seconds,
        lag=lag,
        missing=manifest.missing,
        lost=sum(each.start_offset - each.lost_from for each in manifest.ranges
                 if each.lost_from is not None),
    )  # fmt: skip
