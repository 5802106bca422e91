"""Drain of a node as it goes: what is left, what of it can move, and the wait for it."""

import asyncio
from collections.abc import Container, Sequence
from dataclasses import dataclass

from dlog.client.admin_views import Drain
from dlog.client.blocking import BlockingClient
from dlogctl.cluster.cluster_view import Cluster, is_healthy, look
from dlogctl.output.documents import format_count
from dlogctl.output.escaping import say
from dlogctl.output.watch import Waiting

LOOK_AGAIN_S = 0.2


@dataclass(frozen=True, slots=True)
class Remainder:
    """What a drain has not moved yet, and what of it cannot move."""

    movable: list[str]
    stuck: list[str]
    """Nobody else can take it."""
    headless: list[str]
    """Nobody leads it, so there is nobody to copy from."""
    drained: dict[int, None]
    """Other nodes that could lead some of what is stuck, and may not: they are drained as well."""
    kept_by_drains: list[str]
    """What of it is stuck for no other reason."""


def homeless_of(cluster: Cluster, node_id: int, drained: Sequence[int]) -> frozenset[str]:
    """Return the partitions whose replica on a node nobody else could take, as things are."""
    takers = {
        each.node_id
        for each in cluster.nodes.values()
        if not each.is_fenced and each.drain is Drain.NONE and each.node_id not in drained
    }
    return frozenset(
        f"{topic}-{each.partition}"
        for topic, each in cluster.held_by(node_id)
        if (topic, each.partition) not in cluster.reassigning and takers.issubset(each.replicas)
    )


def left_on(
    cluster: Cluster, node_id: int, drain: Drain, homeless: Container[str] = frozenset()
) -> Remainder:
    """Judge what a drain of this kind has still to move, and what it cannot."""
    left = Remainder([], [], [], {}, [])
    for topic, each in cluster.held_by(node_id):
        if drain is Drain.LEADERS and each.leader != node_id:
            continue
        name = f"{topic}-{each.partition}"
        if each.leader < 0:
            left.headless.append(name)
            continue
        if drain is Drain.REPLICAS:
            can_move = name not in homeless
        else:
            can_move = cluster.can_lead_instead(each, node_id)
        (left.movable if can_move else left.stuck).append(name)
        others = cluster.others_up(each, node_id)
        if not can_move and drain is Drain.LEADERS and others:
            left.kept_by_drains.append(name)
            left.drained.update(dict.fromkeys(others))
    return left


async def hand_over(
    client: BlockingClient, cluster: Cluster, node_id: int, drained: Sequence[int]
) -> str | None:
    """Make another voter the controller, if the node is it; return what to tell."""
    quorum = cluster.quorum
    if quorum is None or quorum.leader_id != node_id or len(quorum.voters) == 1:
        return None
    healthy = [v.node_id for v in quorum.voters if v.node_id != node_id and is_healthy(quorum, v)]
    others = [each for each in healthy if cluster.can_be_controller(each)]
    others.sort(key=lambda each: each in drained or cluster.nodes[each].drain is not Drain.NONE)
    if not others:
        return f"node {node_id} stays the controller: there is no other healthy voter that is up"
    await client.admin.transfer_controller(others[0])
    return f"node {others[0]} is the controller now"


async def wait_drained(
    client: BlockingClient,
    node_id: int,
    drain: Drain,
    homeless: Container[str],
    patience_s: float,
) -> Remainder:
    """Return when nothing is left that can move, or nothing has moved for long; tell progress."""
    what = "leader" if drain is Drain.LEADERS else "replica"
    told, waiting = -1, Waiting(patience_s)
    while True:
        left = left_on(await look(client), node_id, drain, homeless)
        if not left.movable:
            return left
        if len(left.movable) != told:
            told = len(left.movable)
            waiting.move()
            say(f"node {node_id}: {format_count(told, what)} to move", err=True)
        elif waiting.is_over:
            return left
        await asyncio.sleep(LOOK_AGAIN_S)
