"""Counters, histograms, the Prometheus exposition, loop delay and GC pauses."""

import asyncio
import gc
import random
import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dlogd.runtime.clock import SystemClock
from dlogd.telemetry.collector import PIECE_SAMPLES, TelemetryCollector
from dlogd.telemetry.delays import GcPauses, LoopDelay
from dlogd.telemetry.metrics import (
    LABELLED,
    PARTITION_SIZE,
    Histogram,
    LoopMetrics,
    Sample,
    Telemetry,
)
from dlogd.telemetry.replication_metrics import all_specs
from tests.tidy import sources


def test_histogram_bounds_are_inclusive() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert (histogram.count, histogram.sum) == (5, 7.5)


def test_quantiles_lie_within_their_bucket() -> None:
    rng = random.Random(1)
    histogram = Histogram((1.0, 2.0, 4.0, 8.0))
    assert histogram.quantile(0.99) == 0.0
    values = sorted(rng.uniform(0, 8) for _ in range(10_000))
    for value in values:
        histogram.observe(value)
    for fraction in (0.01, 0.1, 0.5, 0.9, 0.99):
        assert histogram.quantile(fraction) == pytest.approx(
            values[int(fraction * 10_000)], abs=0.1
        )
    histogram.observe(100.0)
    assert histogram.quantile(1.0) == 8.0


def test_names_follow_the_conventions() -> None:
    specs = all_specs()
    assert len({spec.name for spec in specs}) == len(specs)
    for spec in specs:
        assert re.fullmatch(r"dlog(_[a-z]+)+", spec.name), spec
        assert spec.name.endswith("_total") == (spec.kind == "counter"), spec
        assert spec.doc.endswith("."), spec
        if spec.kind == "histogram":
            assert spec.name.endswith(("_seconds", "_bytes")), spec


def test_the_exposition_holds_every_metric_once_and_equals_the_collected_one() -> None:
    telemetry = Telemetry()
    telemetry.server.connections = 3
    telemetry.storage.flush_seconds.observe(0.0003)
    telemetry.api("Produce").requests += 7
    telemetry.api("Produce").seconds.observe(0.02)
    telemetry.api("Produce").on_error("NOT_LEADER_OR_FOLLOWER")
    count = 3 * PIECE_SAMPLES + 1

    def source() -> list[Sample]:
        return [Sample(PARTITION_SIZE, (f'to"pic\\{i}', str(i)), i) for i in range(count)]

    collector = TelemetryCollector(telemetry, [source])
    text = asyncio.run(collector.exposition()).decode()
    assert text.count(f"# TYPE {PARTITION_SIZE.name} gauge") == 1
    families = {family.name: family for family in text_string_to_metric_families(text)}
    names = {name if name in families else f"{name}_total" for name in families}
    plain = {spec.name.removesuffix("_total") for spec, _ in telemetry.values()}
    labelled = {spec.name.removesuffix("_total") for spec in LABELLED}
    assert plain | labelled | {PARTITION_SIZE.name} <= {n.removesuffix("_total") for n in names}
    assert {"process_resident_memory_bytes", "process_open_fds"} <= set(families)
    sizes = families[PARTITION_SIZE.name].samples
    assert [sample.value for sample in sizes] == list(range(count))
    assert sizes[5].labels == {"topic": 'to"pic\\5', "partition": "5"}
    errors = families["dlog_server_request_errors"].samples
    assert errors[0].labels == {"api": "Produce", "error": "NOT_LEADER_OR_FOLLOWER"}
    collected = {family.name: len(family.samples) for family in collector.collect()}
    assert {name: len(family.samples) for name, family in families.items()} == collected


def test_loop_delay_sees_a_blocked_loop(caplog: pytest.LogCaptureFixture) -> None:
    now_us = 0

    class Steered(SystemClock):
        def now_us(self) -> int:
            return now_us

    async def main() -> LoopMetrics:
        nonlocal now_us
        metrics = LoopMetrics()
        delay = LoopDelay(asyncio.get_running_loop(), Steered(), metrics)
        delay.start()
        now_us = 2_000_000
        while not metrics.delay_seconds.count:
            await asyncio.sleep(0.01)
        delay.stop()
        delay.stop()
        return metrics

    metrics = asyncio.run(main())
    assert metrics.delay_seconds_max == pytest.approx(1.9)
    assert "Event loop stalled seconds=1.900" in caplog.text


def test_gc_pauses_are_counted() -> None:
    metrics = LoopMetrics()
    pauses = GcPauses(SystemClock(), metrics)
    pauses.install()
    try:
        gc.collect()
    finally:
        pauses.remove()
        pauses.remove()
    seen = metrics.gc_pause_seconds.count
    assert seen >= 1
    gc.collect()
    assert metrics.gc_pause_seconds.count == seen


def test_the_document_lists_every_metric_as_it_is() -> None:
    document = sources.ROOT / "docs" / "operating" / "metrics.md"
    # Those of jobs on Spark are of another process:
    # tests/unit/dlog/spark/pipelines/test_spark_metrics.py.
    rows = [
        line
        for line in document.read_text().splitlines()
        if line.startswith("| `dlog_") and not line.startswith("| `dlog_pipeline_")
    ]
    labels = {spec.name: ", ".join(f"`{label}`" for label in spec.labels) for spec in all_specs()}
    assert rows == [
        f"| `{spec.name}` | {spec.kind} | {labels[spec.name]} | {spec.doc} |".replace("|  |", "| |")
        for spec in all_specs()
    ]
