"""Sides of an audit: a topic of a cluster, or its archive.

Each side says which offsets it should have, and gives the records of a range of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from dlog.spark.errors import DataLossError, SparkSourceError
from dlog.spark.pipelines.archive import TASK_RECORDS, read_ranges
from dlog.spark.pipelines.archives.archive_storage import Archive
from dlog.spark.pipelines.archives.archived import read_batches
from dlog.spark.pipelines.archives.contents import damaged
from dlog.spark.pipelines.archives.folders import open_folder
from dlog.spark.pipelines.archives.manifest import ArchivedRange, Hole, Manifest, check_chain
from dlog.spark.pipelines.origins import find_origin
from dlog.spark.settings import ClientSettings


class Extent(NamedTuple):
    """Where a side's partition begins and ends, exclusive; `lost`: ranges known not to be there."""

    start: int
    end: int
    lost: tuple[tuple[int, int], ...] = ()


class Side(Protocol):
    """One side of an audit."""

    def extents(self) -> dict[int, Extent]:
        """Return what each partition should have."""

    def starts(self) -> dict[int, int]:
        """Return where partitions begin now that may have moved since `extents`."""

    def records(self, wanted: Mapping[int, tuple[int, int]]) -> DataFrame:
        """Return the records of these offsets that are there, by partition; ends are exclusive."""

    def holes(self) -> list[Hole]:
        """Return offsets that are known not to have held a record when the side was made."""

    def problems(self) -> list[str]:
        """Return what is wrong with the side by itself, beside its offsets."""


@dataclass(slots=True)
class TopicSide:
    """A topic of a cluster; retention goes on in it while it is read."""

    spark: SparkSession
    settings: ClientSettings
    topic: str
    source: Mapping[str, str] = field(default_factory=dict)
    _topic_id: str = ""

    def extents(self) -> dict[int, Extent]:
        """Return the bounds of the partitions as they are now."""
        origin = find_origin(self.settings, [self.topic])
        self._topic_id = origin.topic_ids[self.topic]
        return {
            each.partition: Extent(each.start_offset, each.end_offset) for each in origin.partitions
        }

    def starts(self) -> dict[int, int]:
        """Return where the partitions begin now; raises DataLossError for a topic made anew."""
        origin = find_origin(self.settings, [self.topic])
        if origin.topic_ids[self.topic] != self._topic_id:
            raise DataLossError(
                "KAFKA_DATA_LOSS.PARTITIONS_DELETED",
                f"Topic {self.topic} was deleted and recreated while it was read.",
                "Run the audit again, of the new one.",
            )
        return {each.partition: each.start_offset for each in origin.partitions}

    def records(self, wanted: Mapping[int, tuple[int, int]]) -> DataFrame:
        """Return the records of these offsets."""
        ranges = [
            ArchivedRange(topic=self.topic, partition=partition, start_offset=start, end_offset=end)
            for partition, (start, end) in wanted.items()
        ]
        return read_ranges(self.spark, self.source, ranges, TASK_RECORDS, fail_on_data_loss=False)

    def holes(self) -> list[Hole]:
        """Return nothing: a log keeps no note of them."""
        return []

    def problems(self) -> list[str]:
        """Nothing: the cluster looks after itself."""
        return []


class ArchiveSide:
    """What an archive has of one topic."""

    def __init__(self, spark: SparkSession, folder: str, topic: str) -> None:
        self._spark = spark
        self._archive = Archive(open_folder(folder, spark))
        self._topic = topic
        self._manifests = self._archive.all()
        if not any(each.topic == topic for one in self._manifests for each in one.ranges):
            raise SparkSourceError("DLOG_NOT_ARCHIVED", f"{folder} has nothing of {topic}.", "")

    def _ranges(self, manifests: Sequence[Manifest]) -> list[ArchivedRange]:
        return [each for one in manifests for each in one.ranges if each.topic == self._topic]

    def extents(self) -> dict[int, Extent]:
        """Return what the manifests say."""
        found: dict[int, Extent] = {}
        for each in self._ranges(self._manifests):
            lost = () if each.lost_from is None else ((each.lost_from, each.start_offset),)
            before = found.get(each.partition)
            if before is None:
                start = each.start_offset
                found[each.partition] = Extent(start, each.end_offset)
            else:
                found[each.partition] = Extent(before.start, each.end_offset, before.lost + lost)
        return found

    def starts(self) -> dict[int, int]:
        """Return nothing: what is archived stays."""
        return {}

    def records(self, wanted: Mapping[int, tuple[int, int]]) -> DataFrame:
        """Return the records of these offsets; only batches that have some are read."""
        batches = [
            one
            for one in self._manifests
            if any(
                each.partition in wanted
                and each.start_offset < wanted[each.partition][1]
                and each.end_offset > wanted[each.partition][0]
                for each in self._ranges([one])
            )
        ]
        there = [self._archive.without_missing(each) for each in batches]
        records = read_batches(self._spark, self._archive.folder, there, passing_over_rot=True)
        lies = sf.lit(False)
        for partition, (start, end) in wanted.items():
            lies |= (sf.col("partition") == partition) & sf.col("offset").between(start, end - 1)
        return records.where((sf.col("topic") == self._topic) & lies)

    def holes(self) -> list[Hole]:
        """Return what the manifests have noted."""
        return [each for one in self._manifests for each in one.holes if each.topic == self._topic]

    def problems(self) -> list[str]:
        """Return what is wrong between and within batches: of their manifests, files, records."""
        found = check_chain(self._manifests)
        manifests = {each.batch: each for each in self._manifests}
        for batch in self._archive.batches():
            if batch not in manifests:
                found.append(f"batch={batch:08d} has no manifest and is not part of the archive")
        whole = []
        for each in self._manifests:
            harm = self._archive.harm(each)
            found += [*harm, *self._archive.foreign(each)]
            if not harm and self._ranges([each]):
                whole.append(each)
        return found + damaged(self._spark, self._archive.folder, whole)
