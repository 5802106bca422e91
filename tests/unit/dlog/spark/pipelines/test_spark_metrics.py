"""Metrics of jobs: counted, kept in a file over runs, served; all of them documented."""

import json
import re
import socket
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dlog.spark.errors import OptionError
from dlog.spark.pipelines import metrics as metrics_of
from dlog.spark.pipelines.events import BatchDone, Ended, Event, Found, Phase
from dlog.spark.pipelines.metrics import METRICS, JobMetrics, Names, exported
from scripts.dashboard import dashboard
from tests.tidy import sources

ROOT = sources.ROOT
NAMES = Names("archive", 'fl"ights')
LABELS = {"pipeline": "archive", "job_name": 'fl"ights'}


def values(text: str) -> dict[str, float]:
    samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
    assert all(each.labels == LABELS for each in samples)
    return {each.name.removeprefix("dlog_pipeline_"): each.value for each in samples}


def batch(records: int = 5, lag: int = 3) -> BatchDone:
    return BatchDone(
        batch=1,
        records=records,
        record_bytes=70,
        offsets=6,
        files=2,
        seconds=1.5,
        lag=lag,
        lost=1,
        missing=2,
    )


def test_events_are_counted() -> None:
    metrics = JobMetrics(NAMES, wall_s=lambda: 1234.5)
    events: list[Event] = [Phase(name="planned", batch=1), batch(), batch(7, 0)]
    events += [Found(kind="gap", count=4), Found(kind="differs", count=2), Ended(seconds=9.0)]
    for event in events:
        metrics.observe(event)
    assert values(metrics.text().decode()) == {
        "batches_total": 2,
        "records_total": 12,
        "record_bytes_total": 140,
        "lost_offsets_total": 2,
        "missing_offsets_total": 4,
        "batch_seconds_total": 3,
        "runs_total": 1,
        "run_failures_total": 0,
        "lag_offsets": 0,
        "findings": 6,
        "running": 0,
        "last_run_seconds": 9,
        "last_success_timestamp_seconds": 1234.5,
    }


def test_no_label_is_one_that_prometheus_gives_to_what_it_scrapes() -> None:
    """Else it calls ours `exported_job`, and the dashboard shows that of node_exporter."""
    assert not {"job", "instance"} & set(metrics_of.LABELS)
    text = json.dumps(dashboard())
    assert "{{job}}" not in text and "job=~" not in text.replace("job_name=~", "")


def test_what_is_not_known_yet_is_not_told(tmp_path: Path) -> None:
    """A first run has everything to do, and 0 would say that nothing is left."""
    path = tmp_path / "archive.prom"
    with exported(NAMES, path, None) as observe:
        begun = values(path.read_text())
        unknown = {"lag_offsets", "last_run_seconds", "last_success_timestamp_seconds"}
        assert not unknown & set(begun)
        assert begun["running"] == 1 and begun["records_total"] == 0
        observe(Ended(seconds=2.0, error="it failed"))
        failed = values(path.read_text())
        assert failed["last_run_seconds"] == 2 and failed["run_failures_total"] == 1
        assert unknown & set(failed) == {"last_run_seconds"}
    with exported(NAMES, path, None) as observe:
        observe(batch(lag=3))
        observe(Ended(seconds=2.0, error="it failed"))
    with exported(NAMES, path, None) as observe:
        assert values(path.read_text())["lag_offsets"] == 3
        observe(Ended(seconds=2.0))
    again = values(path.read_text())
    assert again["lag_offsets"] == 0 and again["last_success_timestamp_seconds"] > 0


def test_what_an_audit_has_found_stays_until_one_ends_that_finds_less(tmp_path: Path) -> None:
    """A run that has only begun, or that dies, says nothing of what is wrong."""
    path = tmp_path / "audit.prom"

    def told() -> float | None:
        lines = [each for each in path.read_text().splitlines() if "_findings{" in each]
        return float(lines[0].split()[-1]) if lines else None

    seen: list[float | None] = []
    for counts, error in (([4], ""), ([], "it died"), ([1, 5], "it died"), ([2], ""), ([], "")):
        with exported(Names("audit", "a"), path, None) as observe:
            seen.append(told())
            for count in counts:
                observe(Found(kind="gap", count=count))
            observe(Ended(seconds=1.0, error=error))
    assert seen == [None, 4, 4, 6, 2] and told() == 0
    # Of other pipelines there is nothing to tell.
    with exported(NAMES, path, None) as observe:
        observe(Ended(seconds=1.0))
    assert told() is None


