"""The simulated administrator, who keeps the topics, and rude clients, who keep nothing.

The administrator uses the real `dlog.client`; what it heard that must last (topics, configs,
trims) is compared with what the node says in the end.
"""

import asyncio
import random
from uuid import UUID

from dlog.client.admin import Admin, Resource
from dlog.client.cluster.cluster import Cluster
from dlog.client.cluster.partition_calls import delete_records
from dlog.client.retry import RetryPolicy
from dlog.errors import (
    DlogError,
    TopicAlreadyExistsError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from dlog.transport import ConnectionOptions
from tests.histories.history import EpochSeen, LogFacts, LogKey, Trim
from tests.simulation.clients import NODE, Surroundings, Topic
from tests.simulation.loop import SimLoop
from tests.simulation.plan import CHECKED, NODE_ADDRESS, PORT, TopicPlan

GONE = (UnknownTopicOrPartitionError, UnknownTopicIdError)


class Administrator:
    """Makes the plan's topics, then changes things at random until the time is over."""

    def __init__(self, around: Surroundings, loop: SimLoop) -> None:
        self.around = around
        self.loop = loop
        self.rng = random.Random(f"{around.plan.seed}/admin")
        self.cluster = Cluster(
            [NODE],
            loop=loop,
            rng=random.Random(f"{around.plan.seed}/cluster"),
            options=ConnectionOptions(connect_timeout_s=2.0, request_timeout_s=6.0),
            policy=RetryPolicy(deadline_s=10.0),
        )
        self.admin = Admin(self.cluster)
        self.deleted: dict[UUID, str] = {}

    async def run(self) -> None:
        """Make the topics and change things until the plan's time is over."""
        plan = self.around.plan
        for topic in plan.topics:
            await self._make(topic)
        while self.around.active:
            await self.around.sleep_ms((plan.admin_interval_ms or 500) * 2 * self.rng.random())
            if not self.around.active:
                break
            try:
                await (self._change() if plan.admin_interval_ms else self._look())
            except DlogError as error:
                self.around.trace("admin", "failed", repr(error))

    async def _change(self) -> None:
        actions = (self._trim, self._configure, self._add_partition, self._churn, self._look)
        weights = (5, 2, 1, 3, 4)
        await self.rng.choices(actions, weights)[0]()

    # -- topics

    async def _make(self, plan: TopicPlan) -> None:
        """Make a topic, however long it takes; another attempt may have made it before."""
        while True:
            try:
                topic_id = await self.admin.create_topic(
                    plan.name,
                    partitions=plan.partitions,
                    replication_factor=1,
                    configs=plan.configs,
                    timeout_ms=3000,
                )
                break
            except TopicAlreadyExistsError:
                found = await self._find(plan.name)
                if found is not None and found not in self.deleted:
                    topic_id = found
                    break
            except DlogError as error:
                self.around.trace("admin", "create failed", plan.name, repr(error))
            await self.around.sleep_ms(100 + 200 * self.rng.random())
        configs = {name: {value} for name, value in plan.configs.items()}
        topic = Topic(plan.name, topic_id, plan.partitions, plan.churns, configs)
        if topic_id in self.deleted:
            self.around.violation(f"topic: the deleted {plan.name} {topic_id} is back")
        for key in topic.logs():
            self._note(key, plan)
        self.around.topics.live.append(topic)
        self.around.trace("topic", plan.name, topic_id)

    def _note(self, key: LogKey, plan: TopicPlan) -> None:
        retention = "retention.ms" in plan.configs or "retention.bytes" in plan.configs
        policy = plan.configs.get("flush.policy", "always")
        is_judged = "retention.bytes" not in plan.configs and not any(
            fault.kind == "set-clock" for _, fault in self.around.plan.schedule()
        )
        kept_ms = int(plan.configs.get("retention.ms", "-1")) if is_judged else -1
        self.around.history.facts[key] = LogFacts(
            flush_policy=policy,
            retention=retention,
            kept_ms=kept_ms,
            checked=CHECKED in plan.configs,
        )

    async def _find(self, name: str) -> UUID | None:
        try:
            view = await self.admin.describe_topic(name)
        except DlogError:
            return None
        return view.topic_id

    async def _churn(self) -> None:
        """Delete a topic, and make it again some time later."""
        topics = [topic for topic in self.around.topics.live if topic.churns]
        if not topics:
            await self._look()
            return
        topic = self.rng.choice(topics)
        topic.deleting = True
        for key in topic.logs():
            self.around.history.facts_of(key).deleted = True
        while True:
            try:
                await self.admin.delete_topic(topic.name, timeout_ms=3000)
                break
            except GONE:
                break
            except DlogError as error:
                self.around.trace("admin", "delete failed", topic.name, repr(error))
            await self.around.sleep_ms(100)
        self.deleted[topic.topic_id] = topic.name
        self.around.topics.live.remove(topic)
        self.around.trace("admin", "deleted", topic.name, topic.topic_id)
        await self.around.sleep_ms(self.rng.choice((0, 10, 300)))
        plan = next(plan for plan in self.around.plan.topics if plan.name == topic.name)
        if self.around.active:
            await self._make(plan)

    # -- changes

    async def _trim(self) -> None:
        key = self.around.topics.pick(self.rng)
        if key is None:
            return
        polls = [poll for poll in self.around.history.polls if poll.key == key]
        end = polls[-1].high_watermark if polls else 0
        offset = self.rng.choice((-1, self.rng.randint(0, end)))
        invoked_ns = self.around.now_ns()
        trims = self.around.history.trims
        # The high watermark of that moment is not known; nobody can be beyond it either.
        asked = offset if offset >= 0 else 1 << 60
        at = len(trims)
        trims.append(Trim(key, invoked_ns, 1 << 62, asked))
        node = await self.cluster.leader(key.topic, key.partition)
        found = await delete_records(node, key.topic, {key.partition: offset}, 2000)
        low = found[key.partition]
        trims[at] = Trim(key, invoked_ns, self.around.now_ns(), asked, low)
        self.around.trace("trim", key, offset, low)

    async def _configure(self) -> None:
        topic = self._topic()
        if topic is None:
            return
        name, values = self.rng.choice(
            (
                ("segment.bytes", ("1024", "4096", "100000")),
                ("retention.bytes", ("-1", "1000000000")),
                ("max.message.bytes", ("100000", "150000")),
                ("index.interval.bytes", ("256", "1000")),
                ("flush.policy", ("always", "interval", "never")),
                ("preallocate.bytes", ("0", "4096")),
            )
        )
        if name == "retention.bytes" and name in topic.configs:
            return
        if name == "flush.policy" and topic.configs.get(name) == {"always"}:
            return  # it keeps the promise that the checkers hold it to
        value = self.rng.choice(values)
        before = topic.configs.get(name, {""})
        topic.configs[name] = {*before, value}
        await self.admin.alter_configs(Resource.TOPIC, topic.name, set_values={name: value})
        topic.configs[name] = {value}

    async def _add_partition(self) -> None:
        topic = self._topic()
        if topic is None or topic.churns or topic.partitions >= 5:
            return
        plan = next(plan for plan in self.around.plan.topics if plan.name == topic.name)
        await self.admin.create_partitions(topic.name, topic.partitions + 1, timeout_ms=2000)
        topic.partitions += 1
        self._note(topic.logs()[-1], plan)

    def _topic(self) -> Topic | None:
        topics = [topic for topic in self.around.topics.live if not topic.deleting]
        return self.rng.choice(topics) if topics else None

    # -- looks

    async def _look(self) -> None:
        invoked_ns = self.around.now_ns()
        view = await self.admin.describe_topics()
        completed_ns = self.around.now_ns()
        for topic in view.topics.values():
            for each in topic.partitions:
                key = LogKey(topic.topic_id, topic.name, each.partition)
                seen = EpochSeen(key, invoked_ns, completed_ns, each.leader_epoch)
                self.around.history.epochs.append(seen)
        if self.rng.random() < 0.2:
            await self.admin.describe_log_dirs(1)

    async def compare(self) -> None:
        """Compare what must have lasted with what the node says; all has healed."""
        view = await self.admin.describe_topics()
        for topic in self.around.topics.live:
            found = view.topics.get(topic.name)
            if found is None or found.topic_id != topic.topic_id:
                self.around.violation(f"topic: {topic.name} {topic.topic_id} is lost")
                continue
            if len(found.partitions) < topic.partitions:
                self.around.violation(
                    f"topic: {topic.name} has {len(found.partitions)} partitions of"
                    f" {topic.partitions}"
                )
            entries = await self.admin.describe_configs(Resource.TOPIC, topic.name)
            values = {entry.name: entry.value for entry in entries}
            for name, allowed in topic.configs.items():
                if "" not in allowed and values.get(name) not in allowed:
                    self.around.violation(
                        f"config: {topic.name} {name} is {values.get(name)}, not {sorted(allowed)}"
                    )
        for topic_id, name in self.deleted.items():
            found = view.topics.get(name)
            if found is not None and found.topic_id == topic_id:
                self.around.violation(f"topic: the deleted {name} {topic_id} is back")


class RudeClient:
    """Sends what no client should, reads slowly or not at all, and leaves without a word."""

    def __init__(self, around: Surroundings, loop: SimLoop) -> None:
        self.around = around
        self.loop = loop
        self.rng = random.Random(f"{around.plan.seed}/rude")

    async def run(self) -> None:
        """Annoy the node until the plan's time is over."""
        interval_ms = self.around.plan.rude_interval_ms
        while self.around.active and interval_ms:
            await self.around.sleep_ms(interval_ms * 2 * self.rng.random())
            try:
                transport, _ = await self.loop.create_connection(
                    asyncio.Protocol, NODE_ADDRESS, PORT
                )
            except OSError:
                continue
            if self.rng.random() < 0.5:
                transport.pause_reading()
            for _ in range(self.rng.randint(0, 4)):
                transport.write(self._nonsense())
                await self.around.sleep_ms(50 * self.rng.random())
            if self.rng.random() < 0.5:
                transport.write_eof()
                await self.around.sleep_ms(50)
            transport.abort()

    def _nonsense(self) -> bytes:
        rng = self.rng
        body = rng.randbytes(rng.randint(0, 60))
        length = rng.choice((len(body), len(body) + 5, 1 << 30, -1, 0))
        api = rng.choice((0, 1, 2, 3, 18, 19, 99))
        head = api.to_bytes(2, "big") + rng.randrange(12).to_bytes(2, "big")
        frame = length.to_bytes(4, "big", signed=True) + head + body
        return rng.choice((frame, frame[: rng.randint(0, len(frame))], body))
