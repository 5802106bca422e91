"""What a node says of itself when it starts.

Part of the composition: `dlogd.broker` proposes it.
"""

from collections.abc import Iterable
from uuid import UUID

from dlog.types import NodeId, TopicId
from dlogd import version
from dlogd.config.schema import Config
from dlogd.controller.planner import grouped
from dlogd.metadata.commands import Proof, RegisterNode
from dlogd.metadata.image import ClusterImage, NodeAddress

LISTENER_NAME = "clients"
LOST_DIRECTORIES_MAX = 64


def registration(
    config: Config,
    image: ClusterImage,
    *,
    command_id: UUID,
    cluster_id: str,
    present: Iterable[UUID],
    addresses: tuple[NodeAddress, ...],
    offline: Iterable[tuple[TopicId, int]],
) -> RegisterNode:
    """Return the command; a node alone registers in version 1, which takes it back at once.

    In a cluster no proof is given yet that the replicas are whole: each start counts as unclean,
    which is safe.
    """
    # A directory that is gone stays known: what may be on it is never made anew, however often
    # the node starts without it (an unmounted disk looks like an empty directory).
    found = tuple(present)
    known = image.nodes.get(NodeId(config.node.id))
    lost = [each for each in known.directory_ids if each not in found] if known else []
    lost = lost[-LOST_DIRECTORIES_MAX:]
    alone = config.controllers is None
    return RegisterNode(
        command_id=command_id,
        cluster_id=cluster_id,
        node_id=NodeId(config.node.id),
        directory_ids=(*found, *lost),
        addresses=addresses,
        rack=config.node.rack,
        version=version.VERSION,
        proof=None if alone else Proof.NONE,
        failed_directory_ids=() if alone else tuple(lost),
        offline=() if alone else grouped(list(offline)),
    )
