"""Simulated clients of a cluster: the real `Admin`, and what must have lasted of what they heard.

Each client has topics of its own, so that it knows what becomes of them. A call that did not end
well may have taken effect or not: then both are right.
"""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from dlog.client.admin import Admin, Resource
from dlog.client.cluster.cluster import Cluster
from dlog.client.retry import RetryPolicy
from dlog.errors import DlogError
from dlog.transport import Address, ConnectionOptions
from dlogd.metadata.state.image import ClusterImage, TopicImage
from tests.simulation.fleet.plan import CLIENT_PORT, FleetPlan, address_of
from tests.simulation.loop import SimLoop

NAMES = 4
CONFIGS = {
    "retention.ms": ("60000", "86400000"),
    "min.insync.replicas": ("1", "2"),
    "max.message.bytes": ("10000", "20000"),
    "unclean.leader.election.enable": ("true", "false"),
}
MAYBE = ""  # stands for: not set


@dataclass(slots=True)
class Expected:
    """What is known of one topic: what is possible of each of its facts."""

    topic_id: UUID | None = None  # None: not created yet, or deleted, or nobody knows
    is_loose: bool = False  # a call that makes or ends it had no good end, and may still be carried
    partitions: set[int] = field(default_factory=set)
    configs: dict[str, set[str]] = field(default_factory=dict)
    # Values that a call without a good end may still set.
    loose_configs: dict[str, set[str]] = field(default_factory=dict)


