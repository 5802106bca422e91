"""Recently fenced nodes, which clients still see for a moment.

librdkafka lets a node go as soon as it is not named, before the partitions of that node have gone
over to the leaders in the same answer; those are then without one until it looks again a second
later. So a node that is gone leads nothing at once, and is not named a little later.
"""

from dlog.types import NodeId
from dlogd.metadata.state.image import ClusterImage

LINGER_MS = 3_000


class RecentlyFenced:
    """When each node was last fenced, as this node saw it. Owner: the event loop's thread."""

    def __init__(self) -> None:
        self._until_ms: dict[NodeId, int] = {}

    def on_image(self, old: ClusterImage, new: ClusterImage, now_ms: int) -> None:
        """The image has changed."""
        for node_id, before in old.nodes.items():
            after = new.nodes.get(node_id)
            if after is not None and after.fenced and not before.fenced:
                self._until_ms[node_id] = now_ms + LINGER_MS

    def has(self, node_id: NodeId, now_ms: int) -> bool:
        """Return whether a node that is fenced was not a moment ago."""
        return self._until_ms.get(node_id, now_ms) > now_ms
