"""Simulated users of a cluster's data: the real `Producer` and `Consumer`, and what they heard.

Every record is a `Send` in the history before it is handed over; it ends ok, refused or unknown.
What is read is checked to the last byte and becomes a `Poll`. Nothing here judges the history.
"""

import asyncio
import itertools
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from dlog.client.cluster.cluster import Cluster
from dlog.client.consumed import ConsumedRecord
from dlog.client.consumer import Consumer
from dlog.client.futures import Delivery, RefusedError, Written
from dlog.client.gaps import Gap, GapReason
from dlog.client.produce_options import ACKS
from dlog.client.producer import Producer
from dlog.client.retry import RetryPolicy
from dlog.errors import DlogError
from dlog.transport import Address, ConnectionOptions
from dlog.types import ZERO_TOPIC_ID, PartitionId, TopicPartition
from tests.histories.history import Follower, LogKey, Outcome, Poll, Seen, Send
from tests.simulation.clients import make_value, number_of
from tests.simulation.fleet.data_plan import DataConsumerPlan, DataProducerPlan
from tests.simulation.fleet.id_watch import producer_lives
from tests.simulation.fleet.plan import CLIENT_PORT, FleetPlan, address_of
from tests.simulation.loop import EPOCH_MS, SimLoop

ALWAYS_NS = 1 << 62


@dataclass(slots=True)
class Life:
    """One life of a topic, as its administrator knows it."""

    name: str
    topic_id: UUID
    partitions: int
    churns: bool
    created_ns: int = 0
    deleting_ns: int = ALWAYS_NS  # when its deletion was asked for

    def logs(self) -> list[LogKey]:
        """Return its logs."""
        return [LogKey(self.topic_id, self.name, number) for number in range(self.partitions)]


class DataClients:
    """What all clients of data share. `lives` are those of all topics, the dead included."""

    def __init__(self, around: Any) -> None:
        self.around = around
        self.plan: FleetPlan = around.plan
        self.loop: SimLoop = around.loop
        self.lives: list[Life] = []
        self.numbers = itertools.count(1)
        self.sessions = itertools.count(1)

    def live(self) -> list[Life]:
        """Return the topics that are there and stay, for all that is known."""
        return [life for life in self.lives if life.deleting_ns == ALWAYS_NS]

    def pick(self, rng: random.Random) -> LogKey | None:
        """Return a random log, None while there is no topic."""
        lives = self.live()
        return rng.choice(rng.choice(lives).logs()) if lives else None

    def churns(self, name: str) -> bool:
        """Return whether a topic is made again and again."""
        return any(each.churns for each in self.plan.data.topics if each.name == name)

    def now_ns(self) -> int:
        """Return the world's time."""
        now: int = self.around.world.now_ns
        return now

    def timestamp_ms(self) -> int:
        """Return the clients' wall clock."""
        return EPOCH_MS + self.now_ns() // 1_000_000

    def addresses(self, rng: random.Random) -> list[Address]:
        """Return where the nodes are, in any order."""
        nodes = [Address(address_of(n), CLIENT_PORT) for n in range(1, self.plan.nodes + 1)]
        rng.shuffle(nodes)
        return nodes

    def options(self, name: str) -> ConnectionOptions:
        """Return how a client connects."""
        patience_s = 1.0 * self.plan.pace
        return ConnectionOptions(
            client_id=name, connect_timeout_s=patience_s / 3, request_timeout_s=patience_s
        )

    def policy(self, deadline_s: float = 8.0) -> RetryPolicy:
        """Return how a client tries again."""
        pace = self.plan.pace
        return RetryPolicy(
            cap_s=0.3 * pace,
            deadline_s=deadline_s * pace,
            lookup_timeout_s=0.8 * pace,
            patience_s=0.1 * pace,
        )

    def cluster(self, name: str, rng: random.Random) -> Cluster:
        """Return a client's view of the cluster."""
        return Cluster(
            self.addresses(rng),
            loop=self.loop,
            rng=random.Random(rng.getrandbits(64)),
            options=self.options(name),
            policy=self.policy(),
        )


