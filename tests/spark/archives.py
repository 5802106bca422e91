"""Archives as other programs see them: read by pyarrow alone, compared with the topic."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.dataset
import pytest
from pyspark.sql import DataFrame, SparkSession

from dlog.spark.pipelines.archive import ArchiveJob, read_ranges
from dlog.spark.pipelines.events import BatchDone, Event, Phase
from dlog.spark.reading.rows import COLUMN_TYPES
from dlog.spark.settings import ClientSettings
from tests.spark.log import DAY_MS, Log

Row = tuple[Any, ...]
"""Topic, partition, offset, timestamp, its type, key, value, headers."""
COLUMNS = ("topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers")


def make_topic(log: Log, records: int = 300, partitions: int = 2) -> None:
    """Make and fill a topic whose records are of three days."""
    log.create(partitions, configs={"retention.ms": "-1"})
    fill(log, records, partitions)


def fill(log: Log, records: int, partitions: int = 2) -> None:
    """Append so many records to each partition, of three days, in turn."""
    for partition in range(partitions):
        log.write(
            partition,
            [b"%d-%d" % (partition, number) * (number % 5) for number in range(records)],
            timestamp_ms=lambda number: (20_000 + number % 3) * DAY_MS + number,
        )


def job_of(log: Log, folder: Path | str, **changes: Any) -> ArchiveJob:
    """Return the job that archives the topic."""
    return ArchiveJob(
        topics=(log.topic,),
        folder=str(folder),
        settings=ClientSettings(bootstrap=log.bootstrap),
        source={"kafka.bootstrap.servers": log.bootstrap},
        **changes,
    )


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        return tuple((each["key"], each["value"]) for each in value)
    return bytes(value) if isinstance(value, bytearray) else value


def rows_of_topic(spark: SparkSession, log: Log) -> list[Row]:
    """Return everything that the topic has."""
    found = log.read(spark, includeHeaders="true").select(*COLUMNS).toArrow().to_pylist()
    rows = [tuple(_cell(row[name]) for name in COLUMNS) for row in found]
    return sorted(rows, key=lambda row: row[:3])


def rows_of_archive(folder: Path) -> list[Row]:
    """Return everything that any reader of Parquet finds there."""
    if not folder.exists():
        return []
    found = pyarrow.dataset.dataset(folder, format="parquet", partitioning="hive").to_table()
    if not found.num_rows:
        return []
    days = found.column("timestamp").cast(pyarrow.timestamp("s"), safe=False)
    dates = [each.date().isoformat() for each in days.to_pylist()]
    assert dates == [str(each) for each in found.column("date").to_pylist()]
    rows = [tuple(_cell(row[name]) for name in COLUMNS) for row in found.to_pylist()]
    return sorted(rows, key=lambda row: row[:3])


def rows_to_replay(values: dict[int, list[bytes]]) -> pyarrow.RecordBatch:
    """Return what Spark gives to a task of a replay: values by the partition that they go to."""
    flat = [value for mine in values.values() for value in mine]
    keys = [b"k%d" % number for mine in values.values() for number in range(len(mine))]
    times = pyarrow.array([0] * len(flat), COLUMN_TYPES["timestamp"])
    targets = [target for target, mine in values.items() for _ in mine]
    return pyarrow.record_batch(
        {
            "key": pyarrow.array(keys),
            "value": pyarrow.array(flat, pyarrow.binary()),
            "timestamp": times,
            "headers": pyarrow.nulls(len(flat), COLUMN_TYPES["headers"]),
            "target": pyarrow.array(targets, pyarrow.int32()),
        }
    )


def rot(folder: Path, before: bytes, after: bytes) -> Path:
    """Change a value in an archive that is not compressed, as a disk might: no size tells."""
    assert len(before) == len(after)
    for path in sorted(folder.rglob("*.parquet")):
        data = path.read_bytes()
        if before in data:
            path.write_bytes(data.replace(before, after))
            # Hadoop's own checksum of the file, which copies of an archive do not have.
            (path.parent / f".{path.name}.crc").unlink(missing_ok=True)
            return path
    raise AssertionError(f"{before!r} is in no file")


def assert_same(archived: list[Row], wanted: list[Row]) -> None:
    """Hold two lists of rows against each other; say what differs and how often it is there."""
    counts = Counter(row[1:3] for row in archived)
    repeated = {place for place, count in counts.items() if count > 1}
    missing = {row[1:3] for row in wanted} - set(counts)
    assert not repeated and not missing, f"repeated {repeated}, missing {missing}"
    assert archived == wanted


class Watch:
    """An observer that remembers, and does something at one phase of one batch."""

    def __init__(self, phase: str = "", batch: int = 0, act: Any = None) -> None:
        self.events: list[Event] = []
        self._at = Phase(name=phase, batch=batch)
        self._act = act

    def __call__(self, event: Event) -> None:
        """Take an event."""
        self.events.append(event)
        if event == self._at and self._act is not None:
            act, self._act = self._act, None
            act()

    @property
    def done(self) -> list[BatchDone]:
        """The batches that were done."""
        return [each for each in self.events if isinstance(each, BatchDone)]

    @property
    def phases(self) -> list[tuple[str, int]]:
        """What was told of each batch."""
        return [(each.name, each.batch) for each in self.events if isinstance(each, Phase)]


def lose_in_the_log(monkeypatch: pytest.MonkeyPatch, holes: list[tuple[int, int, int]]) -> None:
    """Let archives find no records at these offsets: partition, first, and where they end.

    No node of ours makes such a log, so what is read of a whole one is made less.
    """

    def read(*arguments: Any, **more: Any) -> DataFrame:
        records = read_ranges(*arguments, **more)
        for partition, start, end in holes:
            between = records["offset"].between(start, end - 1)
            records = records.where(~((records["partition"] == partition) & between))
        return records

    monkeypatch.setattr("dlog.spark.pipelines.archive.read_ranges", read)
