"""The metrics of connections between nodes: those that were refused."""

from dlogd.telemetry.metrics import MetricSpec

PEERS_REFUSED = MetricSpec(
    name="dlog_node_connections_refused_total",
    kind="counter",
    doc="Connections refused on the listeners for nodes (internal, raft), by reason.",
    labels=("listener", "reason"),
)
PEERS = (PEERS_REFUSED,)
