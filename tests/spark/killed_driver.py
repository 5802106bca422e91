"""A program that streams a topic to files, and to another topic, until somebody kills it.

python -m tests.spark.killed_driver FOLDER TARGET OPTIONS   (as JSON)
"""

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from dlog.spark.source import DlogDataSource
from tests.spark.streams import copying, write_batch


def main(folder: Path, target: str, options: dict[str, str]) -> None:
    """Run the queries without end."""
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "512m")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    session.dataSource.register(DlogDataSource)
    frame = session.readStream.format("dlog").options(**options).load()
    query = (
        frame.writeStream.foreachBatch(lambda batch, number: write_batch(folder, batch, number))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(processingTime="0 seconds")
        .start()
    )
    copying(session, folder, target, options).trigger(processingTime="0 seconds").start()
    query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
