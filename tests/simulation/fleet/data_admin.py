"""The administrator of a cluster's data: makes the topics, then trims, moves, configures, churns.

What it changes is drawn by the plan; the history learns what that allows.
"""

import random
from typing import Any
from uuid import UUID

from dlog.client.admin import Admin, Resource
from dlog.client.cluster.partition_calls import delete_records
from dlog.errors import (
    DlogError,
    TopicAlreadyExistsError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from dlogd.metadata.state.topic_configs import TOPIC_CONFIGS
from tests.histories.history import LogFacts, LogKey, Trim
from tests.simulation.fleet.data_clients import ALWAYS_NS, DataClients, Life
from tests.simulation.fleet.data_plan import REPLICAS_MAX, DataTopicPlan

GONE = (UnknownTopicOrPartitionError, UnknownTopicIdError)


class DataAdmin:
    """Keeps the topics of the plan."""

    def __init__(self, clients: DataClients) -> None:
        self._clients = clients
        self._around = clients.around
        self._history = clients.around.history
        self._plan = clients.plan
        self._rng = random.Random(f"{clients.plan.seed}/data-admin")
        self._cluster = clients.cluster("data-admin", self._rng)
        self._admin = Admin(self._cluster)
        self._timeout_ms = int(1000 * clients.plan.pace)
        self._deleted: dict[UUID, str] = {}
        self._actions: dict[str, Any] = {
            "trim": self._trim,
            "min-isr": self._min_isr,
            "flush-policy": self._flush_policy,
            "unclean": self._unclean,
            "segments": self._segments,
            "move": self._move,
            "churn": self._churn,
            "elect": self._elect,
        }

    async def run(self) -> None:
        """Make the topics and change things until the run's time is over."""
        data = self._plan.data
        for topic in data.topics:
            await self._make(topic)
        while self._around.active and data.actions:
            await self._around.sleep_ms(data.admin_interval_ms * 2 * self._rng.random())
            action = self._rng.choice(data.actions)
            key = self._clients.pick(self._rng)
            if key is None or not self._around.active:
                continue
            result = "ok"
            try:
                await self._actions[action](key)
            except DlogError as error:
                result = repr(error)
            self._around.trace("data-admin", action, key, result)
            self._around.count(f"data {action} {'ok' if result == 'ok' else 'failed'}")
        await self._admin.close()
        await self._cluster.close()

    # -- topics

    async def _make(self, plan: DataTopicPlan) -> None:
        """Make a topic, however long it takes; another attempt may have made it before."""
        configs = {name: value for name, value in plan.configs.items() if name in TOPIC_CONFIGS}
        while self._around.active:
            try:
                topic_id = await self._admin.create_topic(
                    plan.name,
                    partitions=plan.partitions,
                    replication_factor=plan.replicas,
                    configs=configs,
                    timeout_ms=self._timeout_ms,
                )
                break
            except TopicAlreadyExistsError:
                found = await self._find(plan.name)
                if found is not None and found not in self._deleted:
                    topic_id = found
                    break
            except DlogError as error:
                self._around.trace("data-admin", "create failed", plan.name, repr(error))
            await self._around.sleep_ms(50 + 100 * self._rng.random())
        else:
            return
        if topic_id in self._deleted:
            self._around.violate(f"topic: the deleted {plan.name} {topic_id} is back")
        now_ns = self._clients.now_ns()
        life = Life(plan.name, topic_id, plan.partitions, plan.churns, created_ns=now_ns)
        for key in life.logs():
            self._history.facts[key] = LogFacts(
                flush_policy=configs.get("flush.policy", self._plan.config["flush.policy"]),
                retention="retention.bytes" in configs,
            )
        self._clients.lives.append(life)
        self._history.ids.setdefault(plan.name, []).append(topic_id)
        self._around.trace("topic", plan.name, topic_id)

    async def _find(self, name: str) -> UUID | None:
        try:
            return (await self._admin.describe_topic(name)).topic_id
        except DlogError:
            return None

    async def _churn(self, key: LogKey) -> None:
        """Delete a topic, and make it again some time later."""
        lives = [life for life in self._clients.live() if life.churns]
        if not lives:
            return
        life = self._rng.choice(lives)
        life.deleting_ns = self._clients.now_ns()
        for each in life.logs():
            self._history.facts_of(each).deleted = True
        while True:
            try:
                await self._admin.delete_topic(life.name, timeout_ms=self._timeout_ms)
                break
            except GONE:
                break
            except DlogError as error:
                self._around.trace("data-admin", "delete failed", life.name, repr(error))
            await self._around.sleep_ms(50)
        self._deleted[life.topic_id] = life.name
        self._around.trace("data-admin", "deleted", life.name, life.topic_id)
        await self._around.sleep_ms(self._rng.choice((0, 10, 300)))
        plans = [plan for plan in self._plan.data.topics if plan.name == life.name]
        await self._make(plans[0])

    # -- changes

    async def _trim(self, key: LogKey) -> None:
        if self._clients.churns(key.topic):
            return
        ends = [send.base_offset + 1 for send in self._history.sends[-200:] if send.key == key]
        offset = self._rng.choice((-1, self._rng.randint(0, max([0, *ends]))))
        invoked_ns = self._clients.now_ns()
        # The high watermark of that moment is not known; nobody can be beyond it either.
        asked = offset if offset >= 0 else 1 << 60
        trims = self._history.trims
        at = len(trims)
        trims.append(Trim(key, invoked_ns, ALWAYS_NS, asked))
        node = await self._cluster.leader(key.topic, key.partition)
        found = await delete_records(node, key.topic, {key.partition: offset}, self._timeout_ms)
        low = found[key.partition]
        trims[at] = Trim(key, invoked_ns, self._clients.now_ns(), asked, low)

    async def _configure(self, key: LogKey, name: str, values: tuple[str, ...]) -> None:
        value = self._rng.choice(values)
        await self._admin.alter_configs(Resource.TOPIC, key.topic, set_values={name: value})

    async def _min_isr(self, key: LogKey) -> None:
        await self._configure(key, "min.insync.replicas", ("1", "2", "2", "3"))

    async def _flush_policy(self, key: LogKey) -> None:
        for each in self._history.facts:
            if each.topic_id == key.topic_id:
                # Weak from now on: nobody knows when a change takes effect.
                self._history.facts_of(each).flush_policy = "interval"
        await self._configure(key, "flush.policy", ("always", "interval", "never"))

    async def _unclean(self, key: LogKey) -> None:
        await self._configure(key, "unclean.leader.election.enable", ("true", "false"))

    async def _segments(self, key: LogKey) -> None:
        await self._configure(key, "segment.bytes", ("1024", "4096", "100000"))

    async def _move(self, key: LogKey) -> None:
        """Give a partition other replicas, perhaps more or fewer, or take that back."""
        nodes = range(1, self._plan.nodes + 1)
        count = self._rng.randint(1, min(REPLICAS_MAX, len(nodes)))
        target = self._rng.sample(nodes, count) if self._rng.random() < 0.85 else None
        await self._admin.alter_reassignments(
            {(key.topic, key.partition): target}, timeout_ms=self._timeout_ms
        )

    async def _elect(self, key: LogKey) -> None:
        await self._admin.elect_leaders([(key.topic, key.partition)], timeout_ms=self._timeout_ms)
