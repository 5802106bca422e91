"""Startup of a node between metadata and clients: logs, registration, partitions.

Part of the composition: `dlogd.node.broker` makes one and calls one of its two methods, once.
"""

import logging
from collections.abc import Callable
from functools import partial
from uuid import UUID

from dlog.types import NodeId
from dlogd.config.schema import Config
from dlogd.metadata.commands.codec import RegisterNode
from dlogd.metadata.interface import Metadata
from dlogd.metadata.state.delta import ImageDelta
from dlogd.metadata.state.image import ClusterImage, NodeAddress
from dlogd.node.cluster_node import ClusterNode
from dlogd.node.registration import (
    NodeFacts,
    await_end_of_earlier_life,
    register,
    registration,
    with_failed,
)
from dlogd.node.replica_proof import ReplicaProof, epoch_of, start_proof
from dlogd.node.stray_removal import StrayRemoval
from dlogd.replication.replica_manager import ReplicaManager
from dlogd.runtime.clock import Clock
from dlogd.runtime.randomness import Entropy
from dlogd.runtime.tasks import Tasks
from dlogd.storage.log_manager import LogManager

log = logging.getLogger(__name__)

OnImage = Callable[[ClusterImage, ClusterImage, ImageDelta], None]


class Startup:
    """One start. The directories are claimed, the listeners bound, nobody is served."""

    def __init__(
        self,
        config: Config,
        logs: LogManager,
        replicas: ReplicaManager,
        *,
        clock: Clock,
        entropy: Entropy,
        clients: NodeAddress,
        enter: Callable[[str], None],
        tasks: Tasks,
    ) -> None:
        """`enter(phase)` tells how far it is; `tasks` are those of the node's whole life."""
        self._config = config
        self._logs = logs
        self._replicas = replicas
        self._clock = clock
        self._entropy = entropy
        self._clients = clients
        self._enter = enter
        self._tasks = tasks
        self._node_id = NodeId(config.node.id)

    async def alone(self, store: Metadata, on_image: OnImage) -> None:
        """Become a cluster of one node."""
        image = store.image
        known = image.nodes.get(self._node_id)
        command = registration(self._config, image, self._facts(None), self._new_id(), None)
        outcome = await register(store, command, self._clock)
        log.info("Registered node=%d node_epoch=%d", self._node_id, outcome.value)
        self._enter("recovering logs")
        store.subscribe(on_image)
        await self._replicas.recover(store.image, known.directory_ids if known is not None else ())
        await self._logs.begin()
        await self._replicas.start(store.image)
        self._watch_strays(store)

    async def join(
        self,
        clustering: ClusterNode,
        on_image: OnImage,
        replicate: Callable[[ClusterImage], None],
    ) -> None:
        """Become a node of the cluster: the lease comes once the logs are open."""
        store, logs, replicas = clustering.store, self._logs, self._replicas
        internal = await clustering.listen()
        self._enter("recovering logs")
        known = store.image.nodes.get(self._node_id)
        await replicas.recover(store.image, known.directory_ids if known is not None else ())
        # What recovery found is part of the registration. Until that is applied nothing is made
        # anew, so that a start that ends before finds the same.
        self._enter("registering")
        proof, command = await self._ready(clustering, internal)
        outcome = await register(store, command, self._clock)
        log.info(
            "Registered node=%d node_epoch=%d proof=%s previous_epoch=%d unproven=%d offline=%d",
            self._node_id,
            outcome.value,
            proof.proof.name,
            proof.previous_epoch,
            len(proof.unproven),
            len(proof.offline),
        )
        await logs.begin(outcome.value)
        clustering.node_epoch = outcome.value
        replicate(store.image)
        store.subscribe(on_image)
        await replicas.start(store.image)
        await clustering.begin(outcome.value)
        self._watch_strays(store)

    async def _ready(
        self, clustering: ClusterNode, internal: NodeAddress
    ) -> tuple[ReplicaProof, RegisterNode]:
        """Return a registration that every directory has noted which it says is to be trusted.

        One that could not note it, because it fails or is full, is named as failed: the next start
        would take it for an old copy, and what nobody ever made for lost.
        """
        store, logs = clustering.store, self._logs
        while True:
            proof = self._prove(store.image)
            await await_end_of_earlier_life(store, self._node_id, proof, clustering.has_outlived)
            facts, image = self._facts(internal), store.image
            command = registration(self._config, image, facts, self._new_id(), proof)
            resolve = partial(epoch_of, outcomes=image.outcomes)
            await logs.lives.note_registering(command.command_id, resolve)
            if logs.directory_ids == facts.present:
                return proof, with_failed(command, logs.lives.ignorant_of(command.command_id))

    def _watch_strays(self, store: Metadata) -> None:
        retention_ms = self._config.stray.retention_ms
        homes = self._logs.homes
        removal = StrayRemoval(homes, retention_ms, self._node_id, lambda: store.image)
        removal.start(self._tasks)

    def _prove(self, image: ClusterImage) -> ReplicaProof:
        known = image.nodes.get(self._node_id)
        mine = self._replicas.placed(image)
        return start_proof(known, image.outcomes, self._logs.homes, mine)

    def _facts(self, internal: NodeAddress | None) -> NodeFacts:
        return NodeFacts(
            cluster_id=self._logs.cluster_id,
            present=self._logs.directory_ids,
            addresses=(self._clients,) if internal is None else (self._clients, internal),
        )

    def _new_id(self) -> UUID:
        return self._entropy.uuid()
