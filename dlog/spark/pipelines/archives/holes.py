"""Holes of an archived range: offsets without a record that nothing explains.

A topic that is compacted has such places, and so has one that was written by transactions, which
only other clusters than ours know. In any other log each offset has its record: what has none was
lost where it was stored. The archive cannot bring it back; it says so, and notes it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from dlog.spark.pipelines.archives.manifest import ArchivedRange, Hole

HOLES_MAX = 100
"""So many are named of each batch; of further ones only the offsets are counted."""
_PLACE = "topic string, partition int, offset bigint"


@dataclass(frozen=True, slots=True)
class Holes:
    """All holes of a batch: how many offsets they have, and the first `HOLES_MAX` of them."""

    offsets: int
    first: tuple[Hole, ...]


NO_HOLES = Holes(0, ())


def find_holes(records: DataFrame, ranges: Sequence[ArchivedRange]) -> Holes:
    """Return which offsets of these ranges are in none of the records, which may have others, too.

    `records` need the columns topic, partition and offset.
    """
    # Before each range, and behind it: then every hole lies between two neighbours.
    edges = [
        (each.topic, each.partition, offset)
        for each in ranges
        for offset in (each.start_offset - 1, each.end_offset)
    ]
    spark = records.sparkSession
    ours = [(each.topic, each.partition) for each in ranges]
    wanted = spark.createDataFrame(ours, "topic string, partition int")
    places = (
        records.select(sf.col("topic").cast("string"), "partition", "offset")
        .join(sf.broadcast(wanted), ["topic", "partition"], "left_semi")
        .unionByName(spark.createDataFrame(edges, _PLACE))
    )
    following = sf.lead("offset").over(Window.partitionBy("topic", "partition").orderBy("offset"))
    holes = (
        places.withColumn("end", following)
        .where(sf.col("end") > sf.col("offset") + 1)
        .withColumn("start", sf.col("offset") + 1)
    )
    size = sf.coalesce(sf.sum(sf.col("end") - sf.col("start")), sf.lit(0))
    (total,) = holes.agg(size.alias("offsets")).collect()
    rows = holes.sort("topic", "partition", "start").limit(HOLES_MAX).collect()
    return Holes(
        total["offsets"],
        tuple(
            Hole(
                topic=row["topic"],
                partition=row["partition"],
                start_offset=row["start"],
                end_offset=row["end"],
            )
            for row in rows
        ),
    )


def of_topics(
    ranges: Sequence[ArchivedRange], is_compacted: Mapping[str, bool]
) -> list[ArchivedRange]:
    """Return the ranges in which every offset should have its record."""
    return [each for each in ranges if each.size and not is_compacted.get(each.topic, False)]
