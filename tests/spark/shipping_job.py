"""A job for sessions of their own: what it writes and reads it tells as JSON, on its last line.

Run as a program, so that neither the environment nor the session of the tests is in the way.
"""

import json
import logging
import sys
import tempfile
import time
from typing import Any

from pyspark.sql import SparkSession

import dlog
from dlog.spark.executors import check_executors
from dlog.spark.registration import register


def run(spark: SparkSession, bootstrap: str, topics: list[str], codec: str) -> dict[str, Any]:
    """Write numbers, read them, and stream them from the first topic to the second."""
    rows = spark.range(0, 4000, 1, 4).selectExpr(
        "cast(id as string) as value", "cast(id as string) as key"
    )
    cluster = {"kafka.bootstrap.servers": bootstrap}
    rows.write.format("dlog").options(
        **cluster, topic=topics[0], **{"kafka.compression.type": codec}
    ).mode("append").save()
    read = spark.read.format("dlog").options(**cluster, subscribe=topics[0]).load()
    found = read.selectExpr("cast(value as string) as value").collect()
    stream = spark.readStream.format("dlog").options(
        **cluster, subscribe=topics[0], startingOffsets="earliest"
    )
    query = (
        stream.load()
        .select("key", "value")
        .writeStream.format("dlog")
        .options(**cluster, topic=topics[1])
        .option("checkpointLocation", tempfile.mkdtemp())
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(100)
    assert sorted(int(row[0]) for row in found) == [*range(4000)]
    return {"dlog": dlog.__file__}


def main(settings: dict[str, Any]) -> None:
    """Open a session as the settings say, and run."""
    logging.basicConfig()
    builder = SparkSession.builder
    for name, value in settings["conf"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    started_s = time.monotonic()
    register(spark)
    register(spark)
    registered_s = time.monotonic() - started_s
    told = run(spark, settings["bootstrap"], settings["topics"], settings["codec"])
    told["executors"] = check_executors(spark)
    told["register_s"] = registered_s
    spark.stop()
    print(json.dumps(told))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
