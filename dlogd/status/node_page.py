"""Node part of the status: /status, readiness, and gauges sampled at scrape time."""

import hashlib
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from dlog import version
from dlog.types import NodeId
from dlogd.config.config_digest import digest_of
from dlogd.config.schema import Config
from dlogd.metadata.interface import Metadata
from dlogd.metadata.state import snapshot
from dlogd.metadata.state.image import EMPTY_IMAGE, ClusterImage
from dlogd.replication.replica_manager import ReplicaManager
from dlogd.runtime.clock import Clock
from dlogd.status.cluster_page import Clustered, ClusterReport
from dlogd.status.digest_page import DigestPage
from dlogd.status.pages import ACTIVE
from dlogd.status.replication_page import Replicates, ReplicationReport
from dlogd.storage.log_manager import LogManager
from dlogd.telemetry import metrics
from dlogd.telemetry.metrics import Sample, Telemetry

RECOVERING, STARTING = "recovering", "starting"
# What an operator reads; every other phase of the broker belongs to the start.
STATES = {"recovering logs": RECOVERING, ACTIVE: ACTIVE, "stopping": "draining", "stopped": "down"}


class Node(Protocol):
    """The broker, as its report sees it."""

    config: Config
    waiting_keys: tuple[str, ...]
    node_id: NodeId
    telemetry: Telemetry
    phase: str
    bound: list[tuple[str, int]]
    logs: LogManager | None
    store: Metadata | None
    replicas: ReplicaManager | None

    @property
    def clustering(self) -> Clustered | None:
        """None: the node is a cluster of its own."""

    @property
    def replicating(self) -> Replicates | None:
        """None: the node is a cluster of its own."""


