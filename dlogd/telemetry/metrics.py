"""Metrics of the daemon: names, meanings, and the plain values behind them.

A hot path holds one of the groups below and adds to an attribute; nothing here locks, allocates or
knows Prometheus. `dlogd.telemetry.collector` reads the groups when somebody scrapes. What is known
elsewhere (partitions, directories) is not copied here but asked for at that moment: see `SAMPLED`.
"""

import dataclasses
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["counter", "gauge", "histogram"]

SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    10.0,
)  # fmt: skip
BYTES = tuple(float(4**power) for power in range(5, 14))  # 1 KiB to 64 MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpec:
    """Name, kind, help text and labels of one metric."""

    name: str
    kind: Kind
    doc: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric that is read at scrape time."""

    spec: MetricSpec
    labels: tuple[str, ...]
    value: float


Source = Callable[[], Iterable[Sample]]
"""Gives the values that are read at scrape time; called on the event loop's thread."""


class Histogram:
    """Observed values counted per bucket; upper bounds are inclusive, the last is infinite."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count `value`."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """Number of values seen."""
        return sum(self.counts)

    def quantile(self, fraction: float) -> float:
        """Estimate a quantile, linear within its bucket; 0 before the first value."""
        rank = fraction * self.count
        below = 0
        for index, bound in enumerate(self.bounds):
            count = self.counts[index]
            if count and below + count >= rank:
                lower = self.bounds[index - 1] if index else 0.0
                return lower + (bound - lower) * max(0.0, rank - below) / count
            below += count
        return self.bounds[-1] if below < self.count else 0.0


def _counter(name: str, doc: str) -> Any:
    return field(default=0, metadata={"spec": MetricSpec(name=name, kind="counter", doc=doc)})


def _gauge(name: str, doc: str) -> Any:
    return field(default=0, metadata={"spec": MetricSpec(name=name, kind="gauge", doc=doc)})


def _histogram(name: str, doc: str) -> dict[str, MetricSpec]:
    return {"spec": MetricSpec(name=name, kind="histogram", doc=doc)}


@dataclass(slots=True)
class ServerMetrics:
    """The listener's counters."""

    connections: int = _gauge("dlog_server_connections", "Client connections open now.")
    connections_total: int = _counter(
        "dlog_server_connections_total", "Client connections accepted since the start."
    )
    connections_refused_total: int = _counter(
        "dlog_server_connections_refused_total", "Connections closed at once: a limit was reached."
    )
    connections_broken_total: int = _counter(
        "dlog_server_connections_broken_total", "Connections closed for what the client sent."
    )
    connections_idle_total: int = _counter(
        "dlog_server_connections_idle_total", "Connections closed after their idle time-out."
    )
    connections_late_total: int = _counter(
        "dlog_server_connections_late_total", "Connections closed whose frame came too slowly."
    )
    connections_unread_total: int = _counter(
        "dlog_server_connections_unread_total", "Connections closed for large unread answers."
    )
    received_bytes_total: int = _counter("dlog_server_received_bytes_total", "Bytes from clients.")
    sent_bytes_total: int = _counter("dlog_server_sent_bytes_total", "Bytes written to clients.")
    inflight_bytes: int = _gauge(
        "dlog_server_inflight_bytes", "Bytes of requests that wait for their response."
    )
    inflight_entries: int = _gauge("dlog_server_inflight_entries", "Entries of open requests.")
    entries_waiting: int = _gauge("dlog_server_entries_waiting", "Requests that wait for entries.")
    entries_waits_total: int = _counter("dlog_server_entries_waits_total", "Waits for entries.")
    paused_connections: int = _gauge(
        "dlog_server_paused_connections", "Connections not read now because a limit is reached."
    )
    parked_fetches: int = _gauge("dlog_server_parked_fetches", "Fetches that wait for records.")
    parked_produces: int = _gauge(
        "dlog_server_parked_produces", "Produce requests that wait for their acknowledgement."
    )
    callback_errors_total: int = _counter(
        "dlog_server_callback_errors_total", "Unexpected errors in connection callbacks (bugs)."
    )


