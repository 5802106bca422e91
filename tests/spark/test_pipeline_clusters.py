"""Audits of two clusters, each a daemon of its own, with a topic of the same name in both."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from dlog.client.blocking import Admin
from dlog.spark.errors import SparkSourceError
from dlog.spark.options.connection_options import client_settings
from dlog.spark.pipelines.audit import Audited, AuditRules, audit
from dlog.spark.pipelines.comparison import DIFFERS
from dlog.spark.pipelines.events import Observer
from dlog.spark.pipelines.jobs import JobFrame, run
from dlog.spark.pipelines.sides import TopicSide
from dlogctl import exit_codes
from dlogctl.__main__ import main
from tests.daemon.process import DaemonProcess, running_daemon
from tests.spark.archives import Watch, fill, make_topic
from tests.spark.log import Log

DEADLINE_S = 2
BRIEF = {"kafkaConsumer.pollTimeoutMs": "2000", "kafka.default.api.timeout.ms": "2000"}
NOBODY = "127.0.0.1:1"
COUNT = 100


@pytest.fixture(scope="module")
def other_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with running_daemon(tmp_path_factory.mktemp("other-node")) as process:
        yield process


@pytest.fixture(scope="module")
def other_admin(other_node: DaemonProcess) -> Iterator[Admin]:
    with Admin(str(other_node.status()["listeners"][0])) as client:
        yield client


@pytest.fixture
def other(log: Log, other_node: DaemonProcess, other_admin: Admin) -> Log:
    """Give the topic of the same name in the other cluster, made when it is first written to."""
    return Log(str(other_node.status()["listeners"][0]), other_admin, log.topic)


class Said(NamedTuple):
    """What a command ended with, and wrote."""

    code: int
    rows: Any
    told: str


@pytest.fixture
def dlogctl(spark: SparkSession, log: Log, capsys: pytest.CaptureFixture[str]) -> Any:
    """Give what runs `dlogctl pipeline` on the first cluster, in the session of the tests."""

    options = ("--bootstrap", log.bootstrap, "-o", "json", "--timeout", str(DEADLINE_S))

    def shell(*words: str) -> Said:
        capsys.readouterr()
        code = main([*options, "pipeline", *words, "-q"])
        out, told = capsys.readouterr()
        return Said(code, json.loads(out) if out.strip() else None, told)

    return shell


Shell = Callable[..., Said]


def at(cluster: Log) -> str:
    return f"{cluster.topic}@{cluster.bootstrap}"


def differs(start: int, end: int) -> list[dict[str, Any]]:
    """Return what an audit finds that names these offsets of partition 1."""
    return [{"partition": 1, "start_offset": start, "end_offset": end, "kind": DIFFERS}]


def test_two_clusters_are_compared_and_the_range_that_differs_is_named(
    log: Log, other: Log, dlogctl: Shell, tmp_path: Path
) -> None:
    for each in (log, other):
        make_topic(each, COUNT)
    assert dlogctl("audit", log.topic, at(other)) == (exit_codes.OK, [], "")
    numbers = [b"%d" % number for number in range(10)]
    log.write(1, numbers)
    other.write(1, [b"other" if 4 <= place < 7 else each for place, each in enumerate(numbers)])
    said = dlogctl("audit", at(other), log.topic)
    assert said == (exit_codes.UNHEALTHY, differs(COUNT + 4, COUNT + 7), "")
    # An archive of the one against the other, where retention was faster.
    folder = str(tmp_path / "archive")
    assert dlogctl("archive", log.topic, "--to", folder).code == exit_codes.OK
    other.trim(1, COUNT + 5)
    fill(other, 7)
    code, rows, told = dlogctl("audit", f"archive:{folder}", at(other))
    assert (code, rows) == (exit_codes.UNHEALTHY, differs(COUNT + 5, COUNT + 7))
    assert told.splitlines() == [
        f"not compared: partition 0, offsets {COUNT} to {COUNT + 7}: only in the other",
        f"not compared: partition 1, offsets 0 to {COUNT + 5}: only here",
        f"not compared: partition 1, offsets {COUNT + 10} to {COUNT + 17}: only in the other",
    ]


def test_other_numbers_of_partitions_are_told(log: Log, other: Log, dlogctl: Shell) -> None:
    make_topic(log, COUNT, 3)
    make_topic(other, COUNT, 2)
    rest = f"not compared: partition 2, offsets 0 to {COUNT}: only"
    said = dlogctl("audit", log.topic, at(other))
    assert said == (exit_codes.OK, [], f"{rest} here\n")
    said = dlogctl("audit", at(other), at(log))
    assert said == (exit_codes.OK, [], f"{rest} in the other\n")


def test_a_cluster_that_cannot_be_reached_is_named(
    log: Log, other: Log, other_node: DaemonProcess, dlogctl: Shell
) -> None:
    make_topic(log, 1)
    make_topic(other, 1)
    brief = [word for pair in BRIEF.items() for word in ("--option", "=".join(pair))]
    nobody = f"{log.topic}@{NOBODY}"
    begun_s = time.monotonic()
    for places in ((log.topic, nobody), (nobody, log.topic), (nobody, at(other))):
        code, rows, told = dlogctl("audit", *places, *brief)
        assert (code, rows) == (exit_codes.UNREACHABLE, None)
        assert told.startswith(f"dlogctl: [DLOG_CLUSTER_UNREACHABLE] Asked {NOBODY} for ")
        assert len(told.splitlines()) == 1 and log.bootstrap not in told
    other_node.signal(signal.SIGSTOP)
    try:
        code, rows, told = dlogctl("audit", log.topic, at(other), *brief)
    finally:
        other_node.signal(signal.SIGCONT)
    assert (code, rows) == (exit_codes.UNREACHABLE, None) and log.bootstrap not in told
    assert f"no answer within {DEADLINE_S} s from any of {other.bootstrap}" in told
    assert time.monotonic() - begun_s < 10 * DEADLINE_S
    code, _, told = dlogctl("audit", log.topic, f"nothing-of-it@{other.bootstrap}")
    assert code == exit_codes.FAILURE
    assert f"The cluster at {other.bootstrap} has no topic nothing-of-it." in told


@pytest.mark.parametrize("phase", ["planned", "counted"])
def test_a_cluster_that_is_lost_under_an_audit_ends_it(
    spark: SparkSession, log: Log, other: Log, other_node: DaemonProcess, phase: str
) -> None:
    for each in (log, other):
        make_topic(each, COUNT)

    def side(cluster: Log, **more: str) -> TopicSide:
        source = {"kafka.bootstrap.servers": cluster.bootstrap, **more}
        return TopicSide(spark, client_settings(source), cluster.topic, source)

    def work(_: SparkSession, tell: Observer) -> Audited:
        return audit(side(log), side(other, **BRIEF), AuditRules(), tell)

    lose = Watch(phase, 0, lambda: other_node.signal(signal.SIGSTOP))
    try:
        with pytest.raises(SparkSourceError) as error:
            run(JobFrame(pipeline="audit", job="lost"), work, lose)
    finally:
        other_node.signal(signal.SIGCONT)
    assert lose.phases[-1] == (phase, 0)
    assert error.value.error_class == "DLOG_CLUSTER_UNREACHABLE"
    assert other.bootstrap in str(error.value) and log.bootstrap not in str(error.value)
