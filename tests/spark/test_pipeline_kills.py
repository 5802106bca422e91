"""Drivers of pipelines that are killed with SIGKILL; what is run then with dlogctl ends the job."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession

from dlogctl import exit_codes
from dlogctl.__main__ import main
from tests.spark.archives import assert_same, rows_of_archive, rows_of_topic
from tests.spark.conftest import ROOT, environment_of_workers
from tests.spark.log import DAY_MS, Log
from tests.spark.long_form import long_form

KILLS = int(os.environ.get("DLOG_PIPELINE_KILLS", "1"))
RECORDS = 4_000
"""Of each partition, with values that do not compress."""
PROCESS_S = 240


@pytest.fixture
def big(log: Log) -> Log:
    log.create(2, configs={"retention.ms": "-1"})
    rng = random.Random(7)
    for partition in range(2):
        for _ in range(4):
            log.write(
                partition,
                [rng.randbytes(900) for _ in range(RECORDS // 4)],
                timestamp_ms=lambda number: (20_000 + number % 3) * DAY_MS + number,
            )
    return log


def killed(pipeline: str, log: Log, folder: Path, kill: Any, **more: Any) -> None:
    """Run a pipeline in a process that dies; a moment that never comes is an error."""
    given = {
        "pipeline": pipeline,
        "bootstrap": log.bootstrap,
        "topic": log.topic,
        "folder": str(folder),
        "kill": kill,
        **more,
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.pipeline_process", json.dumps(given)],
        env={**os.environ, **environment_of_workers()},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PROCESS_S,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]


def moments(first: Any, *others: Any) -> list[Any]:
    """Return when to strike: once, or as often as the environment says, in turn."""
    return [first, *[each for _ in range(KILLS) for each in others][: KILLS - 1]]


def dlogctl(capsys: pytest.CaptureFixture[str], log: Log, *words: str) -> tuple[int, Any]:
    """Run a command in the session of the tests; return its exit code and document."""
    capsys.readouterr()
    code = main(["--bootstrap", log.bootstrap, "-o", "json", "pipeline", *words])
    shown = capsys.readouterr().out
    return code, json.loads(shown) if shown.strip() else None


def metrics_of(path: Path) -> dict[str, float]:
    families = text_string_to_metric_families(path.read_text())
    return {each.name: each.value for family in families for each in family.samples}


def test_an_archive_whose_drivers_are_killed_has_every_record_once(
    spark: SparkSession, big: Log, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, prom = tmp_path / "archive", tmp_path / "archive.prom"
    # The first in the middle of the second batch's files: each has about 3 MB.
    for kill in moments(4_000_000, ["sealed", 0], ["published", 1], 9_000_000, ["written", 1]):
        killed("archive", big, folder, kill, batch_offsets=3_000)
        there = {row[1:3] for row in rows_of_archive(folder)}
        assert len(there) == len(rows_of_archive(folder)) < 2 * RECORDS
    words = ("archive", big.topic, "--to", str(folder), "--batch-offsets", "3000", "-q")
    code, said = dlogctl(capsys, big, *words, "--metrics", str(prom))
    assert code == exit_codes.OK and said[0]["lag"] == 0
    assert_same(rows_of_archive(folder), rows_of_topic(spark, big))
    found = metrics_of(prom)
    assert found["dlog_pipeline_records_total"] == said[0]["records"]
    assert found["dlog_pipeline_runs_total"] == 1 and found["dlog_pipeline_lag_offsets"] == 0
    assert not list((folder / "_staging").iterdir())


@long_form
def test_a_replay_whose_drivers_are_killed_writes_every_record_once(
    spark: SparkSession, big: Log, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "archive"
    words = ("archive", big.topic, "--to", str(folder), "--batch-offsets", "5000", "-q")
    assert dlogctl(capsys, big, *words)[0] == exit_codes.OK
    target = Log(big.bootstrap, big.admin, f"{big.topic}-copy")
    target.create(2, configs={"retention.ms": "-1"})
    for kill in moments(500, ["finished", 0], ["written", 1], 3_000):
        killed("replay", big, folder, kill, target=target.topic)
    replay = ("replay", str(folder), "--topic", big.topic, "--to", target.topic, "-q")
    code, said = dlogctl(capsys, big, *replay)
    assert code == exit_codes.OK and said[0]["passed_over"] > 0
    copied = [row[1:] for row in rows_of_topic(spark, target)]
    assert copied == [row[1:] for row in rows_of_topic(spark, big)]
    assert dlogctl(capsys, big, *replay)[1][0]["written"] == 0
    assert dlogctl(capsys, big, "audit", big.topic, target.topic, "-q") == (exit_codes.OK, [])
    there = dlogctl(capsys, big, "audit", target.topic, f"archive:{folder}", "--topic", big.topic)
    assert there == (exit_codes.OK, [])
    target.write(0, [b"one more"])
    assert dlogctl(capsys, big, "audit", big.topic, target.topic)[0] == exit_codes.OK
    big.write(0, [b"another"])
    code, found = dlogctl(capsys, big, "audit", big.topic, target.topic)
    place = {"partition": 0, "start_offset": RECORDS, "end_offset": RECORDS + 1}
    assert (code, found) == (exit_codes.UNHEALTHY, [{**place, "kind": "differs"}])
