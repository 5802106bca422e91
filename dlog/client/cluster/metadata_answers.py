"""Metadata requests and what their answers say, as views.

Pure; the only place that knows the fields of Metadata. Called by
`dlog.client.cluster.metadata_lookup`.
"""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from dlog.client.views import ClusterView, NodeView, PartitionView, TopicView
from dlog.transport import Address
from dlog.types import ZERO_TOPIC_ID


def metadata_request(module: Any, topics: Sequence[str] | None) -> Any:
    """Make the request for nodes and these topics; None: all topics."""
    wanted = None
    if topics is not None:
        wanted = tuple(module.MetadataRequestTopic(topic_id=None, name=name) for name in topics)
    return module.MetadataRequest(
        topics=wanted,
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )


def cluster_view(response: Any) -> ClusterView:
    """Turn a Metadata response into a view; partitions are in order."""
    topics: dict[str, TopicView] = {}
    for topic in response.topics:
        partitions = sorted(map(_partition_view, topic.partitions), key=lambda p: p.partition)
        topics[str(topic.name)] = TopicView(
            name=str(topic.name),
            topic_id=UUID(int=topic.topic_id.int) if topic.topic_id else ZERO_TOPIC_ID,
            is_internal=bool(topic.is_internal),
            partitions=tuple(partitions),
            error_code=int(topic.error_code),
        )
    nodes = {
        int(each.node_id): NodeView(
            node_id=int(each.node_id), address=Address(each.host, int(each.port)), rack=each.rack
        )
        for each in response.brokers
    }
    return ClusterView(
        cluster_id=response.cluster_id,
        controller_id=int(response.controller_id),
        nodes=nodes,
        topics=topics,
    )


def _partition_view(each: Any) -> PartitionView:
    return PartitionView(
        partition=int(each.partition_index),
        leader=int(each.leader_id),
        leader_epoch=int(each.leader_epoch),
        replicas=tuple(map(int, each.replica_nodes)),
        isr=tuple(map(int, each.isr_nodes)),
        offline=tuple(map(int, each.offline_replicas)),
        error_code=int(each.error_code),
    )