class NodeReport:
    """Reads the node when somebody asks; keeps nothing but the time of the start."""

    def __init__(self, node: Node, clock: Clock) -> None:
        self._node = node
        self._clock = clock
        self._started_ms = clock.now_ms()
        self._started_at_ms = clock.timestamp_ms()
        self._cluster_report: ClusterReport | None = None
        self._digests = DigestPage()
        self._replication_report: ReplicationReport | None = None

    @property
    def state(self) -> str:
        """In one word: starting, recovering, active, draining, down."""
        return STATES.get(self._node.phase, STARTING)

    def not_ready_reason(self) -> str | None:
        """Say in one line why the node does not serve clients, None when it does."""
        node = self._node
        if node.phase == ACTIVE:
            return None
        if node.logs is not None and self.state == RECOVERING:
            done = sum(home.logs_done for home in node.logs.progress.homes)
            total = sum(home.logs_total for home in node.logs.progress.homes)
            size = sum(home.scanned_bytes for home in node.logs.progress.homes)
            return f"recovering logs: {done} of {total}, {size >> 20} MiB scanned"
        return node.phase

    def problems(self) -> list[str]:
        """Return why an operator should look, in sentences; empty when healthy."""
        node = self._node
        found = []
        reason = self.not_ready_reason()
        if reason is not None:
            found.append(f"not serving: {reason}")
        if node.logs is not None:
            for home in node.logs.homes:
                if home.failure is not None:
                    found.append(f"data directory {home.path} failed: {home.failure}")
                elif home.space.is_low:
                    found.append(f"data directory {home.path} is nearly full: appends are refused")
        if node.replicas is not None:
            found += [f"partition {tp}: {why}" for tp, why in node.replicas.offline().items()]
            found += node.replicas.damages()
        if node.store is not None and node.store.failed is not None:
            found.append(f"metadata cannot be written: {node.store.failed}")
        cluster = self._cluster()
        if cluster is not None:
            found += cluster.problems()
        return found

    def status(self) -> dict[str, Any]:
        """Return the content of /status: only what JSON has."""
        node = self._node
        problems = self.problems()
        image = node.store.image if node.store is not None else None
        cluster = self._cluster()
        flush = node.telemetry.storage.flush_seconds
        return {
            "version": version.VERSION,
            "node_id": int(node.node_id),
            "rack": node.config.node.rack,
            "cluster_id": image.cluster_id if image is not None else "",
            "state": self.state,
            "healthy": not problems,
            "problems": problems,
            "uptime_s": round((self._clock.now_ms() - self._started_ms) / 1000, 1),
            "started_at_ms": self._started_at_ms,
            "time_ms": self._clock.timestamp_ms(),
            "config": {
                "digest": digest_of(node.config),
                "waiting_keys": list(node.waiting_keys),
            },
            "listeners": [f"{host}:{port}" for host, port in node.bound],
            "controller": self._controller(image),
            "metadata_version": image.version if image is not None else -1,
            "maintenance": self._maintenance(image),
            "topics": len(image.topics) if image is not None else 0,
            "partitions": self._partition_counts(),
            "connections": node.telemetry.server.connections,
            "flush_policy": str(node.config.flush.policy),
            "flush_p99_ms": round(flush.quantile(0.99) * 1000, 3),
            "storage": node.logs.status() if node.logs is not None else {},
            "replication": self._replication_status(),
            **(cluster.status() if cluster is not None else {"lease": None, "fenced_nodes": []}),
        }

    def _replication(self) -> ReplicationReport | None:
        replicating = self._node.replicating
        if self._replication_report is None and replicating is not None:
            self._replication_report = ReplicationReport(replicating, self._clock)
        return self._replication_report

    def _replication_status(self) -> dict[str, Any] | None:
        report, replicas = self._replication(), self._node.replicas
        if report is None or replicas is None:
            return None
        return report.status(list(replicas.by_id.values()))

    async def digest(self, query: str) -> dict[str, Any]:
        """Return the content of /digest; raise HttpError."""
        return await self._digests.answer(self._node.replicas, query)

    def metadata(self) -> Callable[[], dict[str, Any]]:
        """Return what computes the content of /metadata; the image that it uses never changes.

        Two nodes with one version have one digest.
        """
        image = self._node.store.image if self._node.store is not None else EMPTY_IMAGE

        def compute() -> dict[str, Any]:
            data = snapshot.encode(image)
            return {
                "version": image.version,
                "digest": hashlib.sha256(data).hexdigest(),
                "bytes": len(data),
            }

        return compute

    def _cluster(self) -> ClusterReport | None:
        """Return the report about the cluster; None where the node is one by itself."""
        clustering = self._node.clustering
        if self._cluster_report is None and clustering is not None:
            self._cluster_report = ClusterReport(clustering, self._node.config, self._clock)
        return self._cluster_report

    def _maintenance(self, image: ClusterImage | None) -> dict[str, Any] | None:
        """Return who works on the cluster; None where the lock is free or has expired."""
        if image is None:
            return None
        lock = image.maintenance_at(self._clock.timestamp_ms())
        return None if lock is None else lock.facts

    def _controller(self, image: ClusterImage | None) -> int:
        if self._node.config.controllers is None:
            return int(self._node.node_id)
        return int(image.controller.node_id) if image is not None else -1

    def _partition_counts(self) -> dict[str, int]:
        replicas = self._node.replicas
        if replicas is None:
            return {"led": 0, "offline": 0}
        return {"led": replicas.led_count, "offline": len(replicas.offline())}

    def samples(self) -> Iterable[Sample]:
        """Yield the gauges that are known elsewhere."""
        node = self._node
        image = node.store.image if node.store is not None else None
        cluster_id = image.cluster_id if image is not None else ""
        info = (version.VERSION, str(node.node_id), cluster_id)
        yield Sample(metrics.NODE_INFO, info, 1)
        yield Sample(metrics.NODE_READY, (), float(node.phase == ACTIVE))
        yield Sample(metrics.TOPICS, (), len(image.topics) if image is not None else 0)
        if node.replicas is not None:
            yield from self._partition_samples(node.replicas)
            replication = self._replication()
            if replication is not None:
                yield from replication.samples(list(node.replicas.by_id.values()))
        cluster = self._cluster()
        if cluster is not None:
            yield from cluster.samples()
        if node.logs is not None:
            for home in node.logs.homes:
                labels = (home.path,)
                yield Sample(metrics.DIRECTORY_TOTAL, labels, home.space.total_bytes)
                yield Sample(metrics.DIRECTORY_FREE, labels, home.space.free_bytes)
                yield Sample(metrics.DIRECTORY_FAILED, labels, float(home.failure is not None))
                begun_ms, read_bytes = home.scrub_begun()
                yield Sample(metrics.DIRECTORY_SCRUB_BEGUN, labels, begun_ms / 1000)
                yield Sample(metrics.DIRECTORY_SCRUB_BYTES, labels, read_bytes)

    def _partition_samples(self, replicas: ReplicaManager) -> Iterable[Sample]:
        offline = len(replicas.offline())
        yield Sample(metrics.PARTITIONS, (), len(replicas.by_id) + len(replicas.failures))
        yield Sample(metrics.PARTITIONS_LED, (), replicas.led_count)
        yield Sample(metrics.PARTITIONS_OFFLINE, (), offline)
        partitions = list(replicas.by_id.values())
        # One of the counters, but nobody counts on the hot path what can be added up here.
        server = self._node.telemetry.server
        server.parked_produces = sum(each.waiting_count for each in partitions)
        for partition in partitions:
            name = partition.topic_partition
            labels = (name.topic, str(name.partition))
            plog = partition.log
            yield Sample(metrics.PARTITION_LOG_START, labels, plog.log_start_offset)
            yield Sample(metrics.PARTITION_HIGH_WATERMARK, labels, partition.high_watermark)
            yield Sample(metrics.PARTITION_LOG_END, labels, plog.log_end_offset)
            yield Sample(metrics.PARTITION_SIZE, labels, plog.size_bytes)
