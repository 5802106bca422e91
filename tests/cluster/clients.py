"""Clients that change the metadata of a cluster while it is harmed, and note what they were told.

Two kinds: `dlog.client`, and confluent-kafka's AdminClient, which knows nothing of dlog.
"""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import admin as librdkafka

from dlog.client.admin import Admin, Resource
from dlog.client.cluster.node import NodeClient, open_node
from dlog.client.producing.producer_id import init_producer_id
from dlog.client.retry import RetryPolicy, is_outcome_unknown
from dlog.errors import DlogError, RequestTimedOutError
from dlog.transport import Address, ConnectionOptions
from tests.cluster.ledger import ABSENT, Ledger, TopicState, with_configs

TIMEOUT_MS = 4_000
PAUSE_S = (0.005, 0.05)
TOPICS_MAX = 30  # of one client; then it deletes
PARTITIONS_MAX = 12
# A definite refusal of librdkafka's; everything else may have happened.
REFUSALS = {
    KafkaError.TOPIC_ALREADY_EXISTS,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.NOT_CONTROLLER,
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.INVALID_PARTITIONS,
    KafkaError.INVALID_CONFIG,
    KafkaError.INVALID_REQUEST,
    KafkaError.POLICY_VIOLATION,
}


class RefusedError(Exception):
    """The change has no effect, for sure."""


class DoubtError(Exception):
    """Nobody knows whether the change took effect."""


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """When an acknowledged change was asked for, and when the answer came (monotonic seconds)."""

    asked_s: float
    answered_s: float


