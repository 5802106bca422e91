"""What a node of a cluster has beside a node alone: Raft, leases, the controller when it leads.

Part of the composition: `dlogd.broker` makes one when `controllers` is configured.
"""

import asyncio
import logging
import os.path
import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol
from uuid import UUID

from dlog.address import Address
from dlog.errors import ConfigError
from dlog.transport import ConnectionOptions
from dlog.types import NodeId
from dlogd.clock import Clock
from dlogd.config.schema import Config
from dlogd.controller import heartbeats
from dlogd.controller.driver import ControllerDriver
from dlogd.controller.heartbeats import Heartbeat, Probe
from dlogd.controller.internal_server import InternalServer
from dlogd.controller.lease_keeper import LeaseKeeper
from dlogd.controller.lease_watch import LeaseWatch
from dlogd.controller.leases import Beat, LeaseTable
from dlogd.controller.liveness_service import LivenessService
from dlogd.controller.own_lease import OwnLease
from dlogd.controller.prober import Prober
from dlogd.controller.timings import LeaseTimings
from dlogd.farewell import take_leave
from dlogd.metadata.delta import ImageDelta
from dlogd.metadata.image import Applied, ClusterImage, NodeAddress
from dlogd.metadata.raft.handshake import SECRET_BYTES_MIN
from dlogd.metadata.raft.settings import RaftConfig
from dlogd.metadata.raft.thread import ThreadedRaftStore
from dlogd.metadata.raft.timings import RaftTimings
from dlogd.metadata.raft.voters import Voter, Voters
from dlogd.metadata.surface import Quorum
from dlogd.storage.engine import Engine
from dlogd.storage.files import Directory
from dlogd.tasks import Tasks

log = logging.getLogger(__name__)

INTERNAL = "internal"
"""The name of the listener for other nodes, in registrations."""
SECRET_BYTES_MAX = 4096
BARRIER_TIMEOUT_MS = 5_000
FAREWELL_S = 1.0
IDLE_LEASES = 10
"""A connection between nodes that is silent for so many leases is closed."""


def raft_timings(config: Config) -> RaftTimings:
    """Return the times of Raft."""
    raft = config.raft
    return RaftTimings(
        heartbeat_s=raft.heartbeat_ms / 1000,
        election_min_s=raft.election_min_ms / 1000,
        election_max_s=raft.election_max_ms / 1000,
        check_quorum_s=raft.check_quorum_ms / 1000,
        silence_s=raft.silence_ms / 1000,
        tick_s=min(0.02, raft.heartbeat_ms / 4000),
        ping_s=min(0.5, raft.silence_ms / 4000),
    )


def lease_timings(config: Config) -> LeaseTimings:
    """Return the times of leases."""
    lease = config.lease
    return LeaseTimings(
        heartbeat_ms=lease.heartbeat_ms,
        lease_ms=lease.duration_ms,
        authority_ms=lease.authority_ms,
        probe_timeout_ms=lease.probe_timeout_ms,
        image_lag_ms_max=lease.image_lag_ms_max,
        clock_drift_ppm=lease.clock_drift_ppm,
        # A follower waits for one time-out, and a vote may split once.
        election_ms_max=config.raft.election_max_ms,
    )


def problems(config: Config) -> list[str]:
    """Return which timings do not go together, in sentences."""
    if config.controllers is None:
        return []
    found = [f"raft: {each}" for each in raft_timings(config).problems()]
    return found + [f"lease: {each}" for each in lease_timings(config).problems()]


def read_secret(path: str, open_directory: Callable[[str], Directory]) -> bytes:
    """Return the cluster's secret; raise ConfigError. Blocking."""
    folder, name = os.path.split(os.path.abspath(path))
    try:
        file = open_directory(folder).open(name, read_only=True)
        try:
            secret = file.pread(min(file.size(), SECRET_BYTES_MAX), 0).strip()
        finally:
            file.close()
    except OSError as error:
        raise ConfigError(f"cluster.secret.file {path} cannot be read: {error}") from error
    if len(secret) < SECRET_BYTES_MIN:
        raise ConfigError(f"cluster.secret.file {path} has less than {SECRET_BYTES_MIN} bytes")
    return secret


