"""Requests to a node of a cluster in memory, each in a line, for tests of handlers."""

from collections.abc import Sequence
from typing import Any

from dlog.wire.apis import ApiKey
from tests.fakes.server import FakeNode, FakeQuorum


def cluster(nodes: int = 3, leader_id: int | None = 1) -> tuple[FakeNode, FakeQuorum]:
    """Return node 1 of a cluster, and the quorum that says who leads."""
    quorum = FakeQuorum(leader_id)
    node = FakeNode(quorum=quorum)
    for node_id in range(2, nodes + 1):
        node.register(node_id)
    return node, quorum


async def create(node: FakeNode, *topics: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Create topics; return the answers by name."""
    response = await node.ask(ApiKey.CREATE_TOPICS, 7, topics=topics, **{"timeout": 1000, **fields})
    return {each.name: each for each in response.topics}


async def reassign(
    node: FakeNode, name: str, wanted: dict[int, Sequence[int] | None], **fields: Any
) -> dict[int, int]:
    """Move partitions of a topic; return error codes by partition."""
    partitions = [{"partition_index": n, "replicas": ids} for n, ids in wanted.items()]
    response = await node.ask(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        1,
        topics=[{"name": name, "partitions": partitions}],
        timeout=1000,
        **fields,
    )
    assert response.error_code == 0
    (topic,) = response.responses
    return {each.partition_index: int(each.error_code) for each in topic.partitions}


async def under_way(node: FakeNode, topics: Any = None) -> dict[tuple[str, int], Any]:
    """Return the reassignments that are under way, by topic and partition."""
    response = await node.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, topics=topics, timeout=1000)
    return {
        (topic.name, each.partition_index): each
        for topic in response.topics
        for each in topic.partitions
    }
