"""Tasks of a sender: finding leaders, connections and a producer id.

Every errand runs once at a time, waits after a failure as the policy says, and wakes the sender
when it is done. Called by `dlog.client.producing.sender`.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from dlog.client.cluster.cluster import Cluster
from dlog.client.cluster.log_lines import error_name, log_event
from dlog.client.cluster.node import NodeClient
from dlog.client.producing.partition_queue import PartitionQueue
from dlog.client.producing.producer_id import init_producer_id
from dlog.client.producing.producer_identity import ProducerIdentity
from dlog.client.retry import is_retriable
from dlog.client.views import TopicView
from dlog.errors import (
    DlogError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
    WireError,
)
from dlog.wire.apis import ApiKey
from dlog.wire.produce import TOPIC_ID_VERSION

PRODUCE_VERSIONS = (3, TOPIC_ID_VERSION)
"""12 is for transactions (KIP-890), from 13 on topics are named by id."""

NEW_TOPIC_PATIENCE_S = 5.0
"""A topic that was made a moment ago may not be known to every node yet."""

AcksOf = Callable[[str], Coroutine[Any, Any, int]]
"""Finds out which acks a topic's batches are sent with, as on the wire."""


_Work = Callable[[], Coroutine[Any, Any, DlogError | None]]
"""Returns why it has to be done again; None: it is done."""

NeedsIt = Callable[[PartitionQueue], bool]
"""Whether the batches of a partition cannot be sent without what an errand finds out."""


class Link:
    """The way to one node: its connection, and how many requests of ours are on it."""

    __slots__ = ("inflight_count", "node", "node_id", "not_before_s", "version")

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.node: NodeClient | None = None
        self.version = -1
        self.inflight_count = 0
        self.not_before_s = 0.0  # when it may be used again, after a throttle


class _Errand:
    """One thing to find out, again and again."""

    __slots__ = ("error", "failures", "not_before_s", "task")

    def __init__(self) -> None:
        self.error: DlogError | None = None  # of the last time
        self.failures = 0
        self.not_before_s = 0.0
        self.task: asyncio.Task[None] | None = None


class _TopicSearch:
    """The search for one topic, on which all who need it wait."""

    __slots__ = ("ended", "error")

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.error: DlogError | None = None


