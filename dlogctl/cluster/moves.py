"""Replicas on the move: how much they have to fetch yet, and throttles for them.

How far a replica is, is told by the sizes of its log and of its leader's (DescribeLogDirs).
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from dlog.client.admin import Admin, Resource
from dlog.client.views import ClusterView
from dlog.errors import DlogError, InvalidConfigError, UnknownTopicOrPartitionError
from dlogctl.cluster.partition_names import Partition

LEADER, FOLLOWER = "leader.replication.throttled", "follower.replication.throttled"
RATES = (f"{LEADER}.rate", f"{FOLLOWER}.rate")
NO_LIMIT = 2**63 - 1
"""The rate of who is not throttled."""
EVERYBODY = "*"
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


def merged(present: str, more: str) -> str:
    """Return the list of throttled replicas `present` with those of `more`. Pure."""
    if not present.strip() or present.strip() == EVERYBODY:
        return present.strip() or more
    return ",".join(
        dict.fromkeys([*(each.strip() for each in present.split(",")), *more.split(",")])
    )


class Throttle:
    """Throttles moves as long as it lasts, and leaves what others have set as it was.

    There is one rate for all that is throttled. So it is refused while another rate is set: it
    would slow down or let go what somebody else has throttled.
    """

    def __init__(self, admin: Admin, configs: Mapping[str, Mapping[str, str]], rate: int) -> None:
        self._admin = admin
        self._wanted = configs  # as `throttled_replicas` gives them
        self._rate = str(rate)  # bytes per second
        self._before: dict[str, dict[str, str]] = {}
        self._set: dict[str, dict[str, str]] = {}
        self._is_begun = False

    async def begin(self) -> None:
        """Set it; raise InvalidConfigError, with nothing changed, when there is one already."""
        cluster = await self._admin.describe_configs(Resource.BROKER, "")
        for each in cluster:
            if each.name in RATES and each.value is not None and int(each.value) != NO_LIMIT:
                raise InvalidConfigError(
                    f"{each.name} is {each.value} already, by an operator or another move that is"
                    " waited for; it holds for all that is throttled. Wait for that move, or unset"
                    f" it (dlogctl config unset {' '.join(RATES)}), or move without --throttle"
                )
        for topic, values in self._wanted.items():
            present = await self._own(topic)
            self._before[topic] = {name: present.get(name, "") for name in values}
            self._set[topic] = {
                name: merged(self._before[topic][name], more) for name, more in values.items()
            }
        self._is_begun = True
        for topic, values in self._set.items():
            await self._admin.alter_configs(Resource.TOPIC, topic, set_values=values)
        await self._admin.alter_configs(
            Resource.BROKER, "", set_values=dict.fromkeys(RATES, self._rate)
        )

    async def end(self) -> None:
        """Take back what was set and nobody has changed since, of topics that are still there."""
        if not self._is_begun:
            return
        cluster = await self._admin.describe_configs(Resource.BROKER, "")
        ours = [each.name for each in cluster if each.name in RATES and each.value == self._rate]
        if ours:
            await self._admin.alter_configs(Resource.BROKER, "", delete_names=ours)
        for topic, values in self._set.items():
            with suppress(UnknownTopicOrPartitionError):
                await self._give_back(topic, values)

    async def _give_back(self, topic: str, values: Mapping[str, str]) -> None:
        present, before = await self._own(topic), self._before[topic]
        ours = [name for name, value in values.items() if present.get(name) == value]
        kept = {name: before[name] for name in ours if before[name]}
        gone = [name for name in ours if not before[name]]
        if kept or gone:
            await self._admin.alter_configs(
                Resource.TOPIC, topic, set_values=kept, delete_names=gone
            )

    async def _own(self, topic: str) -> dict[str, str]:
        """Return what is set on a topic itself."""
        found = await self._admin.describe_configs(Resource.TOPIC, topic)
        return {each.name: each.value or "" for each in found if each.is_own}
