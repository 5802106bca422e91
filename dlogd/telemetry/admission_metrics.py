"""Metrics of connections that listeners ended: by admission, or for another protocol."""

from dlogd.telemetry.metrics import MetricSpec, Sample

REFUSED = MetricSpec(
    name="dlog_admission_refused_total",
    kind="counter",
    doc="Connections refused or ended by admission, by listener and reason.",
    labels=("listener", "reason"),
)
FOREIGN = MetricSpec(
    name="dlog_server_foreign_connections_total",
    kind="counter",
    doc="Connections closed whose first bytes were of another protocol (tls, http, http2).",
    labels=("listener", "protocol"),
)
ADMISSION = (REFUSED, FOREIGN)


class AdmissionMetrics:
    """The counters. Owner: the event loop's thread; the broker makes one."""

    def __init__(self) -> None:
        self.refused: dict[tuple[str, str], int] = {}
        self.foreign: dict[tuple[str, str], int] = {}

    def on_refused(self, listener: str, reason: str) -> None:
        """Count a connection that was refused or ended."""
        self.refused[listener, reason] = self.refused.get((listener, reason), 0) + 1

    def on_foreign(self, listener: str, protocol: str) -> None:
        """Count a connection that began with another protocol."""
        self.foreign[listener, protocol] = self.foreign.get((listener, protocol), 0) + 1

    def samples(self) -> list[Sample]:
        """Return the present values."""
        return [
            Sample(spec=spec, labels=labels, value=count)
            for spec, counts in ((REFUSED, self.refused), (FOREIGN, self.foreign))
            for labels, count in sorted(counts.items())
        ]
