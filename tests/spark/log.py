"""A topic as the tests of Spark write it, and what a query must give of it."""

from collections.abc import Callable, Iterable
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from dlog.batch.records import Record, encode
from dlog.client.blocking import Admin, BlockingClient
from dlog.client.cluster import partition_calls
from dlog.client.cluster.bootstrap import parse_bootstrap
from dlog.compression import Codec

DAY_MS = 86_400_000
Row = tuple[int, int, bytes]
"""Partition, offset, value."""


class Log:
    """One topic of a cluster. Owner: one test."""

    def __init__(self, bootstrap: str, admin: Admin, topic: str) -> None:
        self.bootstrap = bootstrap
        self.admin = admin
        self.topic = topic
        self.rows: list[Row] = []
        """All records that were written, in order of each partition."""

    def create(self, partition_count: int = 2, **settings: Any) -> None:
        """Make the topic; its records are old, and stay all the same."""
        configs = {"retention.ms": "-1", **settings.pop("configs", {})}
        self.admin.create_topic(self.topic, partitions=partition_count, configs=configs, **settings)

    def write(
        self,
        partition: int,
        values: Iterable[bytes],
        *,
        timestamp_ms: Callable[[int], int] = lambda number: 20_000 * DAY_MS + number,
        codec: Codec = Codec.NONE,
    ) -> None:
        """Append one batch to a partition; timestamps are given by the record's number in it."""
        records = [
            Record(
                key=b"k%d" % number,
                value=value,
                headers=(("h", b"%d" % number), ("none", None)),
                timestamp_ms=timestamp_ms(number),
                offset=number,
            )
            for number, value in enumerate(values)
        ]
        batch = bytes(encode(records, codec=codec))
        with BlockingClient(parse_bootstrap(self.bootstrap)) as client:
            cluster = client.cluster

            async def send() -> int:
                answer = await cluster.run(
                    lambda: cluster.leader(self.topic, partition),
                    lambda node: partition_calls.produce(
                        node, self.topic, partition, batch, acks=-1
                    ),
                    topic=self.topic,
                )
                assert answer is not None
                return answer.base_offset

            first = client.run(send)
        self.rows += [
            (partition, first + number, record.value or b"")
            for number, record in enumerate(records)
        ]

    def trim(self, partition: int, offset: int) -> None:
        """Delete the records before an offset, as retention does."""
        with BlockingClient(parse_bootstrap(self.bootstrap)) as client:
            cluster = client.cluster
            client.run(
                lambda: cluster.run(
                    lambda: cluster.leader(self.topic, partition),
                    lambda node: partition_calls.delete_records(
                        node, self.topic, {partition: offset}
                    ),
                    topic=self.topic,
                )
            )
        self.rows = [row for row in self.rows if row[0] != partition or row[1] >= offset]

    def options(self, **extra: str) -> dict[str, str]:
        """Return the options of a query that reads the topic, or what a pattern finds."""
        what = {} if "subscribePattern" in extra else {"subscribe": self.topic}
        return {"kafka.bootstrap.servers": self.bootstrap, **what, **extra}

    def read(self, spark: SparkSession, **extra: str) -> DataFrame:
        """Return a batch query."""
        return spark.read.format("dlog").options(**self.options(**extra)).load()


def rows_of(frame: DataFrame) -> list[Row]:
    """Return what a query gives, in the order of partitions and offsets."""
    found = frame.select("partition", "offset", "value").collect()
    return sorted((row[0], row[1], bytes(row[2])) for row in found)
