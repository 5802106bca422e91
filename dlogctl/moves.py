"""Replicas on the move: how much they have to fetch yet, and throttles for them.

How far a replica is, is told by the sizes of its log and of its leader's (DescribeLogDirs).
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from dlog.client.admin import Admin, Resource
from dlog.client.views import ClusterView
from dlog.errors import DlogError, UnknownTopicOrPartitionError
from dlogctl.partition_names import Partition

LEADER, FOLLOWER = "leader.replication.throttled", "follower.replication.throttled"
RATES = (f"{LEADER}.rate", f"{FOLLOWER}.rate")
NO_LIMIT = 2**63 - 1
"""The rate of who is not throttled."""
Sizes = Mapping[int, Mapping[Partition, int] | None]
"""By node: bytes of its logs; None: it does not answer."""


async def sizes_of(admin: Admin, nodes: Iterable[int]) -> Sizes:
    """Ask nodes for the sizes of their logs."""
    asked = sorted(set(nodes))

    async def ask(node_id: int) -> Mapping[Partition, int] | None:
        try:
            found = await admin.describe_log_dirs(node_id)
        except DlogError:
            return None
        return {
            (topic, number): size
            for directory in found
            for topic, number, size in directory.partitions
        }

    return dict(zip(asked, await asyncio.gather(*map(ask, asked)), strict=True))


def bytes_to_go(
    key: Partition, leader: int, adding: Sequence[int], isr: Sequence[int], sizes: Sizes
) -> dict[int, int | None]:
    """Return what each new replica has to fetch yet; None where nobody knows. Pure."""
    whole = (sizes.get(leader) or {}).get(key)
    found: dict[int, int | None] = {}
    for node in adding:
        held = sizes.get(node)
        if node in isr:
            found[node] = 0
        elif whole is None or held is None:
            found[node] = None
        else:
            found[node] = max(0, whole - held.get(key, 0))
    return found


def throttled_replicas(
    view: ClusterView, targets: Mapping[Partition, Sequence[int]]
) -> dict[str, dict[str, str]]:
    """Return the topic configs that name who sends and who fetches in these moves. Pure."""
    leaders: dict[str, list[str]] = {}
    followers: dict[str, list[str]] = {}
    for (topic, number), replicas in sorted(targets.items()):
        present = view.topics[topic].partitions[number].replicas
        new = [node for node in replicas if node not in present]
        if new:
            leaders.setdefault(topic, []).extend(f"{number}:{node}" for node in present)
            followers.setdefault(topic, []).extend(f"{number}:{node}" for node in new)
    return {
        topic: {
            f"{LEADER}.replicas": ",".join(leaders[topic]),
            f"{FOLLOWER}.replicas": ",".join(followers[topic]),
        }
        for topic in leaders
    }


async def throttle(admin: Admin, configs: Mapping[str, Mapping[str, str]], rate: int) -> None:
    """Throttle moves; `configs` as `throttled_replicas` gives them, `rate` in bytes per second."""
    for topic, values in configs.items():
        await admin.alter_configs(Resource.TOPIC, topic, set_values=values)
    await admin.alter_configs(Resource.BROKER, "", set_values=dict.fromkeys(RATES, str(rate)))


async def unthrottle(admin: Admin, topics: Iterable[str]) -> None:
    """Take throttles back, of the cluster and of those of these topics that are still there."""
    await admin.alter_configs(Resource.BROKER, "", delete_names=RATES)
    replicas = (f"{LEADER}.replicas", f"{FOLLOWER}.replicas")
    for topic in topics:
        with suppress(UnknownTopicOrPartitionError):
            await admin.alter_configs(Resource.TOPIC, topic, delete_names=replicas)
