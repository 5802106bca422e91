"""Metrics of refused connections between nodes."""

from dlogd.telemetry.metrics import MetricSpec

PEERS_REFUSED = MetricSpec(
    name="dlog_node_connections_refused_total",
    kind="counter",
    doc="Connections refused on the listeners for nodes (internal, raft), by reason.",
    labels=("listener", "reason"),
)
PEERS = (PEERS_REFUSED,)
