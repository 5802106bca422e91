"""Planners of streaming queries as Spark makes and asks them, without a JVM."""

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from dlog.spark.reading.stream_reader import DlogStreamReader
from dlog.spark.source import DlogDataSource
from tests.spark.log import Log

ALL = ReadAllAvailable()


def reader_of(log: Log, readers: list[DlogStreamReader], **options: str) -> DlogStreamReader:
    """Return a reader as Spark makes it."""
    source = DlogDataSource(log.options(**{"startingOffsets": "earliest", **options}))
    reader = source.streamReader(source.schema())
    assert isinstance(reader, DlogStreamReader)
    readers.append(reader)
    return reader


def spans(ranges: list[InputPartition]) -> list[str]:
    """Return what each task reads, in words."""
    return [str(each) for each in ranges]
