"""Metrics of the operators' HTTP server."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from dlogd.telemetry.metrics import MetricSpec, Sample


def _count(name: str, doc: str, kind: Literal["counter", "gauge"] = "counter") -> Any:
    spec = MetricSpec(name=f"dlog_http_{name}", kind=kind, doc=doc)
    return field(default=0, metadata={"spec": spec})


@dataclass(slots=True)
class HttpMetrics:
    """The server's counters. Owner: the event loop's thread."""

    connections: int = _count("connections", "HTTP connections open now.", "gauge")
    connections_displaced_total: int = _count(
        "connections_displaced_total",
        "HTTP connections closed for a new connection; no request was under way on them.",
    )
    connections_refused_total: int = _count(
        "connections_refused_total",
        "HTTP connections closed at once: all others had a request under way.",
    )
    hosts_refused_total: int = _count(
        "hosts_refused_total", "HTTP requests for a host that this node is not."
    )

    def samples(self) -> Iterator[Sample]:
        """Yield every metric and its present value."""
        for item in dataclasses.fields(self):
            yield Sample(item.metadata["spec"], (), float(getattr(self, item.name)))


HTTP: tuple[MetricSpec, ...] = tuple(
    item.metadata["spec"] for item in dataclasses.fields(HttpMetrics)
)