class DataProducer:
    """One producer; `run` ends when the run's time is over and all its records have ended."""

    def __init__(self, clients: DataClients, plan: DataProducerPlan) -> None:
        self._clients = clients
        self._around = clients.around
        self.plan = plan
        self._rng = random.Random(f"{clients.plan.seed}/{plan.name}")
        self._lengths = producer_lives(clients.plan.bounds)
        self._settling: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Send until the run's time is over, now and then as another producer."""
        while self._around.active:
            session = next(self._clients.sessions)
            cluster = self._clients.cluster(self.plan.name, self._rng)
            producer = self._producer(cluster)
            await producer.start()
            for _ in range(self._rng.choice(self._lengths)):
                if not self._around.active:
                    break
                await self._around.sleep_ms(self.plan.interval_ms * 2 * self._rng.random())
                await self._burst(producer, session)
            await producer.close(int(25_000 * self._clients.plan.pace))
            for task in self._settling:
                await task
            self._settling.clear()
            await cluster.close()

    def _producer(self, cluster: Cluster) -> Producer:
        plan = self.plan
        acks: Any = plan.acks
        return Producer(
            cluster,
            acks=acks,
            idempotent=plan.idempotent,
            compression=plan.compression,
            linger_ms=plan.linger_ms,
            batch_bytes=plan.batch_bytes,
            memory_bytes=200_000,
            request_timeout_ms=plan.request_timeout_ms,
            delivery_timeout_ms=plan.delivery_timeout_ms,
            block_ms=plan.delivery_timeout_ms,
            rng=random.Random(self._rng.getrandbits(64)),
            timestamp_ns=lambda: self._clients.timestamp_ms() * 1_000_000,
        )

    async def _burst(self, producer: Producer, session: int) -> None:
        key = self._clients.pick(self._rng)
        if key is None:
            return
        deliveries = []
        for _ in range(self._rng.randint(1, self.plan.burst_max)):
            send = self._send(key, session)
            size = self._rng.randint(1, self.plan.value_bytes_max)
            value = make_value(send.numbers[0], size)
            try:
                delivery = await producer.send(key.topic, value, partition=key.partition)
            except DlogError as error:
                self._finish(send, Outcome.REFUSED, repr(error))
                return
            deliveries.append((send, delivery))
        self._settling = [task for task in self._settling if not task.done()]
        work = self._settle(deliveries)
        self._settling.append(self._clients.loop.create_task(work, name=self.plan.name))

    def _send(self, key: LogKey, session: int) -> Send:
        plan = self.plan
        send = Send(
            f"{plan.name}.{session}",
            key,
            (next(self._clients.numbers),),
            ACKS[plan.acks],
            self._clients.now_ns(),
            (session, 0, 0) if plan.idempotent else None,
            attempts=1 if plan.idempotent else 2,  # what is not idempotent may be there twice
        )
        self._around.history.sends.append(send)
        return send

    async def _settle(self, deliveries: list[tuple[Send, Delivery]]) -> None:
        for send, delivery in deliveries:
            await delivery.wait()
            outcome = delivery.outcome()
            if isinstance(outcome, Written):
                send.base_offset = outcome.offset
                self._finish(send, Outcome.OK)
            else:
                refused = isinstance(outcome, RefusedError)
                error = f"{outcome!r} {outcome.__cause__!r}" if outcome is not None else ""
                self._finish(send, Outcome.REFUSED if refused else Outcome.UNKNOWN, error)

    def _finish(self, send: Send, outcome: Outcome, error: str = "") -> None:
        send.completed_ns, send.outcome, send.error = self._clients.now_ns(), outcome, error
        self._around.trace(
            "send", send.client, send.key, send.numbers[0], outcome.value, send.base_offset, error
        )
        self._around.count(f"records {outcome.value}")


