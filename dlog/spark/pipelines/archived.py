"""An archive as Spark reads it, by its manifests: only batches that are part of it."""

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from dlog.spark.pipelines.folders import Folder, join
from dlog.spark.pipelines.manifest import Manifest, folder_of

HEADERS = "array<struct<key: string, value: binary>>"
SCHEMA = (
    "key binary, value binary, partition int, offset bigint, timestamp timestamp, "
    f"timestampType int, headers {HEADERS}, batch int, topic string, date date"
)


def read_batches(spark: SparkSession, folder: Folder, manifests: Sequence[Manifest]) -> DataFrame:
    """Return the records of these batches, with their topics, dates and numbers of batches.

    The files are those that the manifests name: one that is missing is an error, one that was put
    there later is not read.
    """
    paths = [
        join(folder, f"{folder_of(each.batch)}/{path}") for each in manifests for path in each.files
    ]
    if not paths:
        return spark.createDataFrame([], SCHEMA)
    reader = spark.read.schema(SCHEMA).option("basePath", folder.uri)
    return reader.parquet(*paths)
