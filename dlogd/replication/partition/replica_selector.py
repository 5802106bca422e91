"""Selector of the replica for a consumer: one in its rack that has its offset.

Pure (KIP-392, Kafka's `RackAwareReplicaSelector`). The leader decides at each fetch of a consumer
that says where it is; who is told of a follower asks that one from then on, and comes back when it
is refused or has asked there for long.
"""

from dlog.types import NO_NODE, NodeId
from dlogd.metadata.state.image import ClusterImage
from dlogd.replication.partition.leader_state import LeaderState


def read_replica(
    image: ClusterImage, node_id: NodeId, leader: LeaderState, rack: str, offset: int
) -> NodeId:
    """Return the follower that a consumer in `rack` should read `offset` from, or NO_NODE.

    Of those in sync in that rack the one that has most; NO_NODE as well when the leader is in it.
    """
    if not rack or _rack_of(image, node_id) == rack:
        return NO_NODE
    able = [
        (progress.log_end_offset, -progress.node_id)
        for each in leader.isr
        if (progress := leader.followers[each]).log_end_offset >= offset
        and progress.log_start_offset <= offset  # it drops old records on its own
        and progress.node_epoch >= 0
        and _rack_of(image, each) == rack
    ]
    return NodeId(-max(able)[1]) if able else NO_NODE


def _rack_of(image: ClusterImage, node_id: NodeId) -> str | None:
    node = image.nodes.get(node_id)
    return None if node is None or not node.active else node.rack
