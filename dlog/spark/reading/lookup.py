"""Questions of the planner to the cluster: partitions, their beginnings and ends.

Blocking, for one thread; every call ends by a deadline, for Spark waits for the planner without
one. Leaders that move and nodes that come and go are the client's business.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Container, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import UUID

from dlog.client.blocking import BlockingClient
from dlog.client.cluster.bootstrap import parse_bootstrap
from dlog.client.cluster.offset_lookup import Attempts, FoundOffset, OffsetLookup
from dlog.client.cluster.partition_calls import CONSUMER, OBSERVER
from dlog.client.retry import RetryPolicy
from dlog.client.views import ClusterView, LogDirView, TopicView
from dlog.errors import (
    DlogError,
    TransportError,
    UnknownTopicOrPartitionError,
    WireError,
    error_for,
)
from dlog.offset_specs import EARLIEST, LATEST
from dlog.spark.errors import UNREACHABLE, SparkSourceError
from dlog.spark.options.offsets import PartitionOffsets
from dlog.spark.options.subscription import Assign, Subscription, partitions_of
from dlog.spark.settings import ClientSettings
from dlog.types import TopicPartition

T = TypeVar("T")

UNKNOWN_TOPIC_PATIENCE_S = 2.0
"""A topic that was created just now may not be known to every node yet."""
_RECHECK_S = 0.1
SIZES_PATIENCE_S = 2.0
_log = logging.getLogger("dlog.spark")


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """The partitions of a subscription at one moment."""

    partitions: tuple[TopicPartition, ...]
    topic_ids: Mapping[str, UUID]
    missing: tuple[TopicPartition | str, ...]
    """What does not exist of what was named or expected: topics, or partitions."""


def lookup_failed(settings: ClientSettings, what: str, error: DlogError) -> SparkSourceError:
    """Return what is told when a cluster was asked for something in vain; it is named."""
    is_away = isinstance(error, TransportError)
    name = f"{error.name}: " if isinstance(error, WireError) else ""
    return SparkSourceError(
        UNREACHABLE if is_away else "DLOG_LOOKUP_FAILED",
        f"Asked {settings.bootstrap} for {what}: {name}{error}.",
        "Check kafka.bootstrap.servers, the network, the nodes, and whether both sides"
        " speak TLS, or none (dlog.tls)."
        if is_away
        else "See what the cluster says of itself.",
    )


class Lookup:
    """Questions to one cluster. Owner: one thread. Life: a `with` block, or until `close`."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._rng = random.Random()
        self._client = BlockingClient(
            parse_bootstrap(settings.bootstrap),
            rng=self._rng,
            options=settings.connection(),
            policy=RetryPolicy(deadline_s=settings.lookup_deadline_s),
        )

    def close(self) -> None:
        """Close all connections. Idempotent."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self, what: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            return self._client.run(work)
        except SparkSourceError:
            raise
        except DlogError as error:
            raise lookup_failed(self._settings, what, error) from error

    def reach(self) -> None:
        """Ask for nothing but an answer; raise SparkSourceError where no node gives one."""
        self._run("its nodes", lambda: self._refresh(()))

    # Which partitions

    def assigned(
        self,
        subscription: Subscription,
        expected: Iterable[TopicPartition] = (),
        tolerated: Container[TopicPartition | str] = (),
    ) -> Assigned:
        """Ask which partitions there are now.

        A node may not have heard yet of a topic or partition that was made just now, or of nothing
        for a while. So others are asked, and all again, for a while, when something is missing that
        the subscription names or that is `expected`, unless that is known and `tolerated`.
        """
        partitions = list(expected)
        return self._run("topics", lambda: self._assigned(subscription, partitions, tolerated))

    async def _assigned(
        self,
        subscription: Subscription,
        expected: list[TopicPartition],
        tolerated: Container[TopicPartition | str],
    ) -> Assigned:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + UNKNOWN_TOPIC_PATIENCE_S
        view = await self._refresh(subscription.topics)
        while True:
            found = _assigned_of(subscription, expected, view)
            unknown = [each for each in found.missing if each not in tolerated]
            if not unknown or loop.time() >= deadline_s:
                return found
            await asyncio.sleep(_RECHECK_S)
            view = await self._refresh(subscription.topics, elsewhere=True)

    async def _refresh(
        self, topics: tuple[str, ...] | None, *, elsewhere: bool = False
    ) -> ClusterView:
        cluster = self._client.cluster
        attempts = Attempts(cluster, asyncio.get_running_loop(), self._rng)
        while True:
            try:
                return await attempts.within(cluster.refresh(topics, elsewhere=elsewhere))
            except (WireError, TransportError) as error:
                await attempts.wait_after(error)

    # Where they begin and end

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset of each; those of partitions that are gone are left out."""
        wanted = list(partitions)
        return self._run("first offsets", lambda: self._find_existing(wanted, EARLIEST))

    def latest(
        self,
        partitions: Iterable[TopicPartition],
        known: PartitionOffsets | None = None,
        *,
        attempt_count: int = 1,
        retry_interval_s: float = 0.0,
    ) -> dict[TopicPartition, int]:
        """Return the next offset of each; those of partitions that are gone are left out.

        A leader that has just begun may not know yet how far its log is committed: where an end is
        before what is `known`, it is asked for again before it is believed, `attempt_count` times
        in all, the first one among them.
        """
        wanted = list(partitions)
        return self._run(
            "next offsets",
            lambda: self._latest(wanted, known or {}, attempt_count, retry_interval_s),
        )

    async def _latest(
        self,
        wanted: list[TopicPartition],
        known: PartitionOffsets,
        attempt_count: int,
        retry_interval_s: float,
    ) -> dict[TopicPartition, int]:
        latest = await self._find_existing(wanted, LATEST)
        for _ in range(1, attempt_count):
            behind = [key for key, offset in latest.items() if offset < known.get(key, 0)]
            if not behind:
                break
            await asyncio.sleep(retry_interval_s)
            latest.update(await self._find_existing(behind, LATEST))
        return latest

    def log_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log end offset of each: what is appended, committed or not.

        Those of partitions that are gone are left out.
        """
        wanted = list(partitions)
        return self._run(
            "log end offsets", lambda: self._find_existing(wanted, LATEST, replica_id=OBSERVER)
        )

    async def _find_existing(
        self,
        partitions: Iterable[TopicPartition],
        timestamp: int,
        *,
        replica_id: int = CONSUMER,
    ) -> dict[TopicPartition, int]:
        wanted = dict.fromkeys(partitions, timestamp)
        if not wanted:
            return {}
        try:
            found = await self._find(wanted, replica_id)
        except UnknownTopicOrPartitionError:
            topics = tuple(dict.fromkeys(key.topic for key in wanted))
            # A node that lags says so, too: what another one knows is there, and no loss.
            views = [await self._refresh(topics, elsewhere=each) for each in (False, True)]
            known = [topic for view in views for topic in view.topics.values()]
            existing = frozenset(partitions_of(known))
            wanted = {key: wanted[key] for key in wanted if key in existing}
            found = await self._find(wanted, replica_id)
        return {key: each.offset for key, each in found.items()}

    async def _find(
        self, wanted: Mapping[TopicPartition, int], replica_id: int = CONSUMER
    ) -> dict[TopicPartition, FoundOffset]:
        finder = OffsetLookup(
            self._client.cluster,
            loop=asyncio.get_running_loop(),
            rng=self._rng,
            isolation=self._settings.isolation,
            replica_id=replica_id,
        )
        return await finder.find(wanted)

    def at_timestamps(self, timestamps_ms: PartitionOffsets) -> dict[TopicPartition, int | None]:
        """Return the first offset that is not older than each time; None: no record is so young."""
        found = self._run("offsets by time", lambda: self._find(timestamps_ms))
        return {key: None if each.offset < 0 else each.offset for key, each in found.items()}

    # How large they are

    def sizes(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the bytes that each partition has at its leader; unknown ones are left out.

        So are those of a node that does not answer soon: nobody should wait for a size.
        """
        wanted = frozenset(partitions)
        return self._run("sizes", lambda: self._sizes(wanted))

    async def _sizes(self, wanted: frozenset[TopicPartition]) -> dict[TopicPartition, int]:
        cluster = self._client.cluster
        leaders: dict[TopicPartition, int] = {}
        for key in sorted(wanted):
            try:
                leaders[key] = cluster.leader_of(key.topic, key.partition).node_id
            except WireError:
                continue
        sizes: dict[TopicPartition, int] = {}
        for node_id in sorted(dict.fromkeys(leaders.values())):
            led = [key for key, leader in leaders.items() if leader == node_id]
            for directory in await self._directories(node_id, led):
                for topic, partition, size in directory.partitions:
                    key = TopicPartition(topic, partition)  # type: ignore[arg-type]
                    if leaders.get(key) == node_id:
                        sizes[key] = size
        return sizes

    async def _directories(self, node_id: int, led: list[TopicPartition]) -> list[LogDirView]:
        try:
            async with asyncio.timeout(SIZES_PATIENCE_S):
                return await self._client.admin.describe_log_dirs(node_id, led)
        except (DlogError, TimeoutError) as error:
            _log.warning("Could not read log sizes node=%d error=%r", node_id, error)
            return []


def _assigned_of(
    subscription: Subscription, expected: Iterable[TopicPartition], view: ClusterView
) -> Assigned:
    """Return what an answer about the topics means; raises the error of a topic."""
    topics = {name: topic for name, topic in view.topics.items() if _exists(topic)}
    partitions = subscription.choose(topics)
    existing = frozenset(partitions)
    named = subscription.partitions if isinstance(subscription, Assign) else ()
    missing: list[TopicPartition | str] = [
        name for name in subscription.topics or () if name not in topics
    ]
    missing += [
        key
        for key in dict.fromkeys([*named, *expected])
        if key not in existing and key.topic not in missing
    ]
    return Assigned(
        partitions=tuple(partitions),
        topic_ids={key.topic: topics[key.topic].topic_id for key in partitions},
        missing=tuple(missing),
    )


def _exists(topic: TopicView) -> bool:
    if topic.partitions:
        return True
    error = error_for(topic.error_code, f"topic {topic.name}")
    if isinstance(error, UnknownTopicOrPartitionError) or error.retriable:
        return False
    raise error
