"""Replay job: an archive into a topic, each record once, in order, through failures.

Batch by batch. The rows of a batch that go to one partition are always the same in the same order;
`dlog.spark.pipelines.replay_task` passes over those that are there. So a killed run is started
again, and goes on where it was, within a batch too. Two runs at once are not guarded against, but
seen: the target has more records then than the archive.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pyarrow
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, StructType

from dlog.spark.errors import OptionError, SparkSourceError
from dlog.spark.pipelines.archives.archive_storage import Archive
from dlog.spark.pipelines.archives.archived import read_batches
from dlog.spark.pipelines.archives.contents import damaged
from dlog.spark.pipelines.archives.folders import open_folder
from dlog.spark.pipelines.archives.manifest import (
    DamagedArchiveError,
    Manifest,
    check_chain,
    folder_of,
)
from dlog.spark.pipelines.archives.resumption import Origin
from dlog.spark.pipelines.events import BatchDone, Observer, Phase, nobody
from dlog.spark.pipelines.origins import find_origin
from dlog.spark.pipelines.replay_state import (
    BY_KEY,
    KEEP,
    DisturbedReplayError,
    Progress,
    ReplayStart,
)
from dlog.spark.pipelines.replay_task import Placing, ReplayTask
from dlog.spark.pipelines.settling import SettledEnds
from dlog.spark.reading.lookup import Lookup
from dlog.spark.settings import ClientSettings
from dlog.types import PartitionId, TopicPartition

_RESULT = "target int, rows bigint, written bigint"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayJob:
    """Which topic of which archive goes where. `name` tells replays into one topic apart."""

    folder: str
    topic: str
    target: str
    settings: ClientSettings
    placing: str = KEEP
    name: str = ""
    compression: str = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a run has done: records written now, and passed over because they were there."""

    batches: int
    written: int
    passed_over: int


def replay(spark: SparkSession, job: ReplayJob, observe: Observer = nobody) -> Replayed:
    """Write what the target lacks of the archive as it is now, and return."""
    if str(spark.conf.get("spark.speculation", "false")).lower() == "true":
        raise OptionError(
            "DLOG_SPECULATION",
            "With spark.speculation two tasks would write the same records.",
            "Set it to false.",
        )
    archive = Archive(open_folder(job.folder, spark))
    manifests = archive.all()
    if not any(each.topic == job.topic for one in manifests for each in one.ranges):
        raise SparkSourceError(
            "DLOG_NOT_ARCHIVED", f"{job.folder} has nothing of topic {job.topic}.", ""
        )
    origin = find_origin(job.settings, [job.target])
    progress = Progress(archive.folder, job.name or f"{job.topic}-to-{job.target}")
    wanted = _start(job, origin)
    _check_partitions(job, manifests, wanted)
    if not progress.has_begun():
        wanted = replace(wanted, ends=_settled(job, wanted))
    begun = progress.begin(wanted)
    observe(Phase(name="begun", batch=-1))
    done = progress.done()
    first, ends = (0, begun.ends) if done is None else (done[0] + 1, done[1])
    todo = [each for each in manifests if each.batch >= first]
    _check_chain(job, todo, None if done is None else first)
    run = _Run(spark, job, archive, progress, observe)
    batches = written = passed_over = 0
    for index, manifest in enumerate(todo):
        ends, rows, new = run.batch(manifest, ends, left=todo[index + 1 :])
        batches, written, passed_over = batches + 1, written + new, passed_over + rows - new
    return Replayed(batches=batches, written=written, passed_over=passed_over)


def _start(job: ReplayJob, origin: Origin) -> ReplayStart:
    return ReplayStart(
        source_topic=job.topic,
        target_topic=job.target,
        target_id=origin.topic_ids[job.target],
        cluster_id=origin.cluster_id,
        placing=job.placing,
        ends={each.partition: each.end_offset for each in origin.partitions},
    )


def _settled(job: ReplayJob, start: ReplayStart) -> dict[int, int]:
    """Return where the target's partitions end, what is not committed yet included.

    Else a task would take what was there before the replay for what an earlier attempt has left.
    """
    settings = replace(job.settings, lookup_deadline_s=job.settings.deadline_s)
    keys = [TopicPartition(job.target, PartitionId(each)) for each in sorted(start.ends)]
    with Lookup(settings) as lookup:
        ends = SettledEnds(lookup, settings.deadline_s)
        ends.watch(keys)
        return {key.partition: ends.wait(key) for key in keys}


