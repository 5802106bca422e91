"""Reasons of partitions that give no answer, from the node that knows them."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from dlog.client.admin_views import Candidates
from dlog.client.blocking import BlockingClient
from dlogctl.cluster.http_status import ask_node
from dlogctl.settings import Settings


def reason_in(status: Mapping[str, Any], topic: str, partition: int) -> str | None:
    """Return what a node's /status says of a partition, None when it says nothing."""
    start = f"partition {topic}-{partition}: "
    found = (each for each in status.get("problems", ()) if each.startswith(start))
    return next((str(each)[len(start) :] for each in found), None)


def waits_for(candidates: Candidates) -> str:
    """Return for whom a partition without a leader waits, and what else can be done. Pure."""
    order = "`dlogctl partition elect --unclean` takes another, and what that one lacks is lost"
    if candidates.eligible:
        names = " or ".join(map(str, candidates.eligible))
        return f"waits for node {names}, which holds all that was acknowledged; {order}"
    if candidates.last_leader:
        return f"waits for node {candidates.last_leader[0]}, which led last; {order}"
    return (
        f"no replica surely holds all acknowledged records: bring its leader's disk back; {order}"
    )


async def explain(
    client: BlockingClient,
    settings: Settings,
    topic: str,
    asked: Iterable[tuple[int, int]],
    leaderless: Collection[int] = (),
) -> dict[int, str]:
    """Return why each of the partitions failed that were `asked`: (partition, node).

    Of those that are `leaderless` a node need not know more, and is not blamed for that.

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
            if known is None and partition not in leaderless:
                known = f"node {node_id} gives no reason; its log may have one"
            if known is not None:
                found[partition] = known
    return found
