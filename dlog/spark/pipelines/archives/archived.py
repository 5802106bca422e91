"""Archive as Spark reads it: only batches that a manifest names."""

import re
from collections.abc import Iterable, Sequence

from pyspark.sql import DataFrame, SparkSession

from dlog.spark.pipelines.archives.folders import Folder, join
from dlog.spark.pipelines.archives.manifest import Manifest, folder_of

_OF_PATTERNS = re.compile(r"[{}\[\]*?\\]")
HEADERS = "array<struct<key: string, value: binary>>"
SCHEMA = (
    "key binary, value binary, partition int, offset bigint, timestamp timestamp, "
    f"timestampType int, headers {HEADERS}, batch int, topic string, date date"
)
_PLACES = "partition int, offset bigint, topic string, date date"


def read_batches(
    spark: SparkSession,
    folder: Folder,
    manifests: Sequence[Manifest],
    *,
    passing_over_rot: bool = False,
) -> DataFrame:
    """Return the records of these batches, with their topics, dates and numbers of batches.

    The files are those that the manifests name: one that is missing is an error, one that was put
    there later is not read. `passing_over_rot`: what does not read any more ends its file, for
    those who count what there is.
    """
    paths = [
        join(folder, f"{folder_of(each.batch)}/{path}") for each in manifests for path in each.files
    ]
    if not paths:
        return spark.createDataFrame([], SCHEMA)
    reader = spark.read.schema(SCHEMA).option("basePath", folder.uri)
    reader = reader.option("ignoreCorruptFiles", passing_over_rot)
    return reader.parquet(*map(_as_pattern, paths))


def count_rows(spark: SparkSession, folder: Folder, paths: Iterable[str]) -> int:
    """Return how many rows these files have: Parquet says that in each file's footer."""
    named = [_as_pattern(join(folder, path)) for path in paths]
    return spark.read.schema("offset bigint").parquet(*named).count() if named else 0


def read_places(spark: SparkSession, folder: Folder, base: str, paths: Iterable[str]) -> DataFrame:
    """Return topic, partition and offset of the records in these files of the batch at `base`."""
    named = [_as_pattern(join(folder, path)) for path in paths]
    if not named:
        return spark.createDataFrame([], _PLACES)
    reader = spark.read.schema(_PLACES).option("basePath", join(folder, base))
    return reader.parquet(*named).select("topic", "partition", "offset")


def _as_pattern(path: str) -> str:
    """Return what Spark reads exactly this path by: it takes paths for patterns."""
    return _OF_PATTERNS.sub(r"\\\g<0>", path)
