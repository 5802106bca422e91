"""Metrics of replication: traffic, fetches, lag."""

from typing import Literal

from dlogd.telemetry.admission_metrics import ADMISSION
from dlogd.telemetry.http_metrics import HTTP
from dlogd.telemetry.metrics import MetricSpec, known_specs
from dlogd.telemetry.peer_metrics import PEERS


def _spec(
    name: str, doc: str, *labels: str, kind: Literal["counter", "gauge"] = "gauge"
) -> MetricSpec:
    return MetricSpec(name=f"dlog_replication_{name}", kind=kind, doc=doc, labels=labels)


def _total(name: str, doc: str) -> MetricSpec:
    return _spec(f"{name}_total", doc, kind="counter")


ISR_EXPANDS = _total("isr_expands", "Replicas that joined an ISR, as proposed by this leader.")
ISR_SHRINKS = _total("isr_shrinks", "Times that this leader dropped replicas that lagged.")
ISR_REFUSED = _total("isr_changes_refused", "Changes of ISRs that the metadata refused.")
BYTES_OUT = _total("sent_bytes", "Bytes of records that this leader sent to followers.")
BYTES_IN = _total("fetched_bytes", "Bytes of records that this node took from leaders.")
CONNECTS = _total("connects", "Connections to leaders that were tried.")
FAILURES = _total("failures", "Connections to leaders that failed or broke.")
REFUSALS = _total("refusals", "Partitions that a leader refused to send, as after failovers.")
TRUNCATIONS = _total("truncations", "Logs that were truncated or restarted to follow their leader.")
MENDED = _total("mended_places", "Damaged places that were mended from another replica.")
MEND_FAILURES = _total("mend_failures", "Attempts to mend a damaged place that failed.")
LAG_RECORDS = _spec(
    "lag_records", "Records that followers do not hold safely yet, of partitions led here.", "node"
)
LAG_BYTES = _spec("lag_bytes", "About how many bytes these are.", "node")
LAG_SECONDS = _spec(
    "lag_seconds_max",
    "For how long the follower that is furthest behind has not held all that there was.",
    "node",
)
FOLLOWED = _spec("followed_partitions", "Partitions led here that a node follows.", "node")
FOLLOWING = _spec("following_partitions", "Partitions that this node follows, by leader.", "node")
CONNECTED = _spec("leader_connected", "1 while a leader is being followed.", "node")
UNDER_REPLICATED = _spec(
    "under_replicated_partitions", "Partitions led here with replicas out of sync."
)
UNDER_MIN_ISR = _spec(
    "under_min_isr_partitions", "Partitions led here that refuse acks=all, lacking replicas."
)
AT_MIN_ISR = _spec(
    "at_min_isr_partitions",
    "Partitions led here that would refuse acks=all with one replica less in sync.",
)
STUCK = _spec(
    "stuck_partitions",
    "Partitions whose log here did not take what their leader sent last; `/status` says why.",
)
REPLICATION = (
    *(ISR_EXPANDS, ISR_SHRINKS, ISR_REFUSED, BYTES_OUT, BYTES_IN, CONNECTS, FAILURES, REFUSALS),
    *(TRUNCATIONS, MENDED, MEND_FAILURES, LAG_RECORDS, LAG_BYTES, LAG_SECONDS, FOLLOWED),
    *(FOLLOWING, CONNECTED, UNDER_REPLICATED, UNDER_MIN_ISR, AT_MIN_ISR, STUCK),
)
"""What a node of several has beside."""


def all_specs() -> list[MetricSpec]:
    """Return every metric that this daemon can expose, by name."""
    specs = [*known_specs(), *ADMISSION, *HTTP, *PEERS, *REPLICATION]
    return sorted(specs, key=lambda spec: spec.name)