@dataclass(slots=True)
class StorageMetrics:
    """The storage engine's counters, over all partitions."""

    append_bytes_total: int = _counter(
        "dlog_storage_append_bytes_total", "Bytes of record batches appended."
    )
    append_batches_total: int = _counter(
        "dlog_storage_append_batches_total", "Record batches appended."
    )
    append_records_total: int = _counter("dlog_storage_append_records_total", "Records appended.")
    append_waits_total: int = _counter(
        "dlog_storage_append_waits_total", "Appends that had to wait for append memory."
    )
    append_refusals_total: int = _counter(
        "dlog_storage_append_refusals_total", "Appends refused because the disk is nearly full."
    )
    flush_seconds: Histogram = field(
        default_factory=Histogram,
        metadata=_histogram(
            "dlog_storage_flush_seconds", "Time from the start of a flush to stable storage."
        ),
    )
    flush_bytes: Histogram = field(
        default_factory=lambda: Histogram(BYTES),
        metadata=_histogram("dlog_storage_flush_bytes", "Bytes made durable by one flush."),
    )
    flush_failures_total: int = _counter(
        "dlog_storage_flush_failures_total", "Flushes that failed; each takes a log out of service."
    )
    fetch_bytes_total: int = _counter(
        "dlog_storage_fetch_bytes_total", "Bytes of record batches served."
    )
    tail_reads_total: int = _counter(
        "dlog_storage_tail_reads_total", "Fetched ranges that begin in memory."
    )
    disk_reads_total: int = _counter(
        "dlog_storage_disk_reads_total", "Fetched ranges that begin on a disk."
    )
    segments_rolled_total: int = _counter(
        "dlog_storage_segments_rolled_total", "Segments closed because of size or age."
    )
    segments_deleted_total: int = _counter(
        "dlog_storage_segments_deleted_total", "Segments deleted by retention or trimming."
    )
    recovered_bytes_total: int = _counter(
        "dlog_storage_recovered_bytes_total", "Bytes scanned after an unclean stop."
    )
    scrub_bytes_total: int = _counter(
        "dlog_storage_scrub_bytes_total", "Bytes of closed segments whose checksums were verified."
    )
    scrub_segments_total: int = _counter(
        "dlog_storage_scrub_segments_total", "Closed segments that were verified."
    )
    scrub_damages_total: int = _counter(
        "dlog_storage_scrub_damages_total", "Damaged places that the scrub has found."
    )
    append_memory_bytes: int = _gauge(
        "dlog_storage_append_memory_bytes", "Append memory in use, bytes."
    )


@dataclass(slots=True)
class LoopMetrics:
    """The event loop and the interpreter."""

    delay_seconds: Histogram = field(
        default_factory=Histogram,
        metadata=_histogram("dlog_loop_delay_seconds", "How late the event loop ran a timer."),
    )
    delay_seconds_max: float = _gauge(
        "dlog_loop_delay_seconds_max", "The longest delay of the event loop since the start."
    )
    gc_pause_seconds: Histogram = field(
        default_factory=Histogram,
        metadata=_histogram(
            "dlog_gc_pause_seconds", "Pauses of the process for Python's cyclic garbage collector."
        ),
    )
    log_lines_dropped_total: int = _counter(
        "dlog_log_lines_dropped_total", "Log lines dropped because their reader was too slow."
    )


REQUESTS = MetricSpec(
    name="dlog_server_requests_total", kind="counter", doc="Requests answered.", labels=("api",)
)
REQUEST_ERRORS = MetricSpec(
    name="dlog_server_request_errors_total",
    kind="counter",
    doc="Errors in responses, by Kafka's name of the error; one request may carry several.",
    labels=("api", "error"),
)
REQUEST_SECONDS = MetricSpec(
    name="dlog_server_request_seconds",
    kind="histogram",
    doc="Time from the last byte of a request to its response being handed to the socket. For"
    " Fetch the time includes the wait for new records (`max_wait_ms`).",
    labels=("api",),
)


