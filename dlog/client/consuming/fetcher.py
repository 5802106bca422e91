"""Fetchers of a consumer: one `NodeFetcher` for each node that leads its partitions.

A partition is either with the fetcher of its leader (or of the follower that this one has named,
KIP-392) or homeless: then its leader is looked up,
again and again with growing waits, until it is found. Nothing here ends by itself; errors that do
not pass are put at the partition, where the consumer finds them.
"""

import asyncio
import random
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

from dlog.client.cluster.cluster import Cluster
from dlog.client.cluster.wakeup import Signal
from dlog.client.consuming.consumer_counters import ConsumerCounters
from dlog.client.consuming.fetch_plan import FetchLimits
from dlog.client.consuming.fetcher_shared import FetcherShared, report_gap
from dlog.client.consuming.node_fetcher import NodeFetcher
from dlog.client.consuming.partition_cursor import UNKNOWN, PartitionCursor
from dlog.client.gaps import GapReason
from dlog.client.views import TopicView
from dlog.errors import DlogError, LeaderNotAvailableError, TransportError, WireError
from dlog.types import ZERO_TOPIC_ID, TopicPartition


class Fetcher:
    """Reads ahead for one consumer. Owner: the loop's thread. Life: `start` to `close`."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        loop: asyncio.AbstractEventLoop,
        rng: random.Random,
        limits: FetchLimits,
        counters: ConsumerCounters,
    ) -> None:
        self.cursors: dict[TopicPartition, PartitionCursor] = {}
        # Cursors with something to take, in the order of their turn; and those in trouble.
        self.ready: dict[TopicPartition, PartitionCursor] = {}
        self.troubled: dict[TopicPartition, PartitionCursor] = {}
        self.arrived = Signal(loop)
        self.crash: BaseException | None = None
        self._loop = loop
        self._cluster = cluster
        self._nodes: dict[int, NodeFetcher] = {}
        self._homeless: dict[TopicPartition, PartitionCursor] = {}
        self._lost = Signal(loop)
        self._tasks: list[asyncio.Task[None]] = []
        self._around = FetcherShared(
            cluster=cluster,
            loop=loop,
            rng=rng,
            limits=limits,
            counters=counters,
            node_bytes_max=limits.prefetch_bytes_max,
            sparse_topics={},
            on_arrival=self._on_arrival,
            on_lost=self._on_lost,
            on_follower=self._on_follower,
        )

    def start(self) -> None:
        """Begin to look for leaders and to read ahead."""
        self.spawn(self._find_homes(), "dlog-consumer-leaders")

    async def close(self) -> None:
        """Stop reading ahead and wait until that has ended. Idempotent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    def add(self, cursors: Iterable[PartitionCursor]) -> None:
        """Read ahead for these, too."""
        for cursor in cursors:
            self.cursors[cursor.topic_partition] = cursor
            self._on_lost(cursor)

    def remove(self, keys: Iterable[TopicPartition]) -> None:
        """Read ahead no more for these, and forget what is at hand of them."""
        for key in keys:
            cursor = self.cursors.pop(key, None)
            if cursor is None:
                continue
            for table in (self.ready, self.troubled, self._homeless):
                table.pop(key, None)
            for node in self._nodes.values():
                node.remove(cursor)
            self._drop(cursor)
            cursor.lose_leader()
        self._share_room()
        self.on_taken()

    def seek(self, cursor: PartitionCursor, offset: int, epoch: int = UNKNOWN) -> None:
        """Let a cursor go on from `offset`, which was told with a leader epoch, if it was."""
        self._drop(cursor)
        cursor.seek(offset, epoch)
        self.ready.pop(cursor.topic_partition, None)
        self.troubled.pop(cursor.topic_partition, None)
        self.wake(cursor)

    def wake(self, cursor: PartitionCursor) -> None:
        """Look at a cursor again: it has room, may go on, or is in another place."""
        key = cursor.topic_partition
        if cursor.has_data and not cursor.is_paused:
            self.ready[key] = cursor
        if cursor.leader is None:
            self._lost.set()
        else:
            self._nodes[cursor.source_id].signal.set()

    def pause(self, cursor: PartitionCursor) -> None:
        """Hand out and fetch no more of a partition for now; what is at hand may stay so."""
        cursor.is_paused = True
        self.ready.pop(cursor.topic_partition, None)
        self.on_taken()  # what is at hand of it makes room for others

    def on_taken(self) -> None:
        """Fetch more, now that there is room."""
        for node in self._nodes.values():
            node.signal.set()

    def expect_holes(self, topic: str) -> None:
        """Take offsets that are missing from a topic for granted, as if it were compacted."""
        self._around.sparse_topics[topic] = True

    def _drop(self, cursor: PartitionCursor) -> None:
        self._around.counters.bytes_dropped += cursor.buffered_bytes
        cursor.rewind()

    # Called by the fetchers of the nodes

    def _on_arrival(self, cursor: PartitionCursor) -> None:
        key = cursor.topic_partition
        if cursor.has_data and not cursor.is_paused:
            self.ready.setdefault(key, cursor)
        if cursor.is_in_trouble:
            self.troubled[key] = cursor
        self.arrived.set()

    def _on_lost(self, cursor: PartitionCursor) -> None:
        if self.cursors.get(cursor.topic_partition) is cursor:
            self._homeless[cursor.topic_partition] = cursor
            self._lost.set()

    # Leaders

    async def _find_homes(self) -> None:
        """Find the leader of each homeless cursor, until cancelled."""
        while True:
            now_s = self._loop.time()
            # One in trouble is looked at again when the reader has dealt with it.
            able = [cursor for cursor in self._homeless.values() if not cursor.is_in_trouble]
            due = [cursor for cursor in able if cursor.retry_at_s <= now_s]
            if due:
                await self._find_leaders(due)
                continue
            retry_at_s = min((cursor.retry_at_s for cursor in able), default=None)
            await self._lost.wait(None if retry_at_s is None else retry_at_s - now_s)

    async def _find_leaders(self, cursors: Sequence[PartitionCursor]) -> None:
        topics = list(dict.fromkeys(cursor.topic_partition.topic for cursor in cursors))
        found = dict(zip(topics, await asyncio.gather(*map(self._look_up, topics)), strict=True))
        wait_s = self._around.cluster.policy.backoff_s(
            min(cursor.attempt for cursor in cursors), self._around.rng
        )
        for cursor in cursors:
            if self._homeless.get(cursor.topic_partition) is not cursor:
                continue
            view = found[cursor.topic_partition.topic]
            error = view if isinstance(view, DlogError) else self._settle(cursor, view)
            if error is not None and cursor.fail(
                error, self._loop.time(), wait_s, self._cluster.policy.deadline_s
            ):
                self._on_arrival(cursor)
        self._share_room()

    async def _look_up(self, topic: str) -> TopicView | DlogError:
        try:
            return await self._cluster.metadata(topic)
        except (TransportError, WireError) as error:
            return error

    def _settle(self, cursor: PartitionCursor, view: TopicView) -> DlogError | None:
        """Give a cursor to the fetcher of its leader; return why that is not possible."""
        key = cursor.topic_partition
        if cursor.topic_id not in (ZERO_TOPIC_ID, view.topic_id):
            cursor.topic_id = view.topic_id
            report_gap(self._around, cursor, GapReason.RECREATED, cursor.fetch_offset, 0)
            return None
        cursor.topic_id = view.topic_id
        try:
            cursor.leader = self._cluster.leader_of(key.topic, key.partition)
        except WireError as error:
            self._cluster.forget_leader(key.topic)
            return error if error.retriable else LeaderNotAvailableError(str(error))
        del self._homeless[key]
        self._place(cursor)
        return None

    def _on_follower(self, cursor: PartitionCursor) -> None:
        """Read a partition from the follower that its leader has named."""
        if self.cursors.get(cursor.topic_partition) is cursor:
            self._place(cursor)
            self._share_room()

    def _place(self, cursor: PartitionCursor) -> None:
        """Give a cursor to the fetcher of its node."""
        node_id = cursor.source_id
        node = self._nodes.get(node_id)
        if node is None:
            node = self._nodes[node_id] = NodeFetcher(node_id, self._around)
            self.spawn(node.run(), f"dlog-consumer-fetch-{node_id}")
        node.add(cursor)

    def _share_room(self) -> None:
        """Give each node with partitions its part of the bytes that may be at hand."""
        node_count = sum(1 for node in self._nodes.values() if node.cursors)
        bytes_max = self._around.limits.prefetch_bytes_max // max(1, node_count)
        self._around.node_bytes_max = max(1, bytes_max)

    # Tasks

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        """Run `work` until `close`; nobody waits for it, and its bugs come out of `poll`."""
        task = self._loop.create_task(work, name=name)
        task.add_done_callback(self._on_end)
        self._tasks.append(task)
        return task

    def _on_end(self, task: "asyncio.Task[None]") -> None:
        """A task ended: none does unless it is cancelled, or has a bug that a reader must see."""
        if not task.cancelled():
            self.crash = task.exception()
            self.arrived.set()