@pytest.mark.parametrize(("pipeline", "left"), [("archive", 0), ("replay", 0), ("audit", None)])
def test_a_run_that_ends_well_has_left_nothing_even_where_it_found_nothing_to_do(
    pipeline: str, left: int | None
) -> None:
    """The run before it was killed, and what it left another job has done."""
    metrics = JobMetrics(Names(pipeline, "a"))
    if left is not None:
        metrics.observe(batch(lag=350))
        metrics.observe(Ended(seconds=1.0, error="killed"))
        assert b"lag_offsets{" in metrics.text() and b"} 350.0" in metrics.text()
    metrics.observe(Ended(seconds=1.0))
    told = [line for line in metrics.text().decode().splitlines() if "lag_offsets{" in line]
    assert [float(line.split()[-1]) for line in told] == ([] if left is None else [left])


def test_each_audit_of_a_job_that_runs_again_tells_its_own_findings() -> None:
    metrics = JobMetrics(Names("audit", "a"))
    for _ in range(2):
        for event in (Phase(name="planned", batch=0), Found(kind="gap", count=4), Ended(seconds=1)):
            metrics.observe(event)
    assert b'dlog_pipeline_findings{job_name="a",pipeline="audit"} 4.0' in metrics.text()


def test_a_file_goes_on_where_the_last_run_ended(tmp_path: Path) -> None:
    path = tmp_path / "metrics" / "archive.prom"
    for run in range(1, 3):
        with exported(NAMES, path, None) as observe:
            assert values(path.read_text())["running"] == 1
            observe(Phase(name="planned", batch=run))
            observe(batch())
            # What a killed run has counted is there as well.
            assert values(path.read_text())["records_total"] == 5 * run
            observe(Found(kind="gap", count=1))
            observe(Ended(seconds=2.0, error="" if run == 1 else "it failed"))
    found = values(path.read_text())
    assert (found["runs_total"], found["run_failures_total"], found["running"]) == (1, 1, 0)
    assert found["findings"] == 1
    assert [each.name for each in path.parent.iterdir()] == ["archive.prom"]


@pytest.mark.parametrize("data", [b"what is this?", b"\xff\xfe"])
def test_a_file_of_something_else_is_named_and_left_alone(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "archive.prom"
    path.write_bytes(data)
    said = rf"{path} has invalid metrics.*move this one away"
    with pytest.raises(OptionError, match=said), exported(NAMES, path, None):
        pass
    assert path.read_bytes() == data


def test_counts_of_other_jobs_are_not_taken_over() -> None:
    metrics = JobMetrics(NAMES)
    metrics.observe(batch())
    other = JobMetrics(Names("archive", "other"))
    other.resume(metrics.text().decode())
    assert b"records_total" in other.text() and b" 5.0" not in other.text()


def test_a_scrape_gives_the_same(unused_port: int) -> None:
    with exported(NAMES, None, ("127.0.0.1", unused_port)) as observe:
        observe(batch())
        url = f"http://127.0.0.1:{unused_port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            assert values(answer.read().decode())["records_total"] == 5
    with pytest.raises(OSError):
        urllib.request.urlopen(url, timeout=10)


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_every_metric_is_documented_and_on_the_dashboard() -> None:
    text = (ROOT / "docs" / "operating" / "metrics.md").read_text(encoding="utf-8")
    shown = json.dumps(dashboard())
    for name, (kind, doc) in METRICS.items():
        assert f"| `{name}` | {kind} | `pipeline`, `job_name` | {doc} |" in text
        assert name in shown


def test_the_dashboard_is_what_its_program_writes() -> None:
    text = (ROOT / "grafana" / "pipelines.json").read_text(encoding="utf-8")
    assert json.loads(text) == dashboard(), "run: python -m scripts.dashboard > grafana/..."
    panels = [each for each in dashboard()["panels"] if each["type"] != "row"]
    queries = [target["expr"] for each in panels for target in each["targets"]]
    named = set(re.findall(r"dlog_pipeline_\w+", " ".join(queries)))
    assert named == set(METRICS)
    assert all(query.count("(") == query.count(")") and "{s}" not in query for query in queries)
    places = [(each["gridPos"]["x"], each["gridPos"]["y"]) for each in panels]
    assert len(set(places)) == len(panels)