def raft_config(config: Config, secret: bytes) -> RaftConfig:
    """Return who this node is among those that keep the metadata; raise ConfigError."""
    assert config.controllers is not None and config.cluster.id is not None
    wrong = problems(config)
    if wrong:
        raise ConfigError(wrong)
    own = config.metadata.listener
    if own is None:
        own = next(e.address for e in config.controllers if e.node_id == config.node.id)
    voters = Voters.of(
        Voter(node_id=each.node_id, host=each.address.host, port=each.address.port)
        for each in config.controllers
    )
    return RaftConfig(
        node_id=config.node.id,
        cluster=config.cluster.id,
        secret=secret,
        controllers=voters,
        host=own.host,
        port=own.port,
        timings=raft_timings(config),
    )


class OpenQuorum(Protocol):
    """How the metadata are opened: in a thread of their own, or (simulated) on the same loop."""

    def __call__(
        self,
        directory: Directory,
        config: RaftConfig,
        /,
        *,
        clock: Clock,
        rng: random.Random,
        on_failed: Callable[[Exception], None] | None,
    ) -> Coroutine[Any, Any, Quorum]:
        """Return the store once it takes part; raise what it raises."""


async def catch_up(store: Quorum, clock: Clock) -> None:
    """Return when the image has all that was acknowledged before: there is a quorum."""
    while not isinstance(await store.barrier(clock.now_ms() + BARRIER_TIMEOUT_MS), Applied):
        log.info("Waiting for the quorum of the metadata")
        await asyncio.sleep(0.2)


