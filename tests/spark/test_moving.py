"""Checkpoints that another source has written: taken over where they are of Spark's Kafka source.

`bench.compare_spark` moves real ones of its jar; here they are written as it writes them.
"""

import json
import uuid
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.spark.log import Log
from tests.spark.streams import Stream

CONF = {
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state"
    ".HDFSBackedStateStoreProvider",
    "spark.sql.shuffle.partitions": "200",
}


def write_checkpoint(folder: Path, offsets: list[str], commits: int) -> None:
    """Write what a query leaves whose batches ended at `offsets`, the first ones committed."""
    for name in ("offsets", "commits", "sources/0"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
    # Where the first batch began: Spark's Kafka source keeps it there.
    (folder / "sources" / "0" / "0").write_bytes(b"\0v1\n" + offsets[0].encode())
    for number, each in enumerate(offsets):
        head = {"batchWatermarkMs": 0, "batchTimestampMs": 1_700_000_000_000, "conf": CONF}
        text = f"v1\n{json.dumps(head)}\n{each}"
        (folder / "offsets" / str(number)).write_text(text)
        if number < commits:
            (folder / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')


def at(log: Log, *offsets: int) -> str:
    return json.dumps({log.topic: {str(number): each for number, each in enumerate(offsets)}})


@pytest.mark.parametrize("commits", [2, 1])
def test_a_query_goes_on_where_the_kafka_source_was(
    spark: SparkSession, log: Log, tmp_path: Path, commits: int
) -> None:
    """With the next record, or with the batch that was under way: just as long as it was."""
    log.create(2)
    for partition in range(2):
        log.write(partition, [b"%d" % number for number in range(20)])
    stream = Stream(spark, log, tmp_path / "query", startingOffsets="earliest")
    write_checkpoint(stream.folder / "checkpoint", [at(log, 5, 3), at(log, 9, 8)], commits)
    done = stream.run()
    begins = {0: 9, 1: 8} if commits == 2 else {0: 5, 1: 3}
    assert stream.rows() == sorted(row for row in log.rows if row[1] >= begins[row[0]])
    sizes = [each["numInputRows"] for each in done]
    assert sizes == ([23] if commits == 2 else [9, 23])


@pytest.mark.parametrize(
    ("offset", "said"),
    [
        ('{"logOffset":3}', r"\[DLOG_CHECKPOINT\].*new checkpointLocation.*startingOffsets"),
        ('{"other":{"0":3}}', r"KAFKA_DATA_LOSS\.PARTITIONS_DELETED.*other-0"),
    ],
)
def test_a_checkpoint_of_another_query_is_refused_before_anything_is_read(
    spark: SparkSession, log: Log, tmp_path: Path, offset: str, said: str
) -> None:
    log.create(1)
    log.write(0, [b"a", b"b"])
    stream = Stream(spark, log, tmp_path / "query")
    write_checkpoint(stream.folder / "checkpoint", [offset], 1)
    with pytest.raises(StreamingQueryException, match=f"(?s){said}"):
        stream.run()
    assert stream.rows() == []
