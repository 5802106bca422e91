"""Hints to the current leader in a refusal (KIP-951).

Taken from the node's own image, which may be older than what the client knows: the leader epoch
tells, and a client follows only a newer one. Where the image names nobody else nothing is said; the
client asks for metadata then, as after any other error.
"""

from collections.abc import Callable, Iterable

from dlog.errors import FencedLeaderEpochError, NotLeaderOrFollowerError
from dlog.types import NO_NODE, NodeId
from dlog.wire.leaders import CurrentLeader, NodeEndpoint
from dlog.wire.topics import TopicKey
from dlogd.metadata.state.image import ClusterImage
from dlogd.server.handlers.topology import address_of, is_alive

MOVED = frozenset((NotLeaderOrFollowerError.code, FencedLeaderEpochError.code))
"""Error codes after which another leader is worth telling."""


class LeaderHints:
    """The leaders as one node knows them. Owner: the event loop's thread."""

    __slots__ = ("_image", "_node_id")

    def __init__(self, node_id: NodeId, image: Callable[[], ClusterImage]) -> None:
        self._node_id = node_id
        self._image = image

    def after(self, error_code: int, topic: TopicKey, index: int) -> CurrentLeader | None:
        """Return who leads a partition that was refused here, None when that is not known."""
        if error_code not in MOVED:
            return None
        image = self._image()
        known = image.topics.get(topic) if isinstance(topic, str) else image.topics_by_id.get(topic)
        partition = known.partition(index) if known is not None else None
        if partition is None or partition.leader == NO_NODE:
            return None
        if partition.leader == self._node_id and error_code != FencedLeaderEpochError.code:
            return None  # it leads in the epoch that it refused
        if not is_alive(image, partition.leader):
            return None
        return partition.leader, partition.leader_epoch

    def endpoints(self, leaders: Iterable[CurrentLeader]) -> list[NodeEndpoint]:
        """Return where clients reach these leaders, each once."""
        found: dict[int, NodeEndpoint] = {}
        for node_id, _ in leaders:
            node = self._image().nodes.get(NodeId(node_id))
            address = None if node is None else address_of(node, "")
            if node is not None and address is not None:
                found[node_id] = (node_id, address.host, address.port, node.rack)
        return list(found.values())