class FleetClient:
    """Creates, changes and deletes its topics until the run's time is over."""

    def __init__(self, number: int, plan: FleetPlan, loop: SimLoop, around: Any) -> None:
        self.number = number
        self.plan = plan
        self.loop = loop
        self.around = around
        self.rng = random.Random(f"{plan.seed}/client{number}")
        nodes = [Address(address_of(n), CLIENT_PORT) for n in range(1, plan.nodes + 1)]
        self.rng.shuffle(nodes)
        patience_s = 1.5 * plan.pace
        self.cluster = Cluster(
            nodes,
            loop=loop,
            rng=random.Random(self.rng.getrandbits(64)),
            options=ConnectionOptions(
                connect_timeout_s=patience_s / 3, request_timeout_s=patience_s
            ),
            policy=RetryPolicy(deadline_s=patience_s),
        )
        self.admin = Admin(self.cluster)
        self.timeout_ms = int(1000 * plan.pace)
        self.expected: dict[str, Expected] = {}
        self.gone: dict[UUID, str] = {}  # lives that are known to have ended

    async def run(self) -> None:
        """Do things, one after the other."""
        actions = (
            *(self._create, self._delete, self._grow, self._configure),
            *(self._describe, self._elect, self._reassign, self._look_around),
        )
        weights = (8, 2, 2, 4, 2, 2, 2, 1)
        while self.around.active:
            await self.around.sleep_ms(self.plan.client_interval_ms * 2 * self.rng.random())
            await self._act(self.rng.choices(actions, weights)[0])
        await self.admin.close()

    async def _act(self, action: Callable[[str, Expected], Awaitable[None]]) -> None:
        known = [name for name, each in self.expected.items() if not each.is_loose]
        live = [name for name in known if self.expected[name].topic_id is not None]
        if action == self._create:
            if len(live) >= NAMES:
                return
            name = f"c{self.number}-{len(self.expected)}"
            again = [name for name in known if name not in live]
            if again and self.rng.random() < 0.5:
                name = self.rng.choice(again)
        elif live:
            name = self.rng.choice(live)
        else:
            return
        expected = self.expected.setdefault(name, Expected())
        result = "ok"
        try:
            await action(name, expected)
        except DlogError as error:
            result = repr(error)
        self.around.trace("client", self.number, action.__name__, name, result)
        self.around.count("client calls ok" if result == "ok" else "client calls failed")

    async def _create(self, name: str, known: Expected) -> None:
        partitions = self.rng.choice((1, 1, 2, 3))
        configs = {k: self.rng.choice(v) for k, v in CONFIGS.items() if self.rng.random() < 0.3}
        replicas = self.rng.randint(1, min(3, self.plan.nodes))
        known.is_loose = True
        topic_id = await self.admin.create_topic(
            name,
            partitions=partitions,
            replication_factor=replicas,
            configs=configs,
            timeout_ms=self.timeout_ms,
        )
        if topic_id in self.gone:
            self.around.violate(f"topic: the deleted {name} {topic_id} is back")
        known.is_loose, known.topic_id, known.partitions = False, topic_id, {partitions}
        known.configs = {key: {configs.get(key, MAYBE)} for key in CONFIGS}
        known.loose_configs = {}

    async def _delete(self, name: str, known: Expected) -> None:
        known.is_loose = True
        topic_id, known.topic_id = known.topic_id, None
        await self.admin.delete_topic(name, timeout_ms=self.timeout_ms)
        assert topic_id is not None
        self.gone[topic_id] = name
        known.is_loose = False

    async def _grow(self, name: str, known: Expected) -> None:
        count = max(known.partitions)
        if count >= 5 or len(known.partitions) > 1:
            return
        known.partitions = {count, count + 1}
        await self.admin.create_partitions(name, count + 1, timeout_ms=self.timeout_ms)
        known.partitions = {count + 1}

    async def _configure(self, name: str, known: Expected) -> None:
        key = self.rng.choice(list(CONFIGS))
        value = self.rng.choice(CONFIGS[key])
        loose = known.loose_configs.setdefault(key, set())
        was_loose = value in loose
        loose.add(value)
        known.configs[key].add(value)
        repetitions = self.cluster.counters.retries
        await self.admin.alter_configs(Resource.TOPIC, name, set_values={key: value})
        # A copy whose connection was lost may be carried out behind its repetition (seed 120549).
        if not was_loose and self.cluster.counters.retries == repetitions:
            loose.discard(value)
        known.configs[key] = {value, *loose}

    async def _describe(self, name: str, known: Expected) -> None:
        await self.admin.describe_topics()

    def _one(self, name: str, known: Expected) -> tuple[str, int]:
        return name, self.rng.randrange(min(known.partitions))

    async def _elect(self, name: str, known: Expected) -> None:
        await self.admin.elect_leaders([self._one(name, known)], timeout_ms=self.timeout_ms)

    async def _reassign(self, name: str, known: Expected) -> None:
        nodes = range(1, self.plan.nodes + 1)
        target = self.rng.sample(nodes, self.rng.randint(1, min(3, len(nodes))))
        moves = {self._one(name, known): target if self.rng.random() < 0.8 else None}
        await self.admin.alter_reassignments(moves, timeout_ms=self.timeout_ms)

    async def _look_around(self, name: str, known: Expected) -> None:
        await self.admin.describe_quorum()
        await self.admin.describe_nodes()
        await self.admin.list_reassignments()
        await self.admin.describe_cluster()

    # -- in the end

    def judge(self, image: ClusterImage) -> None:
        """Compare what was acknowledged with the cluster's last image."""
        for name, known in self.expected.items():
            topic = image.topics.get(name)
            if topic is not None and topic.topic_id in self.gone:
                self.around.violate(f"topic: the deleted {name} {topic.topic_id} is back")
            if known.is_loose:
                continue
            if (topic is not None) != (known.topic_id is not None):
                state = "there" if topic is not None else "lost"
                self.around.violate(f"topic: {name} is {state}, expected {known}")
            elif topic is not None:
                self._judge_topic(name, known, topic)

    def _judge_topic(self, name: str, known: Expected, topic: TopicImage) -> None:
        if topic.topic_id != known.topic_id:
            self.around.violate(f"topic: {name} is {topic.topic_id}, not {known.topic_id}")
        if len(topic.partitions) not in known.partitions:
            count = len(topic.partitions)
            self.around.violate(f"topic: {name} has {count} partitions, not {known.partitions}")
        for key, values in known.configs.items():
            if topic.configs.get(key, MAYBE) not in values:
                found = topic.configs.get(key)
                self.around.violate(f"config: {name} {key} is {found}, not {values}")
