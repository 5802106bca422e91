"""Executors of a cluster are killed with SIGKILL in the middle of jobs of every kind.

All on the one cluster that `test_shipping.py` has, whose executors get everything from the driver.
"""

import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.spark.archives import rows_of_archive
from tests.spark.executor_kills import RECORDS, TASK_RECORDS
from tests.spark.job_process import ClusterRun
from tests.spark.long_form import long_form

# The first one here may start the cluster.
pytestmark = [long_form, pytest.mark.timeout(600)]


def told_of(run: ClusterRun, name: str, kills: int = 1) -> dict[str, Any]:
    """Return what a job told that was struck so often."""
    told: dict[str, Any] = run.told["kills"][name]
    assert "error" not in told and told["kills"] == kills
    return told


def wanted(run: ClusterRun) -> list[list[int]]:
    """Return partition, offset and checksum of all records, each once."""
    assert len(run.log.rows) == 2 * RECORDS
    return sorted([part, offset, zlib.crc32(value)] for part, offset, value in run.log.rows)


def assert_nothing_missing(run: ClusterRun, topic: str) -> None:
    """Hold a topic that a sink wrote against its source: what came twice was of the lost task."""
    found = run.job.topics.read_all(topic, 2)
    first, second = (Counter(record.value for record in log) for log in found)
    for number, values in enumerate((first, second)):
        source = {row[2] for row in run.log.rows if row[0] == number}
        assert (len(source - set(values)), len(set(values) - source)) == (0, 0)
    # The task of the other partition ran to its end.
    assert first.total() == RECORDS
    twice = [value for value, count in second.items() if count > 1]
    assert 1 <= len(twice) <= TASK_RECORDS and second.total() == RECORDS + len(twice)


def test_a_batch_read_gives_every_row_once(local_cluster: ClusterRun) -> None:
    """Struck while it reads, and when shuffled rows are gone and have to be read again."""
    assert told_of(local_cluster, "read", kills=2)["rows"] == wanted(local_cluster)


def test_a_batch_write_lacks_nothing(local_cluster: ClusterRun) -> None:
    assert_nothing_missing(local_cluster, told_of(local_cluster, "written")["topic"])


def test_a_stream_into_parquet_has_every_row_once(local_cluster: ClusterRun) -> None:
    assert told_of(local_cluster, "parquet")["rows"] == wanted(local_cluster)


def test_a_stream_into_a_topic_lacks_nothing(local_cluster: ClusterRun) -> None:
    assert_nothing_missing(local_cluster, told_of(local_cluster, "copied")["topic"])


def test_an_archive_has_every_record_once(local_cluster: ClusterRun) -> None:
    told = told_of(local_cluster, "archived")
    found = [[*row[1:3], zlib.crc32(row[6])] for row in rows_of_archive(Path(told["folder"]))]
    assert found == wanted(local_cluster) and told["records"] == len(found)


def test_a_replay_writes_every_record_once(local_cluster: ClusterRun) -> None:
    told = told_of(local_cluster, "replayed")
    read = local_cluster.job.topics.read_all
    assert read(told["topic"], 2) == read(local_cluster.log.topic, 2)
    # What the lost one had written was seen, and not written again.
    assert 1 <= told["passed_over"] < RECORDS
    assert told["written"] + told["passed_over"] == 2 * RECORDS