class ApiMetrics:
    """Counters of one Kafka API."""

    __slots__ = ("errors", "requests", "seconds")

    def __init__(self) -> None:
        self.requests = 0
        self.seconds = Histogram()
        self.errors: dict[str, int] = {}

    def on_error(self, name: str) -> None:
        """Count an error, by Kafka's name of it."""
        self.errors[name] = self.errors.get(name, 0) + 1


class Telemetry:
    """All counters of one node. Owner: the event loop's thread; the broker makes one."""

    def __init__(self) -> None:
        self.server = ServerMetrics()
        self.storage = StorageMetrics()
        self.loop = LoopMetrics()
        self.apis: dict[str, ApiMetrics] = {}

    def api(self, name: str) -> ApiMetrics:
        """Return the counters of the API called `name`, the same object each time."""
        found = self.apis.get(name)
        if found is None:
            found = self.apis[name] = ApiMetrics()
        return found

    def values(self) -> Iterator[tuple[MetricSpec, int | float | Histogram]]:
        """Yield every metric without labels and its present value."""
        for group in (self.server, self.storage, self.loop):
            for item in dataclasses.fields(group):
                yield item.metadata["spec"], getattr(group, item.name)


def _partition(name: str, doc: str) -> MetricSpec:
    return MetricSpec(
        name=f"dlog_partition_{name}", kind="gauge", doc=doc, labels=("topic", "partition")
    )


def _directory(name: str, doc: str) -> MetricSpec:
    return MetricSpec(
        name=f"dlog_storage_directory_{name}", kind="gauge", doc=doc, labels=("directory",)
    )


PARTITION_LOG_START = _partition("log_start_offset", "First readable offset.")
PARTITION_HIGH_WATERMARK = _partition("high_watermark", "End of what consumers may read.")
PARTITION_LOG_END = _partition("log_end_offset", "Offset that the next record will get.")
PARTITION_SIZE = _partition("size_bytes", "Bytes of the partition's segments.")
DIRECTORY_TOTAL = _directory("total_bytes", "Size of the directory's file system.")
DIRECTORY_FREE = _directory("free_bytes", "Free space of the directory's file system.")
DIRECTORY_FAILED = _directory("failed", "1 when the directory is out of service.")
DIRECTORY_SCRUB_BEGUN = _directory(
    "scrub_begun_timestamp_seconds", "When the present or last round of the scrub began; 0: never."
)
DIRECTORY_SCRUB_BYTES = _directory("scrub_round_bytes", "Bytes that this round has verified.")
PARTITIONS = MetricSpec(
    name="dlog_partitions", kind="gauge", doc="Partitions with a replica on this node."
)
PARTITIONS_LED = MetricSpec(
    name="dlog_partitions_led", kind="gauge", doc="Partitions that this node leads."
)
PARTITIONS_OFFLINE = MetricSpec(
    name="dlog_partitions_offline", kind="gauge", doc="Partitions out of service on this node."
)
TOPICS = MetricSpec(name="dlog_topics", kind="gauge", doc="Topics in this node's metadata.")
NODE_READY = MetricSpec(name="dlog_node_ready", kind="gauge", doc="1 when the node serves clients.")
NODE_INFO = MetricSpec(
    name="dlog_node_info",
    kind="gauge",
    doc="Always 1; identity of this node.",
    labels=("version", "node_id", "cluster_id"),
)


def _cluster(
    name: str, doc: str, *labels: str, kind: Literal["counter", "gauge"] = "gauge"
) -> MetricSpec:
    return MetricSpec(name=f"dlog_{name}", kind=kind, doc=doc, labels=labels)


