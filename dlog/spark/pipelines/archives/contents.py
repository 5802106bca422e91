"""Contents of archived files, checked against their manifests.

A manifest names each file's size, and of the records the XOR of their hashes as they were read from
the log: what a disk or a hand has changed since then does not go by. Reads everything.
"""

from collections.abc import Mapping, Sequence

from pyspark.sql import SparkSession

from dlog.spark.pipelines.archives.archived import read_batches
from dlog.spark.pipelines.archives.folders import Folder
from dlog.spark.pipelines.archives.hashes import content_of
from dlog.spark.pipelines.archives.manifest import Content, Manifest, folder_of

_NOTHING = Content(rows=0, record_bytes=0, checksum=0)


def damaged(spark: SparkSession, folder: Folder, manifests: Sequence[Manifest]) -> list[str]:
    """Return which batches have not the records that were archived, in words.

    Their files must be there.
    """
    found = _contents(spark, folder, manifests)
    return [
        words for each in manifests if (words := _difference(each, found.get(each.batch, _NOTHING)))
    ]


def _contents(
    spark: SparkSession, folder: Folder, manifests: Sequence[Manifest]
) -> Mapping[int, Content]:
    records = read_batches(spark, folder, manifests, passing_over_rot=True)
    rows = records.groupBy("batch").agg(*content_of(records)).collect()
    return {
        row["batch"]: Content(
            rows=row["rows"], record_bytes=row["record_bytes"], checksum=row["checksum"]
        )
        for row in rows
    }


def _difference(manifest: Manifest, found: Content) -> str:
    wanted, name = manifest.content, folder_of(manifest.batch)
    if found.rows != wanted.rows:
        return f"{name} has {found.rows} records, its manifest says {wanted.rows}"
    if found == wanted:
        return ""
    ranges = ", ".join(
        f"{each.topic}-{each.partition} from {each.start_offset} to {each.end_offset}"
        for each in manifest.ranges
        if each.size
    )
    return f"{name} has other records than were archived, among {ranges}"
