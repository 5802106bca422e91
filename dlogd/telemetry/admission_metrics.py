"""Metric of admission: connections that listeners refused or ended, by listener and reason."""

from dlogd.telemetry.metrics import MetricSpec, Sample

REFUSED = MetricSpec(
    name="dlog_admission_refused_total",
    kind="counter",
    doc="Connections refused or ended by admission, by listener and reason.",
    labels=("listener", "reason"),
)
ADMISSION = (REFUSED,)


class AdmissionMetrics:
    """The counter. Owner: the event loop's thread; the broker makes one."""

    def __init__(self) -> None:
        self.refused: dict[tuple[str, str], int] = {}

    def on_refused(self, listener: str, reason: str) -> None:
        """Count a connection that was refused or ended."""
        self.refused[listener, reason] = self.refused.get((listener, reason), 0) + 1

    def samples(self) -> list[Sample]:
        """Return the present values."""
        return [
            Sample(spec=REFUSED, labels=labels, value=count)
            for labels, count in sorted(self.refused.items())
        ]
