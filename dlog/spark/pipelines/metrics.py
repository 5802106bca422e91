"""Metrics of jobs for Prometheus: a file for node_exporter, or HTTP.

An observer (`dlog.spark.pipelines.events`). Counters go on from what the file says, so that jobs
that a timer starts count like one process that never ends. docs/operating/metrics.md names all.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import start_http_server
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry

from dlog.spark.errors import OptionError
from dlog.spark.pipelines.events import BatchDone, Ended, Event, Found, Phase

LABELS = ("pipeline", "job_name")
"""Prometheus gives `job` and `instance` of its own to all that it scrapes."""
METRICS: Mapping[str, tuple[str, str]] = {
    "dlog_pipeline_batches_total": ("counter", "Batches that were done for good."),
    "dlog_pipeline_records_total": ("counter", "Records that were moved."),
    "dlog_pipeline_record_bytes_total": ("counter", "Bytes of their keys and values."),
    "dlog_pipeline_lost_offsets_total": (
        "counter",
        "Offsets that were gone before they could be archived.",
    ),
    "dlog_pipeline_missing_offsets_total": (
        "counter",
        "Offsets without a record that nothing explains.",
    ),
    "dlog_pipeline_batch_seconds_total": ("counter", "Time that batches took."),
    "dlog_pipeline_runs_total": ("counter", "Runs that ended well."),
    "dlog_pipeline_run_failures_total": ("counter", "Runs that ended with an error."),
    "dlog_pipeline_lag_offsets": (
        "gauge",
        "Offsets that were left to do after the last batch; of archives and replays.",
    ),
    "dlog_pipeline_findings": (
        "gauge",
        "Offsets, and files or batches of an archive, that the last audit found wrong; they "
        "stay until one ends that finds less.",
    ),
    "dlog_pipeline_running": ("gauge", "1 while a run is under way."),
    "dlog_pipeline_last_run_seconds": ("gauge", "How long the last run took."),
    "dlog_pipeline_last_success_timestamp_seconds": (
        "gauge",
        "When a run ended well for the last time, in seconds since 1970.",
    ),
}
_MOVING = ("archive", "replay")
"""Pipelines that end well when nothing is left, be it that there was nothing to do."""
_AUDIT = "audit"
_UNKNOWN_AT_FIRST = (
    "dlog_pipeline_findings",
    "dlog_pipeline_lag_offsets",
    "dlog_pipeline_last_run_seconds",
    "dlog_pipeline_last_success_timestamp_seconds",
)
"""They are not there before something is known: 0 would say that all is done, or well."""


@dataclass(frozen=True, slots=True)
class Names:
    """Which job it is: the kind of pipeline, and a name of this one."""

    pipeline: str
    job: str


class JobMetrics(Collector):
    """The numbers of one job. Owner: the driver's thread; scrapes read them from another."""

    def __init__(self, names: Names, wall_s: Callable[[], float] = time.time) -> None:
        self._names = names
        self._wall_s = wall_s
        self._found = 0
        """What the run that is under way has found."""
        self._values = {name: 0.0 for name in METRICS if name not in _UNKNOWN_AT_FIRST}

    def observe(self, event: Event) -> None:
        """Count an event."""
        values = self._values
        match event:
            case Phase():
                values["dlog_pipeline_running"] = 1
            case BatchDone():
                values["dlog_pipeline_batches_total"] += 1
                values["dlog_pipeline_records_total"] += event.records
                values["dlog_pipeline_record_bytes_total"] += event.record_bytes
                values["dlog_pipeline_lost_offsets_total"] += event.lost
                values["dlog_pipeline_missing_offsets_total"] += event.missing
                values["dlog_pipeline_batch_seconds_total"] += event.seconds
                values["dlog_pipeline_lag_offsets"] = event.lag
            case Found():
                self._found += event.count
                # Less than before is no news while the audit runs.
                before = values.get("dlog_pipeline_findings", 0)
                values["dlog_pipeline_findings"] = max(before, self._found)
            case Ended():
                self._end(event)

    def begin(self) -> None:
        """Note that a run begins."""
        self._values["dlog_pipeline_running"] = 1

    def _end(self, event: Ended) -> None:
        values = self._values
        values["dlog_pipeline_running"] = 0
        values["dlog_pipeline_last_run_seconds"] = event.seconds
        if event.error:
            values["dlog_pipeline_run_failures_total"] += 1
        else:
            values["dlog_pipeline_runs_total"] += 1
            values["dlog_pipeline_last_success_timestamp_seconds"] = self._wall_s()
            if self._names.pipeline == _AUDIT:
                values["dlog_pipeline_findings"] = self._found
            if self._names.pipeline in _MOVING:
                values["dlog_pipeline_lag_offsets"] = 0
        self._found = 0

    def resume(self, text: str) -> None:
        """Take over what an earlier run of this job has counted."""
        wanted = dict(zip(LABELS, (self._names.pipeline, self._names.job), strict=True))
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name in METRICS and sample.labels == wanted:
                    self._values[sample.name] = sample.value

    def collect(self) -> Iterable[Metric]:
        """Return the families, for a registry."""
        return list(self._families())

    def _families(self) -> Iterator[Metric]:
        labels = (self._names.pipeline, self._names.job)
        for name, (kind, doc) in METRICS.items():
            if name not in self._values:
                continue
            family: CounterMetricFamily | GaugeMetricFamily
            if kind == "counter":
                family = CounterMetricFamily(name, doc, labels=LABELS)
            else:
                family = GaugeMetricFamily(name, doc, labels=LABELS)
            family.add_metric(labels, self._values[name])
            yield family

    def text(self) -> bytes:
        """Return all in Prometheus' text format."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)


def save(metrics: JobMetrics, path: Path) -> None:
    """Replace the file, whole: a collector may read it at any moment."""
    written = path.with_name(f".{path.name}.{os.getpid()}")
    written.write_bytes(metrics.text())
    written.replace(path)


def _resume(metrics: JobMetrics, path: Path) -> None:
    try:
        metrics.resume(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise OptionError(
            "DLOG_OPTION_VALUE",
            f"The file of metrics {path} has invalid metrics: {error}.",
            "Name another file, or move this one away: the counters then begin at 0.",
        ) from error


@contextmanager
def exported(
    names: Names, path: Path | None, address: tuple[str, int] | None
) -> Iterator[Callable[[Event], None]]:
    """Give an observer whose numbers are in the file and at the address while the block runs."""
    metrics = JobMetrics(names)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            _resume(metrics, path)
    metrics.begin()

    def observe(event: Event) -> None:
        metrics.observe(event)
        if path is not None and not isinstance(event, Phase):
            save(metrics, path)

    server = None
    if address is not None:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(metrics)
        server, _ = start_http_server(address[1], address[0], registry)
    try:
        if path is not None:
            save(metrics, path)
        yield observe
    finally:
        if server is not None:
            server.shutdown()
            server.server_close()
