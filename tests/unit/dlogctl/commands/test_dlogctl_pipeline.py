"""`dlogctl pipeline`: what its options mean, without Spark; jobs that run again and again."""

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import click
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from dlog.spark.errors import SparkSourceError
from dlog.spark.install.missing_packages import PACKAGES
from dlogctl import exit_codes
from dlogctl.__main__ import main
from dlogctl.commands.pipeline_audit import Place, parse_place
from dlogctl.pipeline_options import Job, _tell, module, take_address, take_pairs
from dlogctl.settings import Settings
from tests.daemon.process import environment
from tests.fakes.threaded_nodes import Nodes

CONTEXT: Any = None


@pytest.mark.parametrize(
    ("text", "topic", "place"),
    [
        ("events", None, Place("events", "", "")),
        ("events@h1:9092,h2:9092", None, Place("events", "h1:9092,h2:9092", "")),
        ("archive:/srv/a@b", "events", Place("events", "", "/srv/a@b")),
        ("archive:s3a://bucket/x", "t", Place("t", "", "s3a://bucket/x")),
    ],
)
def test_places_of_audits(text: str, topic: str | None, place: Place) -> None:
    assert parse_place(text, topic) == place


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("audit archive:/srv/a", "archive:/srv/a names no topic of the archive; give --topic"),
        (
            "audit archive:/srv/a archive:/srv/b",
            "archive:/srv/a names no topic of the archive; give --topic",
        ),
        ("audit archive: --topic t", "archive: names no folder; valid forms: TOPIC,"),
        ("audit t archive:", "archive: names no folder"),
        ("audit @h:9092", "'@h:9092' names no topic"),
        ("audit t /tmp/arch", "for a folder write archive:/tmp/arch"),
        ("audit /tmp/arch t", "'/tmp/arch' names no topic (Topic name is invalid: "),
        ("audit s3a://me@bucket/x", "for a folder write archive:s3a://me@bucket/x"),
        ("audit ..@h:9092", "'..@h:9092' names no topic"),
        ("audit t --ignore offset", "'offset' is not one of"),
        ("archive t t --to /x", "name each topic once"),
        ("archive t", "Missing option '--to'"),
        ("archive t --to /x --every soon", "'soon' is not a duration"),
        ("archive t --to /x --conf spark.x", "'spark.x' is not KEY=VALUE"),
        ("archive t --to /x --metrics-address here", "'here' is not HOST:PORT"),
        ("archive t --to /x --metrics-address h:99999", "'h:99999' is not HOST:PORT"),
        ("replay /x --topic t --to u --place everywhere", "'everywhere' is not one of"),
    ],
)
def test_wrong_usage_is_told_before_spark_starts(
    line: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", *line.split()]) == exit_codes.USAGE
    told = capsys.readouterr().err
    assert said in told and len(told.splitlines()) == 1


def test_options_of_the_source_and_addresses() -> None:
    assert take_pairs(CONTEXT, CONTEXT, ("a=b=c", "d=")) == {"a": "b=c", "d": ""}
    assert take_address(CONTEXT, CONTEXT, "9100") == ("127.0.0.1", 9100)
    assert take_address(CONTEXT, CONTEXT, "0.0.0.0:9100") == ("0.0.0.0", 9100)
    job = Job(
        master=None,
        conf={},
        source={"dlog.tls.ca": "/etc/ca.pem"},
        job=None,
        metrics_path=None,
        metrics_address=None,
        quiet=True,
    )
    settings = Settings(environ={}, given={"bootstrap": "h1:9092,h2:9093"})
    assert job.options(settings) == {
        "kafka.bootstrap.servers": "h1:9092,h2:9093",
        "dlog.tls.ca": "/etc/ca.pem",
    }
    frame = job.frame("archive", "a+b")
    assert (frame.pipeline, frame.job, frame.master) == ("archive", "a+b", None)


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec

    def without(name: str, *more: Any) -> Any:
        return None if name == "pyspark" else real(name, *more)

    assert "pyspark" in PACKAGES
    monkeypatch.setattr(importlib.util, "find_spec", without)
    with pytest.raises(click.ClickException, match=r"need pyspark, .*pip install 'dlog\[spark\]'"):
        module("archive")


TRACE = """
  An exception was thrown from the Python worker. Please see the stack trace below.
  File "/x/dlog/spark/reading/task.py", line 175, in _lose
dlog.spark.errors.DataLossError: [KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] Offsets t-0 [0, 9) \
cannot be read: gone. Read more often.
SQLSTATE: 38000
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            TRACE,
            "[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] Offsets t-0 [0, 9) cannot be read: gone."
            " Read more often.",
        ),
        (
            "[PATH_NOT_FOUND] Path does not exist: x.\nmore",
            "[DLOG_SPARK_FAILED] PySparkException: [PATH_NOT_FOUND] Path does not exist: x."
            " Spark's own log says more, and dlogctl --debug.",
        ),
        (
            "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
            '  File "/x/y.py", line 7, in f\n    g()\npyarrow.lib.ArrowInvalid: odd\n'
            "\nDuring handling of the above another one came:\n\n"
            "Traceback (most recent call last):\nfoo.OddError: it is odd\n SQLSTATE: 38000",
            "[DLOG_SPARK_FAILED] PySparkException: foo.OddError: it is odd"
            " Spark's own log says more, and dlogctl --debug.",
        ),
        (
            "An error occurred while calling None.org.x.\n: org.x.SparkException: Could not parse\n"
            "\tat org.x",
            "[DLOG_SPARK_FAILED] PySparkException: org.x.SparkException: Could not parse"
            " Spark's own log says more, and dlogctl --debug.",
        ),
        (
            "An error occurred while calling o1.parquet.\n: org.x.SparkException: Job aborted\n"
            "\tat org.x\nCaused by: org.x.SparkException: Task failed\n\t... 9 more\n"
            "Caused by: java.io.IOException: No space left on device\n\tat java",
            "[DLOG_SPARK_FAILED] PySparkException: org.x.SparkException: Job aborted"
            " (java.io.IOException: No space left on device)"
            " Spark's own log says more, and dlogctl --debug.",
        ),
    ],
)
def test_what_spark_says_of_a_task_is_told_in_a_line(text: str, said: str) -> None:
    assert str(module("jobs").in_words(PySparkException(text))) == said


def test_an_error_of_the_jvm_is_told_in_a_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = module("jobs")

    def failing(*_arguments: Any, **_more: Any) -> Any:
        raise Py4JError("An error occurred while calling o1.x.\n: java.lang.Odd: oh")

    monkeypatch.setattr(jobs, "running_session", failing)
    with pytest.raises(SparkSourceError, match=r"DLOG_SPARK_FAILED. Py4JError: java.lang.Odd: oh"):
        jobs.run(jobs.JobFrame(pipeline="audit", job="a"), lambda _session, _tell: None)


@pytest.mark.parametrize(
    ("error_class", "code"),
    [
        ("DLOG_CLUSTER_UNREACHABLE", exit_codes.UNREACHABLE),
        ("DLOG_LOOKUP_FAILED", exit_codes.FAILURE),
    ],
)
def test_a_cluster_that_a_task_does_not_reach_is_named(
    error_class: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And no other one: an audit has two."""
    told = f"[{error_class}] Asked other:1 for topics: cannot connect. Check it."

    def failing(*_arguments: Any, **_more: Any) -> Any:
        raise PySparkException(f"{told}\nTraceback")

    monkeypatch.setattr(module("jobs"), "running_session", failing)
    monkeypatch.setattr(Job, "reach", lambda *_: None)
    assert main(["--bootstrap", "here:1", "pipeline", "audit", "t", "t@other:1"]) == code
    assert capsys.readouterr().err == f"dlogctl: {told}\n"


@pytest.mark.parametrize(
    "words",
    [
        ("archive", "t", "--to", "/no/where"),
        ("archive", "t", "--to", "/no/where", "--every", "1s"),
        ("replay", "/no/where", "--topic", "t", "--to", "t"),
        ("audit", "t@127.0.0.1:2", "t"),
        ("audit", "archive:/no/where", "t"),
        ("delays", "t"),
    ],
)
def test_a_cluster_that_is_away_is_told_before_spark_starts(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module("jobs"), "running_session", None)
    options = ["--bootstrap", "127.0.0.1:1", "--timeout", "0.2"]
    assert main([*options, "pipeline", *words]) == exit_codes.UNREACHABLE
    told = capsys.readouterr().err
    asked = "127.0.0.1:2" if words[1].endswith(":2") else "127.0.0.1:1"
    assert told.startswith(f"dlogctl: [DLOG_CLUSTER_UNREACHABLE] Asked {asked} for its nodes: ")
    assert len(told.splitlines()) == 1


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    made = Nodes()
    yield made
    made.close()


def test_no_java_is_told_as_such(nodes: Nodes) -> None:
    address = str(nodes.servers.bootstrap[0])
    words = ["--bootstrap", address, "pipeline", "archive", "t", "--to", "/no/where"]
    done = subprocess.run(
        [sys.executable, "-m", "dlogctl", *words],
        env=environment({"JAVA_HOME": "/no/java"}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == exit_codes.FAILURE
    told = done.stderr.splitlines()[-1]
    assert told.startswith("dlogctl: [DLOG_NO_JAVA]") and "JAVA_HOME" in told


def test_progress_is_a_line_for_each_batch(capsys: pytest.CaptureFixture[str]) -> None:
    events = module("events")
    _tell(events.Phase(name="planned", batch=1))
    _tell(
        events.BatchDone(
            batch=7, records=5000, record_bytes=2048, offsets=5001, files=2, seconds=2.0, lag=9,
            lost=1,
            missing=3,
        )
    )  # fmt: skip
    assert capsys.readouterr().err == (
        "batch 7: 5,000 records, 2.0 KiB, 2 s, 2,500 records/s, 1 offset lost, "
        "3 offsets without a record; 9 left\n"
    )