class DataConsumer:
    """One consumer of all topics; `catch_up` reads to the ends when all has healed."""

    def __init__(self, clients: DataClients, plan: DataConsumerPlan) -> None:
        self._clients = clients
        self._around = clients.around
        self.plan = plan
        self._rng = random.Random(f"{clients.plan.seed}/{plan.name}")
        self._consumer: Consumer | None = None
        self._topics: list[str] = []
        self._name = plan.name
        self._lives = itertools.count(1)
        # How often each topic was met anew, and where its logs begin after a gap.
        self._generations: dict[TopicPartition, int] = {}
        self._polled_ns = 0
        self._starts: dict[TopicPartition, int] = {}

    async def run(self) -> None:
        """Read until the run's time is over."""
        while self._around.active:
            if not await self._begin():
                await self._around.sleep_ms(50)
                continue
            while self._around.active:
                await self._turn()
                if self._rng.random() < self.plan.end_share:
                    await self._ask_ends()
                if self._rng.random() < self.plan.restart_share or self._is_new():
                    break
        await self._end()

    def _names(self) -> list[str]:
        return list(dict.fromkeys(life.name for life in self._clients.live()))

    def _is_new(self) -> bool:
        return any(name not in self._topics for name in self._names())

    async def _begin(self, logs: Iterable[LogKey] = ()) -> bool:
        """Begin anew, from the start of all topics or of some logs; return whether it worked."""
        await self._end()
        names = self._names()
        named = [TopicPartition(key.topic, PartitionId(key.partition)) for key in logs]
        if not names:
            return False
        plan = self.plan
        consumer = Consumer(
            self._clients.addresses(self._rng),
            () if named else names,
            partitions=named,
            start="earliest",
            on_gap=self._on_gap,
            max_prefetch_bytes=100_000,
            max_partition_bytes=plan.partition_bytes_max,
            max_wait_ms=plan.max_wait_ms,
            rack=plan.rack or None,
            connection=self._clients.options(plan.name),
            policy=self._clients.policy(3.0),
            rng=random.Random(self._rng.getrandbits(64)),
        )
        self._name = f"{plan.name}.{next(self._lives)}"
        self._generations.clear()
        self._starts.clear()
        self._polled_ns = self._clients.now_ns()
        self._around.history.begun_ns[self._name] = self._polled_ns
        try:
            await consumer.start()
        except DlogError as error:
            self._around.trace("consumer", self._name, "did not start", repr(error))
            return False
        self._consumer, self._topics = consumer, names
        return True

    async def _end(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.close()

    def _on_gap(self, gap: Gap) -> None:
        at = gap.topic_partition
        self._around.trace("gap", self._name, gap)
        self._around.count(f"gaps {gap.reason.value}")
        if gap.reason is GapReason.RECREATED:
            self._generations[at] = self._generations.get(at, 0) + 1
            if not self._clients.churns(at.topic):
                self._around.violate(f"recreated: {gap} for {self._name}")
            return
        self._around.history.note_gap(self._name, self._key(at), gap, self._clients.now_ns())
        if gap.reason is not GapReason.TRUNCATED:
            self._starts[at] = gap.resume_offset

    def _key(self, at: TopicPartition) -> LogKey:
        """Return the log; of a topic that churns one that stands for what this consumer reads."""
        if self._clients.churns(at.topic):
            generation = self._generations.get(at, 0)
            return LogKey(ZERO_TOPIC_ID, f"{at.topic}@{self._name}.{generation}", at.partition)
        life = next(each for each in self._clients.lives if each.name == at.topic)
        return LogKey(life.topic_id, at.topic, at.partition)

    async def _turn(self) -> None:
        """Poll once."""
        assert self._consumer is not None
        # What a poll gives was read ahead, at any time since the one before it.
        invoked_ns, self._polled_ns = self._polled_ns, self._clients.now_ns()
        try:
            records = await self._consumer.poll(timeout_ms=150)
        except DlogError as error:
            self._around.trace("consumer", self._name, repr(error))
            await self._around.sleep_ms(20 + 50 * self._rng.random())
            return
        by_log: dict[TopicPartition, list[ConsumedRecord]] = {}
        for record in records:
            at = TopicPartition(record.topic, PartitionId(record.partition))
            by_log.setdefault(at, []).append(record)
        for at, found in by_log.items():
            self._note(at, invoked_ns, found)
        await self._around.sleep_ms(5 + 10 * self._rng.random())

    def _note(self, at: TopicPartition, invoked_ns: int, found: list[ConsumedRecord]) -> None:
        key = self._key(at)
        seen = []
        for record in found:
            number = number_of(record.value)
            if number is None:
                self._around.violate(f"garbage: {record} log={key}")
                return
            seen.append(Seen(record.offset, number))
        poll = Poll(
            self._name,
            key,
            invoked_ns,
            self._clients.now_ns(),
            seen[0].offset,
            seen[-1].offset + 1,
            self._starts.get(at, 0),
            tuple(seen),
            tailing=True,
        )
        self._around.history.polls.append(poll)
        self._around.registry.data.on_read(self._name, key, seen[-1].offset)
        self._around.trace("poll", self._name, key, seen[0].offset, len(seen))

    async def _ask_ends(self) -> None:
        """Ask where all partitions end: that never goes back."""
        assert self._consumer is not None
        invoked_ns = self._clients.now_ns()
        try:
            ends = await self._consumer.end_offsets()
        except DlogError:
            return
        for at, end in ends.items():
            if not self._clients.churns(at.topic):
                self._around.history.note_end(
                    self._name, self._key(at), invoked_ns, self._clients.now_ns(), end
                )

    # -- the end of the run

    async def catch_up(
        self, ends: dict[LogKey, int], on_progress: Callable[[LogKey, int], None]
    ) -> None:
        """Read on up to where the logs end, as far as they stay; tell how far each has come."""
        while ends and not await self._begin(ends):
            await self._around.sleep_ms(50)
        left = dict(ends)
        while left:
            await self._turn()
            assert self._consumer is not None
            for key, end in list(left.items()):
                at = TopicPartition(key.topic, PartitionId(key.partition))
                position = self._consumer.position(at)
                on_progress(key, position)
                if position >= end:
                    del left[key]
                    self._note_follower(key)
        await self._end()

    def _note_follower(self, key: LogKey) -> None:
        """It has read a log to its end: it must have been given all of it."""
        history = self._around.history
        if not self._clients.churns(key.topic) and not history.facts_of(key).retention:
            history.followers.append(Follower(self._name, key))