def _check_partitions(job: ReplayJob, manifests: list[Manifest], start: ReplayStart) -> None:
    archived = {
        each.partition for one in manifests for each in one.ranges if each.topic == job.topic
    }
    count = max(archived) + 1
    if job.placing == KEEP and count > len(start.ends):
        raise OptionError(
            "DLOG_TOO_FEW_PARTITIONS",
            f"{job.topic} was archived with {count} partitions, {job.target} has "
            f"{len(start.ends)}.",
            f"Give it {count} (dlogctl topic alter), or --place {BY_KEY}.",
        )


def _check_chain(job: ReplayJob, todo: list[Manifest], first: int | None) -> None:
    """Raise where batches are missing that were not replayed yet: their records would be lost."""
    problems = check_chain(todo)
    if first is not None and todo and todo[0].batch != first:
        problems.insert(0, f"{folder_of(first)} is missing")
    if problems:
        raise DamagedArchiveError(f"{job.folder}: {'; '.join(problems)}.")


class _Run:
    """One run. Owner: the driver's thread."""

    def __init__(
        self,
        spark: SparkSession,
        job: ReplayJob,
        archive: Archive,
        progress: Progress,
        observe: Observer,
    ) -> None:
        self._spark = spark
        self._job = job
        self._archive = archive
        self._progress = progress
        self._observe = observe

    def batch(
        self, manifest: Manifest, bases: Mapping[int, int], left: list[Manifest]
    ) -> tuple[dict[int, int], int, int]:
        """Write what a batch lacks; return where partitions end then, its rows, those written."""
        started_s = time.monotonic()
        self._say("planned", manifest)
        self._check_whole(manifest)
        counts = self._write(manifest, bases)
        self._say("written", manifest)
        ends = {
            partition: base + counts.get(partition, (0, 0))[0] for partition, base in bases.items()
        }
        self._check_ends(ends)
        self._progress.finish(manifest.batch, ends)
        self._say("finished", manifest)
        rows = sum(each[0] for each in counts.values())
        written = sum(each[1] for each in counts.values())
        self._observe(
            BatchDone(
                batch=manifest.batch,
                records=written,
                record_bytes=manifest.content.record_bytes * written // max(1, rows),
                offsets=rows,
                files=len(manifest.files),
                seconds=time.monotonic() - started_s,
                lag=sum(each.size for one in left for each in one.ranges
                        if each.topic == self._job.topic),
            )
        )  # fmt: skip
        return ends, rows, written

    def _check_whole(self, manifest: Manifest) -> None:
        """Raise unless the batch has the files and the records that were archived."""
        folder = self._archive.folder
        problems = self._archive.harm(manifest)
        if not problems:
            problems = damaged(self._spark, folder, [manifest])
        if problems:
            raise DamagedArchiveError(f"{folder.uri}: {'; '.join(problems)}.")

    def _write(self, manifest: Manifest, bases: Mapping[int, int]) -> dict[int, tuple[int, int]]:
        job = self._job
        records = read_batches(self._spark, self._archive.folder, [manifest])
        placed = _placed(records.where(sf.col("topic") == job.topic), job, len(bases))
        tasks = min(len(bases), int(self._spark.conf.get("spark.sql.shuffle.partitions") or 1))
        task = ReplayTask(
            settings=job.settings,
            topic=job.target,
            bases=dict(bases),
            compression=job.compression,
            task_count=tasks,
        )
        results = (
            placed.repartitionById(tasks, sf.col("target") % tasks)
            .sortWithinPartitions("target", "partition", "offset")
            .mapInArrow(task, _RESULT)
            .collect()
        )
        return {row["target"]: (row["rows"], row["written"]) for row in results}

    def _check_ends(self, ends: Mapping[int, int]) -> None:
        """Raise unless the target's partitions end exactly there."""
        topic = self._job.target
        wanted = [TopicPartition(topic, PartitionId(each)) for each in sorted(ends)]
        with Lookup(self._job.settings) as lookup:
            # What somebody else has written counts before it is committed, too.
            found = lookup.log_ends(wanted)
        for key in wanted:
            if found.get(key) != ends[key.partition]:
                raise DisturbedReplayError(
                    f"{topic}-{key.partition} ends at {found.get(key)}, not at "
                    f"{ends[key.partition]} as the archive has it."
                )

    def _say(self, name: str, manifest: Manifest) -> None:
        self._observe(Phase(name=name, batch=manifest.batch))


def _placed(records: DataFrame, job: ReplayJob, partition_count: int) -> DataFrame:
    kept = records.select("key", "value", "timestamp", "headers", "partition", "offset")
    if job.placing == KEEP:
        return kept.withColumn("target", sf.col("partition"))
    schema = StructType([*kept.schema.fields]).add("target", IntegerType())
    arrow: pyarrow.Schema = to_arrow_schema(schema, timezone="UTC")
    return kept.mapInArrow(Placing(partition_count, True, arrow), schema)
