"""A client of Spark Connect that writes and reads; its server is started by the session itself."""

import json
import sys
import tempfile
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dlog.spark.errors import SparkSourceError
from dlog.spark.registration import register


def main(settings: dict[str, Any]) -> None:
    """Run what the settings say: with or without `register`, after a refusal if it `goes_on`."""
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    refused = ""
    if settings["register"]:
        try:
            register(spark, check=settings.get("check"), ship=settings.get("ship", True))
        except SparkSourceError as failure:
            refused = str(failure)
            if not settings.get("goes_on"):
                print(json.dumps({"refused": refused}))
                return
            register(spark, check=True)
        register(spark)
    cluster = {"kafka.bootstrap.servers": settings["bootstrap"]}
    first, second = settings["topics"]
    frame = spark.range(0, 1000, 1, 2).selectExpr("cast(id as string) as value")
    frame.write.format("dlog").options(**cluster, topic=first).mode("append").save()
    read = spark.read.format("dlog").options(**cluster, subscribe=first).load()
    found = read.selectExpr("cast(value as string) as value").collect()
    assert sorted(int(row[0]) for row in found) == [*range(1000)]
    error = ""
    try:
        query = (
            spark.readStream.format("dlog")
            .options(**cluster, subscribe=first, startingOffsets="earliest")
            .load()
            .select("value")
            .writeStream.format("dlog")
            .options(**cluster, topic=second)
            .option("checkpointLocation", tempfile.mkdtemp())
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(100)
    except PySparkException as failure:
        error = str(failure)
    spark.stop()
    print(json.dumps({"stream_error": error, "refused": refused}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
