"""Cluster half of a node: Raft, lease, and the controller while it leads.

Part of the composition: `dlogd.node.broker` makes one when `controllers` is configured.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol
from uuid import UUID

from dlog.address import Address
from dlog.errors import BrokerNotAvailableError
from dlog.transport import Connection, ConnectionOptions
from dlog.types import NodeId
from dlogd.config.schema import Config
from dlogd.controller.driver import ControllerDriver
from dlogd.controller.leadership_transfer import LeadershipTransfer
from dlogd.controller.lease_keeper import LeaseKeeper
from dlogd.controller.lease_watch import LeaseWatch
from dlogd.controller.leases import LeaseTable
from dlogd.controller.liveness_service import LivenessService
from dlogd.controller.own_lease import OwnLease
from dlogd.controller.prober import Prober
from dlogd.internal import messages
from dlogd.internal.beat import Beat
from dlogd.internal.messages import NONCE_BYTES, Heartbeat, Probe, Replicate
from dlogd.internal.node_channel import Dialler, StreamIntroduction
from dlogd.internal.node_listener import Door, NodeListener
from dlogd.membership.gossip import INTERNAL, Gossip, make_gossip, read_serf_key
from dlogd.metadata.interface import Quorum
from dlogd.metadata.raft.settings import RaftConfig
from dlogd.metadata.raft.thread import ThreadedRaftStore
from dlogd.metadata.state.delta import ImageDelta
from dlogd.metadata.state.image import Applied, ClusterImage, NodeAddress
from dlogd.node.cluster_settings import raft_config
from dlogd.node.cluster_timings import lease_timings, planner_settings
from dlogd.node.controlled_shutdown import take_leave
from dlogd.node.secret_files import read_key, read_secret
from dlogd.runtime.clock import Clock
from dlogd.runtime.randomness import Randomness
from dlogd.runtime.tasks import Tasks
from dlogd.storage.io.files import Directory
from dlogd.storage.io.io_engine import Engine

log = logging.getLogger(__name__)

WAITING = "waiting for the quorum of the metadata"
BARRIER_TIMEOUT_MS = 1_000
FAREWELL_S = 1.0
IDLE_LEASES = 10
"""A connection between nodes that is silent for so many leases is closed."""


class OpenQuorum(Protocol):
    """How the metadata are opened: in a thread of their own, or (simulated) on the same loop."""

    def __call__(
        self,
        directory: Directory,
        config: RaftConfig,
        /,
        *,
        clock: Clock,
        randomness: Randomness,
        on_failed: Callable[[Exception], None] | None,
    ) -> Coroutine[Any, Any, Quorum]:
        """Return the store once it takes part; raise what it raises."""


async def catch_up(store: Quorum, clock: Clock, say: Callable[[str], None]) -> None:
    """Return when the image has all that was acknowledged before: there is a quorum.

    `say` learns who is missing.
    """
    said = ""
    while not isinstance(await store.barrier(clock.now_ms() + BARRIER_TIMEOUT_MS), Applied):
        absent = ", ".join(store.progress.absent)
        waiting = f"{WAITING}: voters {absent} are away" if absent else WAITING
        say(waiting)
        if waiting != said:
            log.info("Waiting for the metadata quorum away=%r", absent)
            said = waiting
        await asyncio.sleep(0.2)


class ClusterNode:
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
        randomness: Randomness,
        tasks: Tasks,
        on_failed: Callable[[Exception], None],
        open_quorum: OpenQuorum = ThreadedRaftStore.open,
        say: Callable[[str], None] = log.debug,
    ) -> "ClusterNode":
        """Open the metadata and return when there is a quorum; `stop` does not close it.

        `say` is told what it waits for.

        Raises ConfigError, OSError and DlogError.
        """
        read = partial(read_secret, config.cluster.secret_file or "", open_directory)
        secret = await engine.run(read)
        read_file = partial(read_key, open_directory=open_directory, key="serf.key.file")
        serf_key = await engine.run(partial(read_serf_key, config, read_file))
        store = await open_quorum(
            directory,
            raft_config(config, secret),
            clock=clock,
            randomness=randomness.apart(),
            on_failed=on_failed,
        )
        # From here on this node may be elected.
        succession = LeadershipTransfer(store, NodeId(config.node.id), clock=clock, tasks=tasks)
        succession.start()
        caught_up = False
        try:
            await catch_up(store, clock, say)
            caught_up = True
        finally:
            if not caught_up:
                succession.stop()
                await store.close()
        opened = cls(
            config, store, secret, loop=loop, clock=clock, randomness=randomness, tasks=tasks
        )
        opened.succession = succession
        succession.can_act = opened._can_act
        opened.gossip = make_gossip(config, loop=loop, rng=randomness.rng, serf_key=serf_key)
        return opened

    def __init__(
        self,
        config: Config,
        store: Quorum,
        secret: bytes,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        randomness: Randomness,
        tasks: Tasks,
    ) -> None:
        self.lease = OwnLease()
        self.gossip: Gossip | None = None
        self.succession: LeadershipTransfer | None = None
        self.on_superseded: Callable[[str], None] = log.critical
        """Called when this life is over: the process must end."""
        self.timings = lease_timings(config)
        self.node_id = NodeId(config.node.id)
        self._config = config
        self.store = store
        self._loop = loop
        self._clock = clock
        self._entropy = randomness.entropy
        self._tasks = tasks
        self._wants_shutdown = False
        self._stopping = False
        self._leads_since_ms: int | None = None
        self._options = ConnectionOptions(client_id=messages.CLIENT_ID)
        self._secret = secret
        self.node_epoch = -1
        """Of this life, from its registration on."""
        self.service = self._make_service()
        self.server = self._make_server(secret)
        cluster_id = config.cluster.id or ""
        self._dialler = Dialler(loop, secret=secret, cluster_id=cluster_id, entropy=self._entropy)
        self.keeper = LeaseKeeper(
            self.lease,
            self.timings,
            loop=loop,
            clock=clock,
            rng=randomness.rng,
            tasks=tasks,
            controller=lambda: self.address_of(store.image.controller.node_id),
            heartbeat=self._heartbeat,
            dialler=self._dialler,
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
            settings=planner_settings(config),
        )
        # Its own heartbeat came too early for the controller that it is now.
        self.driver.on_began = self.keeper.beat_now

    def _make_service(self) -> LivenessService:
        service = LivenessService(
            self.node_id,
            self.lease,
            clock=self._clock,
            cluster_id=lambda: self._config.cluster.id or "",
            image_version=lambda: self.store.image.version,
        )
        service.may_shut_down = self._may_shut_down
        return service

    def _make_server(self, secret: bytes) -> NodeListener:
        door = Door(
            secret=secret,
            cluster_id=self._config.cluster.id or "",
            new_nonce=lambda: self._entropy.token(NONCE_BYTES),
        )
        idle_s = self.timings.lease_ms * IDLE_LEASES / 1000
        return NodeListener(self._loop, self.service, idle_timeout_s=idle_s, door=door)

    def own_epoch(self) -> int:
        """Return the node epoch of this life; -1 before it has registered."""
        return self.lease.node_epoch

    def _can_act(self) -> bool:
        # From the registration on: the lease is asked for in a moment.
        return self.node_epoch >= 0 and not self._stopping

    def new_id(self) -> UUID:
        """Return a fresh id for a command."""
        return self._entropy.uuid()

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
        own = self.store.image.nodes.get(self.node_id)
        if self.gossip is not None and own is not None:
            await self.gossip.start(own.addresses)

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
        if self.gossip is not None:
            await self.gossip.stop()
        await asyncio.sleep(min(FAREWELL_S, self.timings.heartbeat_ms / 1000))
        await self.keeper.stop()
        await self.driver.stop()
        self._stopping = True
        if self.succession is not None:
            # Closing the logs may take long, and Raft goes on meanwhile.
            self.succession.look()
        await self.server.stop()

    def has_lease(self) -> bool:
        """Return whether this node may lead now."""
        return self.lease.is_valid(self._clock.now_ms())

    def has_outlived(self) -> bool:
        """Return whether this node leads the metadata for so long that no lease of others holds."""
        since_ms = self._leads_since_ms
        return since_ms is not None and (self._clock.now_ms() >= since_ms + self.timings.held_ms)

    def _on_leadership(self, leads: bool, term: int) -> None:
        self._leads_since_ms = self._clock.now_ms() if leads else None

    def introduce(self, leader_id: NodeId) -> StreamIntroduction:
        """Return how this node asks a leader for a replication stream."""
        return StreamIntroduction(self._secret, self._replicate(leader_id), self._entropy)

    def _replicate(self, wanted: NodeId) -> Replicate:
        return Replicate(
            cluster_id=self._config.cluster.id or "",
            node_id=self.node_id,
            node_epoch=self.node_epoch,
            leader_id=wanted,
        )

    async def open_requests(self, node_id: NodeId, options: ConnectionOptions) -> Connection:
        """Return a connection on which another node serves Kafka's requests to this node.

        Raises BrokerNotAvailableError, TransportError or ProtocolError.
        """
        address = self.address_of(node_id)
        if address is None:
            raise BrokerNotAvailableError(f"Node {node_id} has no known internal listener")
        channel = await self._dialler.connect(address, options)
        served = None
        try:
            served = await channel.begin_requests(self._replicate(node_id))
        finally:
            if served is None:
                channel.close()
        return served

    def address_of(self, node_id: NodeId) -> Address | None:
        """Return where the internal listener of a node is, None when nobody knows."""
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
            Prober(
                self._loop, probe, timeout_s=timeout_s, options=self._options, dialler=self._dialler
            ),
            self.timings,
            loop=self._loop,
            clock=self._clock,
            tasks=self._tasks,
            address=self.address_of,
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
        if self.lease.node_epoch < 0:
            return
        if own is None or own.node_epoch > self.lease.node_epoch:
            self.keeper.revoke()
            what = "was removed from the cluster" if own is None else "runs elsewhere as well"
            self.on_superseded(f"node {self.node_id} {what}: this process gives way")
            return
        if own.fenced and was is not None and not was.fenced:
            self.keeper.revoke()
        elif was is not None and was.fenced and not own.fenced:
            self.keeper.beat_now()