class Witness:
    """Where clients note what they were told; shared by all."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.acknowledgements: list[Acknowledgement] = []
        self.progress = asyncio.Event()

    def note(self, asked_s: float) -> None:
        """Note that something was acknowledged now."""
        self.acknowledgements.append(Acknowledgement(asked_s, time.monotonic()))
        self.progress.set()

    async def until_acknowledged(self, since_s: float, count: int, patience_s: float) -> None:
        """Return when so many changes that were asked for after `since_s` are acknowledged."""
        async with asyncio.timeout(patience_s):
            while sum(each.asked_s >= since_s for each in self.acknowledgements) < count:
                self.progress.clear()
                await self.progress.wait()


class Changer:
    """One client: draws a change, asks for it, notes the outcome. Life: `run` until cancelled."""

    def __init__(self, name: str, witness: Witness, rng: random.Random) -> None:
        self.name = name
        self.pause_s = PAUSE_S
        self._witness = witness
        self._ledger = witness.ledger
        self._rng = rng
        self._made = 0
        self._stopping = False

    # What the two kinds of clients do: raise RefusedError or DoubtError.

    async def create(self, name: str, wanted: TopicState) -> TopicState:
        """Create a topic; return it, with its id when that is told."""
        raise NotImplementedError

    async def delete(self, name: str) -> None:
        """Delete a topic."""
        raise NotImplementedError

    async def grow(self, name: str, partitions: int) -> None:
        """Raise the number of partitions."""
        raise NotImplementedError

    async def configure(self, name: str, changes: dict[str, str]) -> None:
        """Set configs."""
        raise NotImplementedError

    async def allocate(self) -> int:
        """Get a producer id; -1 when this kind of client cannot."""
        return -1

    async def close(self) -> None:
        """Close connections."""

    def stop(self) -> None:
        """End after the change that is under way, so that its outcome is noted."""
        self._stopping = True

    async def run(self) -> None:
        """Make one change after the other."""
        while not self._stopping:
            await self._one()
            await asyncio.sleep(self._rng.uniform(*self.pause_s))

    async def _one(self) -> None:
        topics = self._ledger.settled(self.name)
        draw = self._rng.random()
        if draw < 0.15:
            await self._allocate()
        elif not topics or (draw < 0.5 and len(topics) < TOPICS_MAX):
            await self._create()
        elif draw < 0.65 and len(topics) > 3:
            await self._delete(topics[0])
        else:
            await self._change(self._rng.choice(topics))

    async def _allocate(self) -> None:
        try:
            producer_id = await self.allocate()
        except (RefusedError, DoubtError):
            return  # an id that nobody was told of is lost, and may be
        if producer_id >= 0:
            self._ledger.allocate(producer_id)  # mostly from a block that its node has: no change

    async def _create(self) -> None:
        self._made += 1
        name = f"{self.name}{self._made}"
        wanted = TopicState(
            topic_id=None,
            partitions=self._rng.randint(1, 4),
            replicas=self._rng.randint(1, 3),
            configs={"retention.ms": str(self._rng.randint(1, 1 << 40))},
        )
        await self._attempt("create", name, wanted, lambda: self.create(name, wanted))

    async def _delete(self, name: str) -> None:
        await self._attempt("delete", name, ABSENT, lambda: self.delete(name))

    async def _change(self, name: str) -> None:
        state = self._ledger.state_of(name)
        assert state is not ABSENT
        if self._rng.random() < 0.3 and state.partitions < PARTITIONS_MAX:
            count = state.partitions + self._rng.randint(1, 2)
            after = TopicState(
                topic_id=state.topic_id,
                partitions=count,
                replicas=state.replicas,
                configs=state.configs,
            )
            await self._attempt("grow", name, after, lambda: self.grow(name, count))
            return
        key = self._rng.choice(("retention.ms", "segment.bytes", "max.message.bytes"))
        changes = {key: str(self._rng.randint(1 << 20, 1 << 30))}
        after = with_configs(state, changes)
        await self._attempt("configure", name, after, lambda: self.configure(name, changes))

    async def _attempt(
        self, kind: str, name: str, after: TopicState | None, change: Callable[[], Any]
    ) -> None:
        asked_s = time.monotonic()
        try:
            told = await change()
        except RefusedError as error:
            self._ledger.refuse(kind, name, str(error))
        except DoubtError as error:
            self._ledger.doubt(kind, name, after, str(error))
        else:
            self._ledger.acknowledge(kind, name, told if isinstance(told, TopicState) else after)
            self._witness.note(asked_s)


def _judged(error: DlogError) -> Exception:
    reason = f"{type(error).__name__}"
    if is_outcome_unknown(error) or isinstance(error, RequestTimedOutError):
        return DoubtError(reason)
    return RefusedError(reason)


class OwnClient(Changer):
    """`dlog.client`, with one attempt for each change: what it says is about that attempt."""

    def __init__(
        self, name: str, witness: Witness, rng: random.Random, bootstrap: Sequence[str]
    ) -> None:
        super().__init__(name, witness, rng)
        self._bootstrap = list(bootstrap)
        self._admin = Admin(
            self._bootstrap,
            rng=rng,
            connection=ConnectionOptions(client_id=name, connect_timeout_s=1),
            policy=RetryPolicy(deadline_s=0, lookup_timeout_s=1),
        )

    async def run(self) -> None:
        """Make one change after the other."""
        async with self._admin:
            await super().run()

    async def create(self, name: str, wanted: TopicState) -> TopicState:
        try:
            topic_id = await self._admin.create_topic(
                name,
                partitions=wanted.partitions,
                replication_factor=wanted.replicas,
                configs=wanted.configs,
                timeout_ms=TIMEOUT_MS,
            )
        except DlogError as error:
            raise _judged(error) from error
        return TopicState(
            topic_id=topic_id,
            partitions=wanted.partitions,
            replicas=wanted.replicas,
            configs=wanted.configs,
        )

    async def delete(self, name: str) -> None:
        try:
            await self._admin.delete_topic(name, timeout_ms=TIMEOUT_MS)
        except DlogError as error:
            raise _judged(error) from error

    async def grow(self, name: str, partitions: int) -> None:
        try:
            await self._admin.create_partitions(name, partitions, timeout_ms=TIMEOUT_MS)
        except DlogError as error:
            raise _judged(error) from error

    async def configure(self, name: str, changes: dict[str, str]) -> None:
        try:
            await self._admin.alter_configs(Resource.TOPIC, name, set_values=changes)
        except DlogError as error:
            raise _judged(error) from error

    async def allocate(self) -> int:
        address = Address.parse(self._rng.choice(self._bootstrap))
        node: NodeClient | None = None
        try:
            options = ConnectionOptions(client_id=self.name, connect_timeout_s=1)
            node = await open_node(asyncio.get_running_loop(), address, options)
            return (await asyncio.wait_for(init_producer_id(node), TIMEOUT_MS / 1000))[0]
        except (DlogError, TimeoutError) as error:
            raise RefusedError(type(error).__name__) from error
        finally:
            if node is not None:
                node.connection.close()


class Librdkafka(Changer):
    """confluent-kafka's AdminClient, in a thread: it repeats by itself, so doubt stays doubt."""

    def __init__(
        self, name: str, witness: Witness, rng: random.Random, bootstrap: Sequence[str]
    ) -> None:
        super().__init__(name, witness, rng)
        self._admin = librdkafka.AdminClient(
            {
                "bootstrap.servers": ",".join(bootstrap),
                # A change has some seconds (`TIMEOUT_MS`), of which a node that is gone would
                # take all by default: nothing that is repeated for minutes, as records are.
                "socket.connection.setup.timeout.ms": 1000,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        self._thread = ThreadPoolExecutor(1, name)

    async def close(self) -> None:
        self._thread.shutdown(wait=True)

    async def _wait(self, ask: Callable[[], dict[Any, Any]]) -> None:
        def work() -> None:
            for future in ask().values():
                future.result(2 * TIMEOUT_MS / 1000)

        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except KafkaException as failed:
            error = cast(KafkaError, failed.args[0])
            reason = error.name()
            raise (
                RefusedError(reason) if error.code() in REFUSALS else DoubtError(reason)
            ) from failed
        except TimeoutError as failed:
            raise DoubtError("TimeoutError") from failed

    async def create(self, name: str, wanted: TopicState) -> TopicState:
        topic = librdkafka.NewTopic(
            name, wanted.partitions, wanted.replicas, config=dict(wanted.configs)
        )
        try:
            await self._wait(lambda: self._admin.create_topics([topic], **_TIMEOUTS))
        except RefusedError as error:
            # It may have been its own earlier attempt that made the topic.
            if "TOPIC_ALREADY_EXISTS" in str(error):
                raise DoubtError(str(error)) from error
            raise
        return wanted

    async def delete(self, name: str) -> None:
        try:
            await self._wait(lambda: self._admin.delete_topics([name], **_TIMEOUTS))
        except RefusedError as error:
            raise DoubtError(str(error)) from error  # as above

    async def grow(self, name: str, partitions: int) -> None:
        try:
            more = librdkafka.NewPartitions(name, partitions)
            await self._wait(lambda: self._admin.create_partitions([more], **_TIMEOUTS))
        except RefusedError as error:
            raise DoubtError(str(error)) from error  # as above

    async def configure(self, name: str, changes: dict[str, str]) -> None:
        entries = [
            librdkafka.ConfigEntry(
                key, value, incremental_operation=librdkafka.AlterConfigOpType.SET
            )
            for key, value in changes.items()
        ]
        resource = librdkafka.ConfigResource(
            librdkafka.ResourceType.TOPIC, name, incremental_configs=entries
        )
        try:
            await self._wait(
                lambda: self._admin.incremental_alter_configs(
                    [resource], request_timeout=TIMEOUT_MS / 1000
                )
            )
        except RefusedError as error:
            raise DoubtError(str(error)) from error


_TIMEOUTS = {
    "operation_timeout": TIMEOUT_MS / 1000,
    "request_timeout": 1.5 * TIMEOUT_MS / 1000,
}
