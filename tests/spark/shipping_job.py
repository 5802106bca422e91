"""A job for sessions of their own: what it writes and reads it tells as JSON, on its last line.

Run as a program, so that neither the environment nor the session of the tests is in the way.
"""

import json
import logging
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import dlog
from dlog.client.blocking import Admin
from dlog.spark.install.executors import check_executors
from dlog.spark.pipelines.archive import ArchiveJob, archive
from dlog.spark.pipelines.replay import ReplayJob, replay
from dlog.spark.registration import register
from dlog.spark.settings import ClientSettings


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


def run_pipelines(spark: SparkSession, bootstrap: str, topic: str, folder: str) -> dict[str, Any]:
    """Archive the topic, and replay it into another one."""
    settings = ClientSettings(bootstrap=bootstrap)
    source = {"kafka.bootstrap.servers": bootstrap}
    target = f"{topic}-replayed"
    with Admin(bootstrap) as admin:
        admin.create_topic(target, partitions=2)
    job = ArchiveJob(topics=(topic,), folder=folder, settings=settings, source=source)
    archived = archive(spark, job)
    replayed = replay(
        spark, ReplayJob(folder=folder, topic=topic, target=target, settings=settings)
    )
    return {"archived": archived.records, "replayed": replayed.written, "folder": folder}


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
    if "folder" in settings:
        bootstrap, topic = settings["bootstrap"], settings["topics"][0]
        told |= run_pipelines(spark, bootstrap, topic, settings["folder"])
        folder = Path(settings["folder"]).with_name("kills")
        # Not where this is submitted alone: there is nothing of the tests there.
        from tests.spark.executor_kills import Kills

        told["kills"] = Kills(spark, bootstrap, settings["killed"], folder).run()
    told["register_s"] = registered_s
    spark.stop()
    print(json.dumps(told))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
