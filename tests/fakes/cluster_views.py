"""Clusters as `dlogctl` sees them at one moment, made by hand."""

from collections.abc import Sequence

from dlog.client.admin_views import Drain, NodeState, QuorumReplica, QuorumView
from dlog.client.views import ClusterView, PartitionView, TopicView
from dlog.transport import Address
from dlog.types import ZERO_TOPIC_ID
from dlogctl.cluster.cluster_view import Cluster


def partition(
    number: int, replicas: Sequence[int], isr: Sequence[int], leader: int | None = None
) -> PartitionView:
    """Return one partition; its leader is the first of its ISR unless it is said."""
    return PartitionView(
        partition=number,
        leader=isr[0] if leader is None else leader,
        leader_epoch=0,
        replicas=tuple(replicas),
        isr=tuple(isr),
        offline=(),
    )


def cluster_of(
    *partitions: PartitionView,
    fenced: Sequence[int] = (),
    drained: Sequence[int] = (),
    voters: Sequence[int] = (1, 2, 3),
) -> Cluster:
    """Return nodes 1 to 3 and one topic `t` of these partitions."""
    address = Address("h", 1)
    topic = TopicView(name="t", topic_id=ZERO_TOPIC_ID, is_internal=False, partitions=partitions)
    quorum = QuorumView(
        leader_id=voters[0],
        term=1,
        high_watermark=10,
        voters=tuple(QuorumReplica(n, ZERO_TOPIC_ID, 10, 100, 100, address) for n in voters),
        observers=(),
    )
    return Cluster(
        view=ClusterView(cluster_id="c", controller_id=1, nodes={}, topics={"t": topic}),
        nodes={
            n: NodeState(
                n, address, None, n in fenced, Drain.LEADERS if n in drained else Drain.NONE
            )
            for n in (1, 2, 3)
        },
        quorum=quorum,
    )
