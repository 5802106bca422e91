"""Prometheus view of `dlogd.telemetry.metrics`: families are built when somebody scrapes.

Loaded on a thread beside the node's start (through importlib, by `dlogd.status.scrapes`), because
prometheus_client costs 50 ms of imports. `exposition` hands control back
to the event loop between pieces, so that thousands of partitions do not stall clients.
"""

import asyncio
import itertools
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from dlogd.telemetry.metrics import (
    REQUEST_ERRORS,
    REQUEST_SECONDS,
    REQUESTS,
    Histogram,
    MetricSpec,
    Sample,
    Source,
    Telemetry,
)

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
PIECE_SAMPLES = 256

Value = int | float | Histogram
Row = tuple[tuple[str, ...], Value]


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    names = [*(repr(bound) for bound in histogram.bounds), "+Inf"]
    return list(zip(names, itertools.accumulate(histogram.counts), strict=True))


def _family(spec: MetricSpec, rows: Iterable[Row]) -> Metric:
    if spec.kind == "histogram":
        histograms = HistogramMetricFamily(spec.name, spec.doc, labels=spec.labels)
        for labels, value in rows:
            if isinstance(value, Histogram):
                histograms.add_metric(labels, _buckets(value), value.sum)
        return histograms
    kind = CounterMetricFamily if spec.kind == "counter" else GaugeMetricFamily
    numbers = kind(spec.name, spec.doc, labels=spec.labels)
    for labels, value in rows:
        if not isinstance(value, Histogram):
            numbers.add_metric(labels, value)
    return numbers


class _One(Collector):
    """A collector of a single family, for `generate_latest`."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return (self._family,)


def _without_comments(text: bytes) -> bytes:
    """Cut the leading HELP and TYPE lines: they may stand only once per metric."""
    while text.startswith(b"#"):
        text = text.partition(b"\n")[2]
    return text


class TelemetryCollector(Collector):
    """All metrics of one node: counters of `telemetry`, what `sources` sample, the process's own.

    Owner: the event loop's thread.
    """

    def __init__(self, telemetry: Telemetry, sources: Sequence[Source]) -> None:
        self._telemetry = telemetry
        self._sources = sources
        self._process = ProcessCollector(registry=None)

    def collect(self) -> Iterator[Metric]:
        """Yield whole families."""
        for spec, rows in [*self._counted(), *self._sampled(self._samples())]:
            yield _family(spec, rows)
        yield from self._process.collect()

    async def exposition(self) -> bytes:
        """Render the text format piece by piece; other work of the loop runs in between."""
        pieces: list[bytes] = []
        samples: list[Sample] = []
        iterator = self._samples()
        while batch := list(itertools.islice(iterator, PIECE_SAMPLES)):
            samples += batch
            await asyncio.sleep(0)
        for spec, rows in [*self._counted(), *self._sampled(samples)]:
            per_piece = PIECE_SAMPLES // 16 if spec.kind == "histogram" else PIECE_SAMPLES
            for start in range(0, max(1, len(rows)), per_piece):
                text = generate_latest(_One(_family(spec, rows[start : start + per_piece])))
                pieces.append(_without_comments(text) if start else text)
                await asyncio.sleep(0)
        pieces.append(generate_latest(self._process))
        return b"".join(pieces)

    def _samples(self) -> Iterator[Sample]:
        for source in self._sources:
            yield from source()

    def _counted(self) -> Iterator[tuple[MetricSpec, list[Row]]]:
        for spec, value in self._telemetry.values():
            yield spec, [((), value)]
        apis = sorted(self._telemetry.apis.items())
        yield REQUESTS, [((name,), api.requests) for name, api in apis]
        yield REQUEST_SECONDS, [((name,), api.seconds) for name, api in apis]
        errors: list[Row] = []
        for name, api in apis:
            errors += [((name, error), count) for error, count in sorted(api.errors.items())]
        yield REQUEST_ERRORS, errors

    @staticmethod
    def _sampled(samples: Iterable[Sample]) -> Iterator[tuple[MetricSpec, list[Row]]]:
        rows: dict[str, tuple[MetricSpec, list[Row]]] = {}
        for sample in samples:
            _, found = rows.setdefault(sample.spec.name, (sample.spec, []))
            found.append((sample.labels, sample.value))
        yield from rows.values()
