"""The node: all parts put together, started in order and stopped in reverse.

The composition root. Nothing is global: clock, randomness, loop, directories and engine are passed
in, so that many nodes can live in one process (and do, in the simulation).
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from dlog.errors import ConfigError, KafkaStorageError
from dlog.types import NodeId
from dlogd.clock import Clock
from dlogd.clustering import Clustering, OpenQuorum
from dlogd.config.schema import Config
from dlogd.metadata.delta import ImageDelta
from dlogd.metadata.image import Applied, ClusterImage, NodeAddress
from dlogd.metadata.raft.thread import ThreadedRaftStore
from dlogd.metadata.store import MetadataStore
from dlogd.metadata.surface import Metadata
from dlogd.registration import LISTENER_NAME, registration
from dlogd.replication.manager import Placement, ReplicaManager
from dlogd.server.asking import NodeAsker
from dlogd.server.context import LogDir, ServerContext, settled
from dlogd.server.dispatch import Dispatcher
from dlogd.server.handlers.fetch import FetchHandler
from dlogd.server.handlers.produce import ProduceHandler
from dlogd.server.listener import Listener
from dlogd.server.router import RequestRouter
from dlogd.status.node import NodeReport
from dlogd.status.pages import ACTIVE
from dlogd.storage.buffers import BufferPool
from dlogd.storage.engine import Engine
from dlogd.storage.files import Directory
from dlogd.storage.homes import Home
from dlogd.storage.log_state import LogServices
from dlogd.storage.manager import LogManager
from dlogd.storage.open_segments import OpenSegments
from dlogd.storage.tail import AppendMemory
from dlogd.storage_facts import log_dirs, storage_settings
from dlogd.tasks import Tasks
from dlogd.telemetry.metrics import Source, Telemetry

log = logging.getLogger(__name__)

REGISTER_TIMEOUT_MS = 30_000
META = "meta"
NAMES_SHOWN = 20

# How much of the shutdown time-out has passed at most when ...
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
        rng: random.Random,
        open_directory: Callable[[str], Directory],
        engine: Engine,
        on_failure: Callable[[str], None] | None = None,
        open_quorum: OpenQuorum = ThreadedRaftStore.open,
    ) -> None:
        """`on_failure(reason)`: the node cannot go on; the process should end."""
        self.config = config
        self.node_id = NodeId(config.node.id)
        self.telemetry = Telemetry()
        self.bound: list[tuple[str, int]] = []
        """Where clients connect, one (host, port) for each listener."""
        self.phase = "not started"
        self.report = NodeReport(self, clock)
        self.logs: LogManager | None = None
        self.store: Metadata | None = None
        self.clustering: Clustering | None = None
        """What a node of several has beside; None when it is alone."""
        self.replicas: ReplicaManager | None = None
        self.listeners: list[Listener] = []
        self.hanging: list[str] = []
        """What `stop` waited for in vain: the engine and its threads may never end."""
        self._loop = loop
        self._clock = clock
        self._rng = rng
        self._open_directory = open_directory
        self._engine = engine
        self._on_failure = on_failure
        self._open_quorum = open_quorum
        self._tasks = Tasks()
        self._context: ServerContext | None = None
        self._fetch: FetchHandler | None = None
        self._internal: NodeAddress | None = None

    # -- start

    async def start(self) -> None:
        """Return when clients are served. Raises ConfigError, OSError, DlogError."""
        self.phase = "reading metadata"
        store = self.store = await self._open_store()
        self.phase = "opening data directories"
        logs = self.logs = self._make_logs()
        wanted_id = self.config.cluster.id or store.image.cluster_id or None
        has_metadata = store.image.version > 0
        cluster_id = await logs.claim(self.node_id, wanted_id, has_metadata=has_metadata)
        if store.image.cluster_id and store.image.cluster_id != cluster_id:
            raise ConfigError(
                f"The metadata is of cluster {store.image.cluster_id}, the data directories are of"
                f" {cluster_id}: set metadata.directory and data.directories of one cluster"
            )
        self.phase = "binding listeners"
        replicas = self.replicas = self._make_replicas(logs)
        await self._bind(replicas)
        known = store.image.nodes.get(self.node_id)
        if self.clustering is None:
            await self._register(store, logs, cluster_id)
        else:
            self._internal = await self.clustering.listen()
        self.phase = "recovering logs"
        store.subscribe(self._on_image)
        await replicas.start(store.image, known.directory_ids if known is not None else ())
        if self.clustering is not None:
            # What recovery found is part of the registration; with it the node asks for its lease.
            self.phase = "registering"
            await self._register(store, logs, cluster_id)
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

    async def _open_store(self) -> Metadata:
        path = self.config.metadata.directory
        first = self.config.data.directories[0]
        if path is None:
            root = self._open_directory(first)
            directory = await self._engine.run(partial(root.directory, META, create=True))
        else:
            directory = self._open_directory(path)
        if self.config.controllers is not None:
            self.phase = "waiting for the quorum of the metadata"
            self.clustering = await Clustering.open(
                directory,
                self.config,
                self._open_directory,
                loop=self._loop,
                engine=self._engine,
                clock=self._clock,
                rng=self._rng,
                tasks=self._tasks,
                on_failed=self._on_store_failed,
                open_quorum=self._open_quorum,
            )
            return self.clustering.store
        return await MetadataStore.open(
            directory, self._engine, clock=self._clock, on_failed=self._on_store_failed
        )

    def _on_store_failed(self, error: Exception) -> None:
        self._fail(f"the metadata cannot be written: {error}")

    def _fail(self, reason: str) -> None:
        if self._on_failure is not None:
            self._on_failure(reason)

    def _make_logs(self) -> LogManager:
        config = self.config
        pool = BufferPool(
            config.append.memory_bytes, call_soon=self._loop.call_soon, huge_pages=True
        )
        services = LogServices(
            loop=self._loop,
            clock=self._clock,
            engine=self._engine,
            memory=AppendMemory(pool),
            tasks=self._tasks,
            metrics=self.telemetry.storage,
            open_segments=OpenSegments(),
        )
        logs = LogManager(
            [self._open_directory(path) for path in config.data.directories],
            services=services,
            rng=self._rng,
            settings=storage_settings(config),
        )
        logs.on_directory_failed = self._on_directory_failed
        return logs

    def _on_directory_failed(self, home: Home, error: OSError) -> None:
        if self.logs is not None and all(each.failure is not None for each in self.logs.homes):
            self._fail(f"the last data directory failed: {home.path}: {error}")

    def _make_replicas(self, logs: LogManager) -> ReplicaManager:
        place = Placement(
            node_id=self.node_id, loop=self._loop, clock=self._clock, engine=self._engine
        )
        return ReplicaManager(logs, self.config, place)

    async def _bind(self, replicas: ReplicaManager) -> None:
        config = self.config
        context = self._context = self._make_context(replicas)
        fetch = self._fetch = FetchHandler(
            replicas, self._loop, self._clock, self._tasks, self.telemetry
        )
        router = RequestRouter(
            ProduceHandler(replicas, self._clock, self.telemetry),
            fetch,
            Dispatcher(context, self.telemetry),
            self._clock,
            self._tasks,
            self.telemetry,
        )
        for address in config.listeners:
            listener = Listener(
                self._loop,
                self._engine,
                router,
                self._clock,
                self.telemetry.server,
                frame_bytes_max=config.frame.bytes_max,
                inflight_bytes_max=config.inflight.bytes_max,
                inflight_requests_max=config.inflight.requests_max,
                connection_count_max=config.connections.max,
                connection_per_ip_max=config.connections.per_ip_max,
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
            rng=self._rng,
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

    async def _register(self, store: Metadata, logs: LogManager, cluster_id: str) -> None:
        """Make this start known: a new node epoch, and new leader epochs where this node leads."""
        addresses = [self._advertised()]
        if self._internal is not None:
            addresses.append(self._internal)
        offline = self.replicas.offline_keys() if self.replicas is not None else ()
        command = registration(
            self.config,
            store.image,
            command_id=UUID(int=self._rng.getrandbits(128), version=4),
            cluster_id=cluster_id,
            present=logs.directory_ids,
            addresses=tuple(addresses),
            offline=sorted(offline),
        )
        outcome: Applied = settled(
            await store.propose(command, self._clock.now_ms() + REGISTER_TIMEOUT_MS)
        )
        log.info("Registered node=%d node_epoch=%d", self.node_id, outcome.value)
        if self.clustering is not None:
            await self.clustering.begin(outcome.value)

    def _advertised(self) -> NodeAddress:
        host, port = self.bound[0]
        advertised = self.config.advertised.address
        if advertised is not None:
            host, port = advertised.host, advertised.port or port
        return NodeAddress(listener=LISTENER_NAME, host=host, port=port)

    # -- while running

    def _on_image(self, old: ClusterImage, new: ClusterImage, delta: ImageDelta) -> None:
        if self.replicas is not None:
            self.replicas.on_image(new)

    async def _log_dirs(self) -> list[LogDir]:
        return log_dirs(self.logs.homes if self.logs is not None else ())

    def reconfigure(self, config: Config) -> None:
        """Take over the values of reloadable keys."""
        self.config = config
        if self._context is not None:
            self._context.config = config
        if self.logs is not None:
            self.logs.reconfigure(storage_settings(config))
        if self.replicas is not None:
            self.replicas.reconfigure(config)
        for listener in self.listeners:
            listener.reconfigure(
                connection_count_max=config.connections.max,
                connection_per_ip_max=config.connections.per_ip_max,
                idle_timeout_s=config.connections.idle_timeout_ms / 1000,
            )

    def metric_sources(self) -> Sequence[Source]:
        """Return what samples gauges at scrape time."""
        return (self.report.samples,)

    def not_ready_reason(self) -> str | None:
        """Say in one line why the node does not serve clients, None when it does."""
        return self.report.not_ready_reason()

    def status(self) -> Mapping[str, Any]:
        """Return the content of /status."""
        return self.report.status()

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

        if self._fetch is not None:
            self._fetch.stop()
        await asyncio.gather(*(each.stop(timeout_s * DRAIN_SHARE) for each in self.listeners))
        if self.replicas is not None:
            try:
                await asyncio.wait_for(self.replicas.stop(), left_s(SNAPSHOT_SHARE))
            except TimeoutError:
                log.warning(
                    "Stop waited in vain for producer snapshots partitions=%s",
                    ",".join(self._unflushed()) or "none unflushed",
                )
        if self.clustering is not None:
            await self.clustering.stop()
        if self.logs is not None:
            self.hanging += await self.logs.close(timeout_s=left_s(LOGS_SHARE))
        if self.store is not None:
            try:
                await asyncio.wait_for(self.store.close(), left_s(1.0))
            except TimeoutError:
                self.hanging.append("metadata")
        await self._tasks.close()
        self.phase = "stopped"
        self._judge_stop()

    def _judge_stop(self) -> None:
        problems = []
        if self.hanging:
            timeout_ms = self.config.shutdown.timeout_ms
            hanging = _some(self.hanging)
            problems.append(f"after shutdown.timeout={timeout_ms}ms still not ended: {hanging}")
        if unflushed := self._unflushed():
            problems.append(f"not all is on the disk of {_some(unflushed)}")
        if problems:
            raise KafkaStorageError("; ".join(problems))

    def _unflushed(self) -> list[str]:
        """Return partitions in service whose end is not on stable storage."""
        logs = self.logs.logs.values() if self.logs is not None else ()
        return [
            str(each.topic_partition)
            for each in logs
            if each.failed is None and each.flushed_offset < each.log_end_offset
        ]


def _some(names: Sequence[str]) -> str:
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