class SenderTasks:
    """The look-ups of one producer. Owner: the loop's thread. Life: until `close`."""

    def __init__(
        self,
        cluster: Cluster,
        identity: ProducerIdentity | None,
        *,
        loop: asyncio.AbstractEventLoop,
        rng: random.Random,
        wake: Callable[[], None],
        acks_of: AcksOf,
        on_topic: Callable[[TopicView, int], None],
        on_refused: Callable[[str, NeedsIt], None],
    ) -> None:
        self._cluster = cluster
        self._identity = identity
        self._loop = loop
        self._rng = rng
        self._wake = wake
        self._acks_of = acks_of
        self._on_topic = on_topic
        self._on_refused = on_refused
        self._links: dict[int, Link] = {}
        self._errands: dict[str, _Errand] = {}
        self._learned_s: dict[str, float] = {}
        self._searches: dict[str, _TopicSearch] = {}
        self._is_closed = False

    async def close(self) -> None:
        """End all errands."""
        self._is_closed = True
        tasks = [each.task for each in self._errands.values() if each.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def link(self, node_id: int) -> Link:
        """Return the way to a node."""
        link = self._links.get(node_id)
        if link is None:
            link = self._links[node_id] = Link(node_id)
        return link

    def open_node(self, link: Link, topic: str, partition: int) -> NodeClient | None:
        """Return the open connection; None: it is being opened, or must not be used now.

        The partition is one of those that need it.
        """
        node = link.node
        if node is not None and node.is_open:
            return node if link.not_before_s <= self._loop.time() else None
        link.node = None
        self._run(
            f"node {link.node_id}",
            lambda: self._open(link, topic, partition),
            lambda queue: self._leads(link.node_id, queue),
        )
        return None

    def throttle(self, link: Link, throttle_ms: int) -> None:
        """Leave a node alone for as long as it has asked for (KIP-219)."""
        if throttle_ms > 0:
            link.not_before_s = self._loop.time() + throttle_ms / 1000
            self._loop.call_at(link.not_before_s, self._wake)

    def want_leaders(self, topic: str) -> None:
        """Find out who leads the partitions of a topic."""
        self._run(
            f"topic {topic}", lambda: self._look_up(topic), lambda queue: queue.topic == topic
        )

    def refresh_old(self, topic: str) -> None:
        """Look a topic up that was not for long: it may have more partitions now."""
        age_s = self._loop.time() - self._learned_s.get(topic, 0.0)
        if age_s >= self._cluster.policy.metadata_age_s_max:
            self.want_leaders(topic)

    def want_identity(self) -> None:
        """Get a producer id."""
        self._run("producer id", self._identify, _is_idempotent)

    def trouble(self, topic: str) -> DlogError | None:
        """Return why records of a topic could not be sent, where an errand for them has failed."""
        nodes = [name for name in self._errands if name.startswith("node ")]
        for name in (f"topic {topic}", "producer id", *nodes):
            errand = self._errands.get(name)
            if errand is not None and errand.error is not None:
                return errand.error
        return None

    async def find_topic(self, topic: str, deadline_s: float, *, refresh: bool = False) -> None:
        """Learn a topic for the first time or, to `refresh`, again; or raise why it is of no use.

        Who asks while another one searches waits for that one, and all go on in the order in which
        they asked: searches with pauses of their own would shuffle what is sent first.
        """
        while (search := self._searches.get(topic)) is not None:
            await search.ended.wait()
            error = search.error
            if error is None:
                return
            is_for_all = isinstance(error, UnknownTopicOrPartitionError) or not is_retriable(error)
            if is_for_all or self._loop.time() >= deadline_s:
                raise error
        search = self._searches[topic] = _TopicSearch()
        # Who finds nothing although there is no error (the search was cancelled) searches himself.
        search.error = RequestTimedOutError(f"no answer about topic {topic} in time")
        try:
            await self._search(topic, deadline_s, refresh)
            search.error = None
        except DlogError as error:
            search.error = error
            raise
        finally:
            del self._searches[topic]
            search.ended.set()

    async def _search(self, topic: str, deadline_s: float, refresh: bool) -> None:
        unknown_s = min(deadline_s, self._loop.time() + NEW_TOPIC_PATIENCE_S)
        attempt = 0
        while True:
            try:
                async with asyncio.timeout_at(deadline_s):
                    await self._learn(await self._cluster.metadata(topic, refresh=refresh))
                return
            except TimeoutError as error:
                raise RequestTimedOutError(f"no answer about topic {topic} in time") from error
            except DlogError as error:
                unknown = isinstance(error, UnknownTopicOrPartitionError)
                wait_s = self._cluster.policy.backoff_s(attempt, self._rng)
                end_s = unknown_s if unknown else deadline_s
                if not is_retriable(error) or self._loop.time() + wait_s >= end_s:
                    raise
            attempt += 1
            await asyncio.sleep(wait_s)

    async def _learn(self, view: TopicView) -> None:
        while True:
            acks = await self._acks_of(view.name)
            known = self._cluster.known_topic(view.name)
            if known is None or known.topic_id == view.topic_id:
                break
            view = known  # made anew meanwhile: another task may have told of that life already
        self._learned_s[view.name] = self._loop.time()
        self._on_topic(view, acks)

    # Each errand

    def _run(self, name: str, work: _Work, needs_it: NeedsIt) -> None:
        """Start an errand, unless it is under way or failed a moment ago."""
        errand = self._errands.get(name)
        if errand is None:
            errand = self._errands[name] = _Errand()
        busy = errand.task is not None and not errand.task.done()
        if not busy and not self._is_closed and self._loop.time() >= errand.not_before_s:
            errand.task = self._loop.create_task(self._do(errand, work))
            errand.task.add_done_callback(partial(self._on_end, name, errand, needs_it))

    async def _do(self, errand: _Errand, work: _Work) -> None:
        errand.error = await work()
        if errand.error is None:
            errand.failures = 0
        else:
            self._put_off(errand)
        # After this task is done, or the errand would still count as under way.
        self._loop.call_soon(self._wake)

    def _put_off(self, errand: _Errand) -> None:
        wait_s = self._cluster.policy.backoff_s(errand.failures, self._rng)
        errand.failures += 1
        errand.not_before_s = self._loop.time() + wait_s
        self._loop.call_at(errand.not_before_s, self._wake)

    def _on_end(
        self, name: str, errand: _Errand, needs_it: NeedsIt, task: "asyncio.Task[None]"
    ) -> None:
        """End what waits for an errand that a bug has ended, here or in a hook of the program's."""
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        log_event(
            logging.ERROR,
            "Background task failed",
            errand=name,
            error=error_name(error),
            reason=error,
        )
        self._put_off(errand)
        self._on_refused(f"{name}: {error_name(error)}: {error}", needs_it)

    def _leads(self, node_id: int, queue: PartitionQueue) -> bool:
        try:
            return self._cluster.leader_of(queue.topic, queue.partition).node_id == node_id
        except WireError:
            return False  # it waits for a look-up

    async def _open(self, link: Link, topic: str, partition: int) -> DlogError | None:
        try:
            node = await self._cluster.connection(link.node_id)
            link.version = node.highest_version(ApiKey.PRODUCE, *PRODUCE_VERSIONS)
        except DlogError as error:
            self._cluster.on_error(topic, partition, link.node_id, error)
            return error
        link.node = node
        return None

    async def _look_up(self, topic: str) -> DlogError | None:
        try:
            view = await self._cluster.metadata(topic)
            await self._learn(view)
            for partition in view.partitions:
                # The answer may be an older one than what is known, and settle nothing.
                self._cluster.leader_of(topic, partition.partition)
        except DlogError as error:  # logged and counted by the cluster
            return error
        return None

    async def _identify(self) -> DlogError | None:
        identity = self._identity
        assert identity is not None
        try:
            identity.renew(*await self._cluster.run(self._cluster.any_node, init_producer_id))
        except DlogError as error:
            if not is_retriable(error):
                self._on_refused(f"no producer id: {error}", _is_idempotent)
            return error
        return None


def _is_idempotent(queue: PartitionQueue) -> bool:
    return queue.identity is not None