LEASE_VALID = _cluster("lease_valid", "1 while this node may lead.")
LEASE_LEFT = _cluster("lease_left_seconds", "How long the lease is still valid.")
LEASE_HEARTBEATS = _cluster("lease_heartbeats_total", "Heartbeats sent.", kind="counter")
LEASE_FAILURES = _cluster("lease_failures_total", "Heartbeats without answer.", kind="counter")
LEASE_LOST = _cluster("lease_lost_total", "Leases that ended.", kind="counter")
RAFT_LEADER = _cluster("raft_leader", "1 on the node that leads the metadata.")
RAFT_TERM = _cluster("raft_term", "Term of the metadata's Raft.")
RAFT_COMMIT = _cluster("raft_commit_index", "Last entry known to be committed.")
RAFT_LAST = _cluster("raft_last_index", "Last entry of this node's log.")
RAFT_SNAPSHOT = _cluster("raft_snapshot_index", "Last entry that the newest snapshot holds.")
RAFT_BYTES = _cluster("raft_log_bytes", "Size of the Raft log's file.")
RAFT_CONNECTED = _cluster("raft_peers_connected", "Other nodes connected for Raft.")
METADATA_VERSION = _cluster("metadata_version", "Version of this node's image of the cluster.")
CONTROLLER_ACTIVE = _cluster("controller_active", "1 on the node that acts as controller.")
CONTROLLER_PLANS = _cluster(
    "controller_plans_total", "Plans that this node carried out as controller.", kind="counter"
)
CONTROLLER_ELECTIONS = _cluster(
    "controller_elections_total", "Changes of leaders that this node has seen.", kind="counter"
)
UNCLEAN_ELECTIONS = _cluster(
    "controller_unclean_elections_total",
    "Leaders of the cluster, ever, that may have lacked acknowledged records.",
    kind="counter",
)
CONTROLLER_CONDEMNED = _cluster(
    "controller_nodes_given_up_total",
    "Nodes that this controller fenced, by reason.",
    "reason",
    kind="counter",
)
CLUSTER_NODES = _cluster("cluster_nodes", "Registered nodes; reported by the controller.")
CLUSTER_FENCED = _cluster("cluster_nodes_fenced", "Fenced nodes; reported by the controller.")
CLUSTER_PARTITIONS = _cluster(
    "cluster_partitions_abnormal",
    "Partitions that are not as they should be (leaderless, under_replicated, under_min_isr, "
    "not_preferred, reassigning) and offline_replicas; reported by the controller.",
    "state",
)
MEMBERSHIP_UP = _cluster("membership_up", "1 while the source of members can be asked.")
MEMBERSHIP_DISAGREEMENTS = _cluster(
    "membership_disagreements", "Differences between gossip and metadata about nodes."
)
CLUSTER = (
    *(LEASE_VALID, LEASE_LEFT, LEASE_HEARTBEATS, LEASE_FAILURES, LEASE_LOST),
    *(RAFT_LEADER, RAFT_TERM, RAFT_COMMIT, RAFT_LAST, RAFT_SNAPSHOT, RAFT_BYTES, RAFT_CONNECTED),
    *(METADATA_VERSION, CONTROLLER_ACTIVE, CONTROLLER_PLANS, CONTROLLER_ELECTIONS),
    *(UNCLEAN_ELECTIONS, CONTROLLER_CONDEMNED, CLUSTER_NODES, CLUSTER_FENCED, CLUSTER_PARTITIONS),
    *(MEMBERSHIP_UP, MEMBERSHIP_DISAGREEMENTS),
)
"""What a node of several has beside."""

LABELLED = (REQUESTS, REQUEST_ERRORS, REQUEST_SECONDS)
SAMPLED = (
    PARTITION_LOG_START,
    PARTITION_HIGH_WATERMARK,
    PARTITION_LOG_END,
    PARTITION_SIZE,
    DIRECTORY_TOTAL,
    DIRECTORY_FREE,
    DIRECTORY_FAILED,
    DIRECTORY_SCRUB_BEGUN,
    DIRECTORY_SCRUB_BYTES,
    PARTITIONS,
    PARTITIONS_LED,
    PARTITIONS_OFFLINE,
    TOPICS,
    NODE_READY,
    NODE_INFO,
    *CLUSTER,
)
"""What sources may give; each is read at scrape time."""


def known_specs() -> list[MetricSpec]:
    """Return every metric of this module."""
    plain = [spec for spec, _ in Telemetry().values()]
    return [*plain, *LABELLED, *SAMPLED]