class Clustering:
    """The lease of this node, and the controller while this node is it.

    Owner: the event loop's thread. Life: `open`, `listen`, `begin`, then `stop` once.
    """

    @classmethod
    async def open(
        cls,
        directory: Directory,
        config: Config,
        open_directory: Callable[[str], Directory],
        *,
        loop: asyncio.AbstractEventLoop,
        engine: Engine,
        clock: Clock,
        rng: random.Random,
        tasks: Tasks,
        on_failed: Callable[[Exception], None],
        open_quorum: OpenQuorum = ThreadedRaftStore.open,
    ) -> "Clustering":
        """Open the metadata and return when there is a quorum; `stop` does not close it.

        Raises ConfigError, OSError and DlogError.
        """
        read = partial(read_secret, config.cluster.secret_file or "", open_directory)
        store = await open_quorum(
            directory,
            raft_config(config, await engine.run(read)),
            clock=clock,
            rng=random.Random(rng.getrandbits(64)),
            on_failed=on_failed,
        )
        caught_up = False
        try:
            await catch_up(store, clock)
            caught_up = True
        finally:
            if not caught_up:
                await store.close()
        return cls(config, store, loop=loop, clock=clock, rng=rng, tasks=tasks)

    def __init__(
        self,
        config: Config,
        store: Quorum,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        rng: random.Random,
        tasks: Tasks,
    ) -> None:
        self.lease = OwnLease()
        self.timings = lease_timings(config)
        self.node_id = NodeId(config.node.id)
        self._config = config
        self.store = store
        self._loop = loop
        self._clock = clock
        self._rng = rng
        self._tasks = tasks
        self._wants_shutdown = False
        self._leads_since_ms: int | None = None
        self._options = ConnectionOptions(client_id=heartbeats.CLIENT_ID)
        self.service = LivenessService(
            self.node_id,
            self.lease,
            clock=clock,
            cluster_id=lambda: config.cluster.id or "",
            image_version=lambda: store.image.version,
        )
        self.service.may_shut_down = self._may_shut_down
        idle_s = self.timings.lease_ms * IDLE_LEASES / 1000
        self.server = InternalServer(loop, self.service, idle_timeout_s=idle_s)
        self.keeper = LeaseKeeper(
            self.lease,
            self.timings,
            loop=loop,
            clock=clock,
            rng=rng,
            tasks=tasks,
            controller=lambda: self._address(store.image.controller.node_id),
            heartbeat=self._heartbeat,
        )
        self.driver = ControllerDriver(
            self.node_id,
            store,
            self.timings,
            clock=clock,
            tasks=tasks,
            new_id=self.new_id,
            node_epoch=self.own_epoch,
            make_watch=self._make_watch,
        )

    def own_epoch(self) -> int:
        """Return the node epoch of this life; -1 before it has registered."""
        return self.lease.node_epoch

    def new_id(self) -> UUID:
        """Return a fresh id for a command."""
        return UUID(int=self._rng.getrandbits(128), version=4)

    async def listen(self) -> NodeAddress:
        """Listen for other nodes and act as controller if need be; return what to register."""
        wanted = self._config.internal.listener
        port = await self.server.start(wanted.host, wanted.port)
        advertised = self._config.advertised.address
        host = wanted.host
        if wanted.is_wildcard and advertised is not None:
            host = advertised.host
        self.store.subscribe(self._on_image)
        self.store.on_leadership(self._on_leadership)
        self.driver.start()
        return NodeAddress(listener=INTERNAL, host=host, port=port)

    async def begin(self, node_epoch: int) -> None:
        """Ask for a lease: this life is registered and its logs are open."""
        self.lease.begin(node_epoch)
        await self.keeper.start()
        self.driver.wake()

    async def take_leave(self, timeout_s: float) -> None:
        """Let others lead what this node leads; return when they do, or cannot, or in time."""
        if self.lease.node_epoch < 0:
            return

        def ask() -> None:
            self._wants_shutdown = True
            self.keeper.beat_now()

        await take_leave(
            self.store, self.node_id, self.lease, self._clock, ask=ask, timeout_s=timeout_s
        )

    def _may_shut_down(self, node_id: NodeId) -> bool:
        node = self.store.image.nodes.get(node_id)
        return node is None or not node.active

    async def stop(self) -> None:
        """Give the lease up, act no more, close the port."""
        self.keeper.surrender()
        await asyncio.sleep(min(FAREWELL_S, self.timings.heartbeat_ms / 1000))
        await self.keeper.stop()
        await self.driver.stop()
        await self.server.stop()

    def has_outlived(self) -> bool:
        """Return whether this node leads the metadata for so long that no lease of others holds."""
        since_ms = self._leads_since_ms
        return since_ms is not None and (
            self._clock.now_ms() >= since_ms + self.timings.takeover_ms
        )

    def _on_leadership(self, leads: bool, term: int) -> None:
        self._leads_since_ms = self._clock.now_ms() if leads else None

    def lease_status(self) -> dict[str, Any]:
        """Return facts about the lease of this node, for /status."""
        return {
            "valid": self.lease.is_valid(self._clock.now_ms()),
            "node_epoch": self.lease.node_epoch,
            "problem": self.keeper.problem,
        }

    def _address(self, node_id: NodeId) -> Address | None:
        node = self.store.image.nodes.get(node_id)
        for each in node.addresses if node is not None else ():
            if each.listener == INTERNAL:
                return Address(each.host, each.port)
        return None

    def _heartbeat(self, sequence: int) -> Heartbeat:
        return Heartbeat(
            cluster_id=self._config.cluster.id or "",
            sequence=sequence,
            beat=Beat(
                node_id=self.node_id,
                node_epoch=self.lease.node_epoch,
                image_version=self.store.image.version,
                surrenders=self.lease.surrendered,
                wants_shutdown=self._wants_shutdown,
            ),
        )

    def _make_watch(self, table: LeaseTable, on_change: Callable[[], None]) -> LeaseWatch:
        def probe() -> Probe:
            return Probe(
                cluster_id=self._config.cluster.id or "",
                node_id=self.node_id,
                controller_epoch=table.controller_epoch,
            )

        timeout_s = self.timings.probe_timeout_ms / 1000
        return LeaseWatch(
            table,
            self.service,
            Prober(self._loop, probe, timeout_s=timeout_s, options=self._options),
            self.timings,
            loop=self._loop,
            clock=self._clock,
            tasks=self._tasks,
            address=self._address,
            prove=self._prove,
            on_change=on_change,
        )

    async def _prove(self) -> bool:
        deadline_ms = self._clock.now_ms() + self.timings.authority_ms
        return isinstance(await self.store.contact(deadline_ms), Applied)

    def _on_image(self, old: ClusterImage, new: ClusterImage, delta: ImageDelta) -> None:
        if new.controller != old.controller:
            self.lease.on_controller(new.controller.epoch)
            self.keeper.on_controller_changed()
        was, own = old.nodes.get(self.node_id), new.nodes.get(self.node_id)
        if own is None or self.lease.node_epoch < 0:
            return
        if own.node_epoch > self.lease.node_epoch or (
            own.fenced and was is not None and not was.fenced
        ):
            self.keeper.revoke()
        elif was is not None and was.fenced and not own.fenced:
            self.keeper.beat_now()
