"""Delays of flights in windows of an hour, kept up to date: a stream with a watermark.

    python examples/spark/delays_stream.py 127.0.0.1:9092 flights /srv/delays

Appends each window once, when it is whole. `availableNow` ends at the present end of the topic and
leaves the last windows open: they come with a later run, which goes on from the checkpoint.
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from dlog.spark.pipelines.delays import delays_as_stream
from dlog.spark.pipelines.session import running_session


def start(spark: SparkSession, bootstrap: str, topic: str, folder: str) -> StreamingQuery:
    """Start the query that writes windows to `folder`."""
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "100000",
    }
    return (
        delays_as_stream(spark, options)
        .writeStream.format("parquet")
        .option("checkpointLocation", f"{folder}/_checkpoint")
        .trigger(availableNow=True)
        .start(folder)
    )


if __name__ == "__main__":
    with running_session("delays") as session:
        start(session, *sys.argv[1:4]).awaitTermination()
