"""Registration of a node at its start: what it reports, and when.

Part of the composition: `dlogd.node.broker` calls it.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from dlog import version
from dlog.errors import InvalidRequestError, NotControllerError
from dlog.types import NodeId
from dlogd.config.schema import Config
from dlogd.controller.planner import grouped
from dlogd.metadata.commands.codec import MalformedCommandError, Proof, RegisterNode, encode
from dlogd.metadata.interface import Metadata
from dlogd.metadata.state.image import Applied, ClusterImage, NodeAddress, Outcome, Refused
from dlogd.metadata.state.limits import LEVEL_OLDEST
from dlogd.node.replica_proof import ReplicaProof
from dlogd.runtime.clock import Clock

log = logging.getLogger(__name__)

LISTENER_NAME = "clients"
LOST_DIRECTORIES_MAX = 64
REGISTER_TIMEOUT_MS = 30_000
LOOK_S = 0.05
RETRY_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What a node says of itself beside its configuration."""

    cluster_id: str
    present: tuple[UUID, ...]  # data directories in service
    addresses: tuple[NodeAddress, ...]


def registration(
    config: Config,
    image: ClusterImage,
    facts: NodeFacts,
    command_id: UUID,
    proof: ReplicaProof | None,
) -> RegisterNode:
    """Return the command; a node alone (`proof` None) registers in version 1.

    Raises InvalidRequestError when there is more to name than a command holds.
    """
    # A directory that is gone stays known: what may be on it is never made anew, however often
    # the node starts without it (an unmounted disk looks like an empty directory).
    known = image.nodes.get(NodeId(config.node.id))
    lost = [each for each in known.directory_ids if each not in facts.present] if known else []
    lost = lost[-LOST_DIRECTORIES_MAX:]
    command = RegisterNode(
        command_id=command_id,
        cluster_id=facts.cluster_id,
        node_id=NodeId(config.node.id),
        directory_ids=(*facts.present, *lost),
        addresses=facts.addresses,
        rack=config.node.rack,
        version=version.VERSION,
    )
    if proof is None:
        return command
    return _fitting(
        replace(
            command,
            proof=proof.proof,
            previous_epoch=proof.previous_epoch,
            failed_directory_ids=tuple(lost),
            unproven=grouped(sorted(proof.unproven)),
            offline=grouped(sorted(proof.offline)),
            missing=grouped(sorted(proof.missing)),
        )
    )


def with_failed(command: RegisterNode, more: Sequence[UUID]) -> RegisterNode:
    """Return the command with `more` of its directories named as failed."""
    failed = (*command.failed_directory_ids, *more)
    return replace(command, failed_directory_ids=failed[-LOST_DIRECTORIES_MAX:])


def _fitting(command: RegisterNode) -> RegisterNode:
    """Return a command that is not too large: too many exceptions are no proof for anything.

    Without one all replicas of the node leave their ISRs, so none of them has to be named.
    """
    if _fits(command):
        return command
    shorter = replace(command, proof=Proof.NONE, unproven=())
    if not _fits(shorter):
        count = sum(len(numbers) for _, numbers in (*command.offline, *command.missing))
        raise InvalidRequestError(
            f"{count} replicas of this node are out of service or gone, more than a registration"
            " can name: bring their data directories back, or start again with another node.id"
        )
    log.warning("Registering without a proof: too many replicas cannot be proven")
    return shorter


def _fits(command: RegisterNode) -> bool:
    try:
        encode(command)
    except MalformedCommandError:
        return False
    return True


async def register(store: Metadata, command: RegisterNode, clock: Clock) -> Applied:
    """Propose until it is known what became of it; raise WireError when it was refused.

    The same command again does no harm: it has an id.
    """
    while True:
        outcome: Outcome = await store.propose(command, clock.now_ms() + REGISTER_TIMEOUT_MS)
        if isinstance(outcome, Applied):
            return outcome
        if isinstance(outcome, Refused) and outcome.code != NotControllerError.code:
            raise outcome.error
        log.info("Waiting for the metadata quorum outcome=%r", outcome)
        await asyncio.sleep(RETRY_S)


async def await_end_of_earlier_life(
    store: Metadata, node_id: NodeId, proof: ReplicaProof, is_outlived: Callable[[], bool]
) -> None:
    """Return when no earlier life of the node can hold a lease, or `is_outlived` says so.

    Whoever holds the locks of the directories which that life used is its successor: it has ended.
    Without them it may run elsewhere, with other directories; then the controller's word counts.
    A life at level 1 kept its metadata alone, in files that were taken over with their lock.
    """
    told = False
    while True:
        known = store.image.nodes.get(node_id)
        if known is None or known.fenced or known.node_epoch == proof.previous_epoch:
            return
        if store.image.feature_level == LEVEL_OLDEST:
            return
        if is_outlived():
            return
        if not told:
            told = True
            log.warning(
                "Waiting until the controller gives up an earlier incarnation of this node node=%d"
                " node_epoch=%d: it may run elsewhere, these directories were not its own",
                node_id,
                known.node_epoch,
            )
        await asyncio.sleep(LOOK_S)


def client_address(config: Config, bound: tuple[str, int]) -> NodeAddress:
    """Return where clients are told to connect."""
    host, port = bound
    advertised = config.advertised.address
    if advertised is not None:
        host, port = advertised.host, advertised.port or port
    return NodeAddress(listener=LISTENER_NAME, host=host, port=port)
