"""Lookup of offsets: log start, log end, first record at or after a time.

Many partitions of many leaders at once, each asked again after errors that pass, until all are
known or the policy's deadline is over. Called by the consumer; `dlog.client.consuming.fetcher`
reads.
"""

import asyncio
import random
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from dlog.client.cluster.cluster import Cluster
from dlog.client.cluster.node import NodeClient
from dlog.client.cluster.partition_calls import CONSUMER
from dlog.client.retry import GiveUp, plan_retry
from dlog.client.starts import Start, needs_earliest, place, query_timestamp
from dlog.client.views import TopicView
from dlog.errors import (
    NONE,
    ConnectFailedError,
    DlogError,
    LeaderNotAvailableError,
    ProtocolError,
    TransportError,
    UnknownTopicOrPartitionError,
    WireError,
    error_for,
)
from dlog.offset_specs import EARLIEST, LATEST, Isolation
from dlog.types import PartitionId, TopicPartition
from dlog.wire.apis import ApiKey

T = TypeVar("T")

UNKNOWN_TOPIC_PATIENCE_S = 2.0
"""A topic that was created just now may not be known to every node yet."""


class FoundOffset(NamedTuple):
    """An answer of ListOffsets; the offset is -1 when no record is that young."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


_NOTHING = FoundOffset(0, -1, -1)


async def ask_offsets(
    node: NodeClient,
    wanted: Mapping[TopicPartition, int],
    isolation: Isolation,
    *,
    replica_id: int = CONSUMER,
) -> dict[TopicPartition, FoundOffset | WireError]:
    """Ask one node about partitions that it leads: for each the timestamp, or EARLIEST, LATEST.

    With OBSERVER as `replica_id` LATEST is the log end offset, not the high watermark.
    Raises what the call as a whole raises, ProtocolError when a partition is not answered.
    """
    by_topic: dict[str, dict[int, int]] = {}
    for key, timestamp in wanted.items():
        by_topic.setdefault(key.topic, {})[key.partition] = timestamp

    def build(module: Any) -> Any:
        topics = tuple(
            module.ListOffsetsTopic(
                name=topic,
                partitions=tuple(
                    module.ListOffsetsPartition(partition_index=index, timestamp=timestamp)
                    for index, timestamp in partitions.items()
                ),
            )
            for topic, partitions in by_topic.items()
        )
        return module.ListOffsetsRequest(
            replica_id=replica_id, isolation_level=int(isolation), topics=topics
        )

    response = await node.call(ApiKey.LIST_OFFSETS, build)
    found: dict[TopicPartition, FoundOffset | WireError] = {}
    for answered in response.topics:
        for each in answered.partitions:
            key = TopicPartition(str(answered.name), PartitionId(int(each.partition_index)))
            code = int(each.error_code)
            found[key] = (
                error_for(code, str(key))
                if code != NONE
                else FoundOffset(int(each.offset), int(each.timestamp), int(each.leader_epoch))
            )
    missing = [str(key) for key in wanted if key not in found]
    if missing:
        raise ProtocolError(f"{node.address} sent no offsets of {', '.join(missing)}")
    return found


class Attempts:
    """The attempts of one call about several partitions: waits between them, and gives up."""

    def __init__(
        self, cluster: Cluster, loop: asyncio.AbstractEventLoop, rng: random.Random
    ) -> None:
        self._cluster = cluster
        self._policy = cluster.policy
        self._loop = loop
        self._rng = rng
        self._started_s = loop.time()
        self._count = 0
        self._last_error: DlogError | None = None

    async def within(self, attempt: Awaitable[T]) -> T:
        """Return what one attempt gives; what the deadline cuts off ends with an error."""
        deadline_s = self._policy.deadline_s
        try:
            async with asyncio.timeout_at(self._started_s + deadline_s if deadline_s > 0 else None):
                return await attempt
        except TimeoutError as error:
            if self._last_error is not None:
                raise self._last_error from error
            asked = ", ".join(map(str, self._cluster.candidates()))
            raise ConnectFailedError(
                f"no answer within {deadline_s:g} s from any of {asked}"
            ) from error

    async def wait_after(self, error: DlogError) -> None:
        """Return when it is time to try again; raise `error` when it is final."""
        elapsed_s = self._loop.time() - self._started_s
        decision = plan_retry(
            self._policy, error, attempt=self._count, elapsed_s=elapsed_s, rng=self._rng
        )
        is_unknown = isinstance(error, UnknownTopicOrPartitionError)
        if isinstance(decision, GiveUp) or (is_unknown and elapsed_s > UNKNOWN_TOPIC_PATIENCE_S):
            raise error
        self._count += 1
        self._last_error = error
        await asyncio.sleep(decision.wait_s)


class OffsetLookup:
    """Finds offsets for one consumer. Owner: the loop's thread; holds no state of its own."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        loop: asyncio.AbstractEventLoop,
        rng: random.Random,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        replica_id: int = CONSUMER,
    ) -> None:
        self._cluster = cluster
        self._loop = loop
        self._rng = rng
        self._isolation = isolation
        self._replica_id = replica_id

    async def topic(self, name: str) -> TopicView:
        """Return a topic as the cluster knows it; raise its error when it lasts."""
        attempts = Attempts(self._cluster, self._loop, self._rng)
        while True:
            try:
                return await attempts.within(self._cluster.metadata(name))
            except (WireError, TransportError) as error:
                await attempts.wait_after(error)

    async def place(self, starts: Mapping[TopicPartition, Start]) -> dict[TopicPartition, int]:
        """Return the offset that each start stands for now."""
        return {key: offset for key, (offset, _) in (await self.places(starts)).items()}

    async def places(
        self, starts: Mapping[TopicPartition, Start]
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return the offset that each start stands for now, and the leader epoch told with it.

        The epoch is -1 where nobody was asked for just that offset. Another log differs from the
        one whose offset it is, if it has that epoch end before (KIP-320).
        """
        queries = {key: query_timestamp(start) for key, start in starts.items()}
        wanted = {key: query for key, query in queries.items() if query is not None}
        attempts = Attempts(self._cluster, self._loop, self._rng)  # one deadline for all
        # Asked before the search: a record that is written during the search is not older than the
        # time that is looked for, and must not be passed over.
        by_time = {key: LATEST for key, query in wanted.items() if query >= 0}
        ends = await self.find(by_time, attempts)
        found = await self.find(wanted, attempts)
        earliest = await self.find(
            {key: EARLIEST for key, start in starts.items() if needs_earliest(start)}, attempts
        )
        # No record is that young: begin with the next one that is written.
        found.update({key: ends[key] for key, each in found.items() if each.offset < 0})
        places: dict[TopicPartition, tuple[int, int]] = {}
        for key, start in starts.items():
            told = found.get(key, _NOTHING)
            offset = place(start, told.offset, earliest.get(key, _NOTHING).offset)
            is_told = key in found and offset == told.offset
            places[key] = offset, told.leader_epoch if is_told else _NOTHING.leader_epoch
        return places

    async def find(
        self, wanted: Mapping[TopicPartition, int], attempts: Attempts | None = None
    ) -> dict[TopicPartition, FoundOffset]:
        """Return what ListOffsets says to each timestamp (EARLIEST, LATEST, ms since 1970).

        Raises the first error that is final, or that lasts until the policy's deadline.
        """
        attempts = attempts or Attempts(self._cluster, self._loop, self._rng)
        found: dict[TopicPartition, FoundOffset] = {}
        missing = dict(wanted)
        while missing:
            failure: DlogError | None = None
            for key, each in (await attempts.within(self._ask_leaders(missing))).items():
                if isinstance(each, FoundOffset):
                    found[key] = each
                    del missing[key]
                elif failure is None or not getattr(each, "retriable", True):
                    failure = each
            if failure is not None:
                await attempts.wait_after(failure)
        return found

    async def _ask_leaders(
        self, wanted: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, FoundOffset | DlogError]:
        """Ask every leader once, all at the same time."""
        answers: dict[TopicPartition, FoundOffset | DlogError] = {}
        unknown = await self._look_up(key.topic for key in wanted)
        by_node: dict[int, dict[TopicPartition, int]] = {}
        for key, timestamp in wanted.items():
            if key.topic in unknown:
                answers[key] = unknown[key.topic]
                continue
            try:
                leader = self._cluster.leader_of(key.topic, key.partition)
            except WireError as error:
                self._cluster.forget_leader(key.topic)
                answers[key] = _as_passing(error)
                continue
            by_node.setdefault(leader.node_id, {})[key] = timestamp
        for some in await asyncio.gather(*(self._ask(*each) for each in by_node.items())):
            answers.update(some)
        return answers

    async def _look_up(self, topics: Iterable[str]) -> dict[str, DlogError]:
        """See to it that the topics are known; return the errors of those that are not."""
        names = list(dict.fromkeys(topics))
        errors: dict[str, DlogError] = {}

        async def one(name: str) -> None:
            try:
                await self._cluster.metadata(name)
            except (WireError, TransportError) as error:
                errors[name] = error

        await asyncio.gather(*map(one, names))
        return errors

    async def _ask(
        self, node_id: int, wanted: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, FoundOffset | DlogError]:
        first = next(iter(wanted))
        try:
            node = await self._cluster.connection(node_id)
            found = await ask_offsets(node, wanted, self._isolation, replica_id=self._replica_id)
        except (WireError, TransportError, ProtocolError) as error:
            self._cluster.on_error(first.topic, first.partition, node_id, error)
            return dict.fromkeys(wanted, error)
        for key, each in found.items():
            if isinstance(each, WireError):
                self._cluster.on_error(key.topic, key.partition, node_id, each)
        return dict(found)


def _as_passing(error: WireError) -> WireError:
    """Return an error that is tried again: a leader that is not known now will be."""
    return error if error.retriable else LeaderNotAvailableError(str(error))
