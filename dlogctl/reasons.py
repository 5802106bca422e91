"""Why partitions give no answer: their error has only a name, the node that has them knows more."""

from collections.abc import Iterable, Mapping
from typing import Any

from dlog.client.blocking import BlockingClient
from dlogctl.http_status import ask_node
from dlogctl.settings import Settings


def reason_in(status: Mapping[str, Any], topic: str, partition: int) -> str | None:
    """Return what a node's /status says of a partition, None when it says nothing."""
    start = f"partition {topic}-{partition}: "
    found = (each for each in status.get("problems", ()) if each.startswith(start))
    return next((str(each)[len(start) :] for each in found), None)


async def explain(
    client: BlockingClient, settings: Settings, topic: str, asked: Iterable[tuple[int, int]]
) -> dict[int, str]:
    """Return why each of the partitions failed that were `asked`: (partition, node).

    A node whose HTTP endpoint cannot be reached from here is named, with the reason for that.
    """
    by_node: dict[int, list[int]] = {}
    for partition, node_id in asked:
        by_node.setdefault(node_id, []).append(partition)
    found: dict[int, str] = {}
    nodes = (await client.admin.describe_topics([topic])).nodes if by_node else {}
    for node_id, partitions in by_node.items():
        if node_id not in nodes:
            continue
        asked_node = await ask_node(client, settings, nodes[node_id], alone=len(nodes) == 1)
        status = asked_node.status
        for partition in partitions:
            known = asked_node.note if status is None else reason_in(status, topic, partition)
            found[partition] = known or f"node {node_id} gives no reason; its log may have one"
    return found
