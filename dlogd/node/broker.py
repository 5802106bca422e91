"""Broker: all parts of a node, started in order and stopped in reverse.

The composition root. Nothing is global: clock, randomness, loop, directories and engine are passed
in, so that many nodes can live in one process (and do, in the simulation).
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from dlog.errors import ConfigError, StartRefusedError
from dlog.types import NodeId
from dlogd.config.schema import Config
from dlogd.metadata.interface import Metadata
from dlogd.metadata.local_store import MetadataStore
from dlogd.metadata.raft.feature_level import UnknownLevelError
from dlogd.metadata.raft.thread import ThreadedRaftStore
from dlogd.metadata.state.delta import ImageDelta
from dlogd.metadata.state.image import ClusterImage
from dlogd.node.cluster_node import WAITING, ClusterNode, OpenQuorum
from dlogd.node.offline_reports import OfflineReports
from dlogd.node.registration import client_address
from dlogd.node.replication_setup import ReplicationSetup
from dlogd.node.startup import Startup
from dlogd.node.stop_verdict import judge_stop, unflushed
from dlogd.node.storage_setup import log_dirs, make_logs, metadata_directory, storage_settings
from dlogd.replication.partition.lease import ENDLESS
from dlogd.replication.replica_manager import Placement, ReplicaManager
from dlogd.runtime.clock import Clock
from dlogd.runtime.randomness import Randomness
from dlogd.runtime.tasks import Tasks
from dlogd.server.batch_unpacker import BatchUnpacker
from dlogd.server.context import LogDir, ServerContext
from dlogd.server.dispatch import Dispatcher
from dlogd.server.handlers.fetch import FetchHandler
from dlogd.server.handlers.produce import ProduceHandler
from dlogd.server.leader_hints import LeaderHints
from dlogd.server.listener import Listener, bounds_of
from dlogd.server.node_client import NodeAsker
from dlogd.server.router import RequestRouter
from dlogd.status.node_page import NodeReport
from dlogd.status.pages import ACTIVE
from dlogd.storage.directory.log_directory import LogDirectory
from dlogd.storage.io.files import Directory
from dlogd.storage.io.io_engine import Engine
from dlogd.storage.log_manager import LogManager
from dlogd.telemetry.admission_metrics import AdmissionMetrics
from dlogd.telemetry.metrics import Source, Telemetry

log = logging.getLogger(__name__)

# How much of the shutdown time-out has passed at most when ...
LEAVE_SHARE = 0.3  # ... others lead what this node led
DRAIN_SHARE = 0.5  # ... clients have collected their answers
SNAPSHOT_SHARE = 0.7  # ... producer states are written
LOGS_SHARE = 0.95  # ... logs are closed; the rest is for the metadata


class Broker:
    """One node. Life: `start`, then `stop` once (also after a start that failed)."""

    def __init__(
        self,
        config: Config,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        randomness: Randomness,
        open_directory: Callable[[str], Directory],
        engine: Engine,
        on_failure: Callable[[str | StartRefusedError], None] = log.critical,
        open_quorum: OpenQuorum = ThreadedRaftStore.open,
    ) -> None:
        """`on_failure(reason)`: the node cannot go on; the process should end."""
        self.config = config
        self.waiting_keys: tuple[str, ...] = ()
        self.node_id = NodeId(config.node.id)
        self.telemetry = Telemetry()
        self.admission = AdmissionMetrics()
        self.bound: list[tuple[str, int]] = []
        """Where clients connect, one (host, port) for each listener."""
        self.phase = "not started"
        self.report = NodeReport(self, clock)
        self.logs: LogManager | None = None
        self.store: Metadata | None = None
        self.clustering: ClusterNode | None = None
        """What a node of several has beside; None when it is alone."""
        self.replicas: ReplicaManager | None = None
        self.replicating: ReplicationSetup | None = None
        self.reports: OfflineReports | None = None
        self.listeners: list[Listener] = []
        self.hanging: list[str] = []
        """What `stop` waited for in vain: the engine and its threads may never end."""
        self._loop = loop
        self._clock = clock
        self._randomness = randomness
        self._open_directory = open_directory
        self._engine = engine
        self._fail = on_failure
        self._open_quorum = open_quorum
        # However many requests wait, they take no place from what the node does by itself.
        self._tasks, self._requests = Tasks(fail=on_failure), Tasks()
        self._context: ServerContext | None = None
        self._fetch: FetchHandler | None = None
        self._closing: asyncio.Task[None] | None = None

    # -- start

    async def start(self) -> None:
        """Return when clients are served. Raises ConfigError, OSError, DlogError."""
        self.phase = "reading metadata"
        store = self.store = await self._open_store()
        self.phase = "opening data directories"
        logs = self.logs = self._make_logs()
        wanted_id = self.config.cluster.id or store.image.cluster_id or None
        cluster_id = await logs.claim(self.node_id, wanted_id, has_metadata=store.image.version > 0)
        if store.image.cluster_id and store.image.cluster_id != cluster_id:
            raise ConfigError(
                f"The metadata is of cluster {store.image.cluster_id}, the data directories are of"
                f" {cluster_id}: set metadata.directory and data.directories of one cluster"
            )
        self.phase = "binding listeners"
        replicas = self.replicas = self._make_replicas(logs)
        await self._bind(replicas)
        starting = Startup(
            self.config,
            logs,
            replicas,
            clock=self._clock,
            entropy=self._randomness.entropy,
            clients=client_address(self.config, self.bound[0]),
            enter=self._enter,
            tasks=self._tasks,
        )
        if self.clustering is None:
            await starting.alone(store, self._on_image)
        else:
            assert self.replicating is not None
            await starting.join(self.clustering, self._on_image, self.replicating.start)
            self.reports = OfflineReports(
                self.clustering.store,
                self.node_id,
                logs,
                replicas,
                clock=self._clock,
                new_id=self.clustering.new_id,
                node_epoch=self.clustering.own_epoch,
            )
            self.reports.start(self._tasks)
        for listener in self.listeners:
            await listener.serve()
        self.phase = ACTIVE
        log.info(
            "Serving clients node=%d cluster=%s listeners=%s partitions=%d",
            self.node_id,
            cluster_id,
            ",".join(f"{host}:{port}" for host, port in self.bound),
            len(replicas.by_id),
        )

    def _enter(self, phase: str) -> None:
        self.phase = phase

    async def _open_store(self) -> Metadata:
        find = partial(metadata_directory, self.config, self._open_directory)
        directory = await self._engine.run(find)
        if self.config.controllers is not None:
            self.phase = WAITING
            self.clustering = await ClusterNode.open(
                directory,
                self.config,
                self._open_directory,
                loop=self._loop,
                engine=self._engine,
                clock=self._clock,
                randomness=self._randomness,
                tasks=self._tasks,
                on_failed=self._on_store_failed,
                open_quorum=self._open_quorum,
                say=self._enter,
            )
            self.clustering.on_superseded = self._fail
            return self.clustering.store
        return await MetadataStore.open(
            directory, self._engine, clock=self._clock, on_failed=self._on_store_failed
        )

    def _on_store_failed(self, error: Exception) -> None:
        if self.clustering is not None:
            # It will not hear who leads instead, and would go on to serve what it has.
            self.clustering.keeper.surrender()
        if isinstance(error, UnknownLevelError):
            self._fail(error)  # a restart would not help
        else:
            self._fail(f"the metadata cannot be written: {error}")

    def _make_logs(self) -> LogManager:
        logs = make_logs(
            self.config,
            self._open_directory,
            loop=self._loop,
            clock=self._clock,
            entropy=self._randomness.entropy,
            engine=self._engine,
            tasks=self._tasks,
            telemetry=self.telemetry,
        )
        logs.on_directory_failed = self._on_directory_failed
        return logs

    def _on_directory_failed(self, home: LogDirectory, error: OSError) -> None:
        if self.reports is not None:
            self.reports.look_now()
        if self.logs is not None and all(each.failure is not None for each in self.logs.homes):
            self._fail(f"the last data directory failed: {home.path}: {error}")

    def _make_replicas(self, logs: LogManager) -> ReplicaManager:
        clustering = self.clustering
        place = Placement(
            node_id=self.node_id,
            loop=self._loop,
            clock=self._clock,
            lease=clustering.lease if clustering is not None else ENDLESS,
            fail=self._fail,
        )
        replicas = ReplicaManager(logs, self.config, place)
        if clustering is not None:
            clustering.keeper.on_change = lambda _: replicas.roles.on_lease()
            self.replicating = ReplicationSetup(
                clustering,
                replicas,
                loop=self._loop,
                engine=self._engine,
                clock=self._clock,
                rng=self._randomness.rng,
                tasks=self._tasks,
            )
        return replicas

    async def _bind(self, replicas: ReplicaManager) -> None:
        config = self.config
        context = self._context = self._make_context(replicas)
        hints = LeaderHints(self.node_id, context.image)
        fetch = self._fetch = FetchHandler(
            replicas, self._loop, self._clock, self._requests, self.telemetry, hints
        )
        unpacker = BatchUnpacker(self._requests, self._engine.run)
        produce = ProduceHandler(replicas, self._clock, self.telemetry, hints, unpacker)
        dispatcher = Dispatcher(context, self.telemetry)
        router = RequestRouter(
            produce, fetch, dispatcher, self._clock, self._requests, self.telemetry
        )
        if self.replicating is not None:
            self.replicating.attach(fetch, context, router, self.telemetry.server)
        for address in config.listeners:
            listener = Listener(
                self._loop,
                self._engine,
                router,
                self._clock,
                self.telemetry.server,
                self.admission,
                frame_bytes_max=config.frame.bytes_max,
                inflight_bytes_max=config.inflight.bytes_max,
                inflight_requests_max=config.inflight.requests_max,
                bounds=bounds_of(config.connections),
                idle_timeout_s=config.connections.idle_timeout_ms / 1000,
            )
            self.listeners.append(listener)
            port = await listener.bind(address.host, address.port)
            self.bound.append((address.host, port))

    def _make_context(self, replicas: ReplicaManager) -> ServerContext:
        store = self.store
        assert store is not None

        def producer_id_in_use(first: int, end: int) -> int:
            known = (each.producers.highest(first, end) for each in replicas.by_id.values())
            return max(known, default=-1)

        return ServerContext(
            producer_id_in_use=producer_id_in_use,
            node_id=self.node_id,
            config=self.config,
            clock=self._clock,
            entropy=self._randomness.entropy,
            image=lambda: store.image,
            propose_command=store.propose,
            partition=replicas.partition,
            partition_by_id=replicas.partition_by_id,
            log_dirs=self._log_dirs,
            await_partitions=replicas.await_partitions,
            offline=replicas.offline_keys,
            quorum=None if self.clustering is None else self.clustering.store,
            ask_node=NodeAsker(self._loop, lambda: store.image).ask,
        )

    # -- while running

    def _on_image(self, old: ClusterImage, new: ClusterImage, delta: ImageDelta) -> None:
        if self.replicas is not None:
            self.replicas.on_image(new, delta)
        if self.replicating is not None:
            self.replicating.on_image(new, delta)
        if delta.nodes_changed and self._context is not None:
            self._context.lingering.on_image(old, new, self._clock.now_ms())

    async def _log_dirs(self) -> list[LogDir]:
        return log_dirs(self.logs.homes if self.logs is not None else ())

    def reconfigure(self, config: Config, waiting_keys: Sequence[str] = ()) -> None:
        """Take over the values of reloadable keys; the others in the file wait for a restart."""
        self.config, self.waiting_keys = config, tuple(waiting_keys)
        if self._context is not None:
            self._context.config = config
        if self.logs is not None:
            self.logs.reconfigure(storage_settings(config))
        if self.replicas is not None:
            self.replicas.reconfigure(config)
        for listener in self.listeners:
            listener.reconfigure(config.connections)

    def metric_sources(self) -> Sequence[Source]:
        """Return what samples gauges at scrape time."""
        return (self.report.samples, self.admission.samples)

    def not_ready_reason(self) -> str | None:
        """Say in one line why the node does not serve clients, None when it does."""
        return self.report.not_ready_reason()

    def status(self) -> Mapping[str, Any]:
        """Return the content of /status."""
        return self.report.status()

    def metadata(self) -> Callable[[], Mapping[str, Any]]:
        """Return what computes the content of /metadata, from any thread."""
        return self.report.metadata()

    async def digest(self, query: str) -> Mapping[str, Any]:
        """Return the content of /digest; raise HttpError."""
        return await self.report.digest(query)

    # -- stop

    async def stop(self) -> None:
        """Answer what is pending, flush, write the clean-shutdown marker, close everything.

        Takes `shutdown.timeout` at most. Raises KafkaStorageError, at the end, when not all that
        was appended could be flushed, or when something hangs: it is in `hanging`.
        """
        self.phase = "stopping"
        timeout_s = self.config.shutdown.timeout_ms / 1000
        begin = self._loop.time()

        def left_s(share: float) -> float:
            """Return the time up to a part of the whole."""
            return max(0.001, begin + timeout_s * share - self._loop.time())

        if self.clustering is not None:
            await self.clustering.take_leave(left_s(LEAVE_SHARE))
            if not self.clustering.has_lease():
                # Nobody settles what is proposed: clients must not be waited for in vain.
                await self._close_store(left_s(LEAVE_SHARE))
        if self._fetch is not None:
            self._fetch.stop()
        await asyncio.gather(*(each.stop(left_s(DRAIN_SHARE)) for each in self.listeners))
        if self.replicas is not None:
            try:
                await asyncio.wait_for(self.replicas.stop(), left_s(SNAPSHOT_SHARE))
            except TimeoutError:
                log.warning(
                    "Stop timed out waiting for producer snapshots partitions=%s",
                    ",".join(self._unflushed()) or "none unflushed",
                )
        if self.clustering is not None:
            await self.clustering.stop()
        if self.logs is not None:
            self.hanging += await self.logs.close(timeout_s=left_s(LOGS_SHARE))
        await self._close_store(left_s(1.0), is_last=True)
        await asyncio.gather(self._requests.close(), self._tasks.close())
        self.phase = "stopped"
        judge_stop(self.hanging, self._unflushed(), self.config.shutdown.timeout_ms)

    async def _close_store(self, timeout_s: float, *, is_last: bool = False) -> None:
        """Close the metadata; wait so long for that, the last time or not."""
        if self.store is None:
            return
        if self._closing is None:
            self._closing = self._tasks.spawn("close metadata", self.store.close())
        await asyncio.wait((self._closing,), timeout=timeout_s)
        if self._closing.done():
            self._closing.result()
        elif is_last:
            self.hanging.append("metadata")

    def _unflushed(self) -> list[str]:
        """Return partitions in service whose end is not on stable storage."""
        return unflushed(self.logs.logs.values()) if self.logs is not None else []
