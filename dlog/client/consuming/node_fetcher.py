"""Fetcher of one node: one request at a time, for all partitions that the node leads.

The next request leaves as soon as the last answer has been looked at, as long as there is room;
it names every partition that has room. A partition is with its leader, or with the follower that
this one has named. `dlog.client.consuming.fetch_plan` decides, this carries out, and
`dlog.client.consuming.fetcher` says who leads what.
"""

import logging
from collections.abc import Iterable

from dlog.client.cluster.cleanup_policy import is_compacted
from dlog.client.cluster.log_lines import error_name, log_event
from dlog.client.cluster.node import NodeClient
from dlog.client.cluster.offset_lookup import FoundOffset, ask_offsets
from dlog.client.cluster.wakeup import Signal
from dlog.client.consuming.fetch_exchange import Answer, exchange
from dlog.client.consuming.fetch_plan import Asked, FetchPlan, plan_fetch
from dlog.client.consuming.fetched_batches import Hole, scan
from dlog.client.consuming.fetcher_shared import FetcherShared, report_gap
from dlog.client.consuming.partition_cursor import UNKNOWN, PartitionCursor
from dlog.client.gaps import GapReason
from dlog.client.retry import is_retriable
from dlog.errors import (
    BrokerNotAvailableError,
    CorruptMessageError,
    DlogError,
    FencedLeaderEpochError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    ProtocolError,
    TransportError,
    WireError,
    error_for,
)
from dlog.offset_specs import EARLIEST, LATEST, Isolation
from dlog.types import TopicPartition
from dlog.wire.fetch import FetchedPartition
from dlog.wire.leaders import NodeEndpoint

CORRUPT_TRIES_MAX = 3
"""Damage on the way is mended by fetching again; what is damaged that often is so on the disk."""

FOLLOWER_AVOIDED_S = 30.0
"""How long a leader is asked itself after a follower that it named has failed: it may take as long
to hear of that, and would name the same one again."""

_FOREVER_S = float("inf")


class NodeFetcher:
    """The fetches from one node. Owner: the loop's thread. Life: `run` until it is cancelled."""

    def __init__(self, node_id: int, around: FetcherShared) -> None:
        self.node_id = node_id
        self.cursors: dict[TopicPartition, PartitionCursor] = {}
        self.signal = Signal(around.loop)
        self._around = around

    def add(self, cursor: PartitionCursor) -> None:
        """Fetch for a partition that this node leads, or is to be read from."""
        self.cursors[cursor.topic_partition] = cursor
        self.signal.set()

    def remove(self, cursor: PartitionCursor) -> None:
        """Fetch no more for a partition."""
        self.cursors.pop(cursor.topic_partition, None)

    async def run(self) -> None:
        """Fetch until cancelled."""
        around = self._around
        while True:
            now_s = around.loop.time()
            if around.limits.rack:
                self._leave_old(now_s)
            plan = plan_fetch(
                list(self.cursors.values()),
                now_s=now_s,
                node_bytes_max=around.node_bytes_max,
                limits=around.limits,
            )
            around.counters.bytes_dropped += plan.released_bytes
            if plan.asked:
                await self._fetch(plan)
            else:
                await self.signal.wait(None if plan.due_s is None else plan.due_s - now_s)

    # One request

    async def _fetch(self, plan: FetchPlan) -> None:
        try:
            node = await self._around.cluster.connection(self.node_id)
            answer = await exchange(node, plan, self._around.limits)
        except (TransportError, WireError, ProtocolError) as error:
            self._around.counters.fetch_failures += 1
            self._on_node_error(plan.asked, error)
            return
        counters = self._around.counters
        counters.fetches += 1
        counters.bytes_fetched += answer.data_bytes
        counters.empty_fetches += not answer.data_bytes
        strayed: list[PartitionCursor] = []
        for each, fetched, data in answer.rows:
            # What was sought, lost or given up meanwhile has another generation.
            if each.generation == each.cursor.generation:
                strayed += await self._on_partition(each.cursor, fetched, data, answer)
            else:
                counters.bytes_dropped += len(data)
            if each.generation == each.cursor.generation:
                self._follow(each.cursor, fetched)
        if strayed:
            await self._find_range(node, strayed)

    def _on_node_error(self, asked: Iterable[Asked], error: DlogError) -> None:
        """The request failed as a whole: find all leaders again, after one and the same wait."""
        around = self._around
        cursors = [each.cursor for each in asked if each.generation == each.cursor.generation]
        if not cursors:
            return
        first = cursors[0].topic_partition
        around.cluster.on_error(first.topic, first.partition, self.node_id, error)
        attempt = min(cursor.attempt for cursor in cursors)
        wait_s = around.cluster.policy.backoff_s(attempt, around.rng)
        for cursor in cursors:
            self._avoid_follower(cursor)
            self._fail(cursor, error, wait_s, self._patience_s(error))
            self._lose(cursor)

    # One partition of an answer

    async def _on_partition(
        self,
        cursor: PartitionCursor,
        fetched: FetchedPartition,
        data: memoryview,
        answer: Answer,
    ) -> list[PartitionCursor]:
        """Take in the answer about one partition; return it when its offset is out of range."""
        if fetched.error_code:
            error = error_for(fetched.error_code, str(cursor.topic_partition))
            self._around.counters.partition_errors += 1
            if isinstance(error, OffsetOutOfRangeError):
                if not cursor.is_at_follower:
                    return [cursor]
                error = _lags(cursor)
            self._on_error(cursor, fetched, error, answer.endpoints)
            return []
        if fetched.diverging_epoch is not None:
            if cursor.is_at_follower:
                self._on_error(cursor, fetched, _lags(cursor), answer.endpoints)
                return []
            self._cut_back(cursor, max(0, fetched.diverging_epoch[1]))
            return []
        cursor.high_watermark = fetched.high_watermark
        cursor.last_stable_offset = fetched.last_stable_offset
        cursor.log_start_offset = fetched.log_start_offset
        if not data:
            # Who only names another node says nothing of what is left (KIP-392).
            if fetched.preferred_read_replica in (UNKNOWN, self.node_id):
                self._on_nothing(cursor, fetched)
            return []
        if 2 * len(data) < answer.frame_bytes:
            # A view would keep all of the answer alive, for as long as this part is not taken.
            data = memoryview(bytes(data))
        try:
            await self._take_in(cursor, data, fetched)
        except CorruptMessageError as error:
            self._on_corrupt(cursor, error)
        return []

    def _on_nothing(self, cursor: PartitionCursor, fetched: FetchedPartition) -> None:
        is_committed_only = self._around.limits.isolation is Isolation.READ_COMMITTED
        cursor.add_nothing(
            fetched.last_stable_offset if is_committed_only else fetched.high_watermark
        )
        if cursor.is_at_end:
            self._around.on_arrival(cursor)

    async def _take_in(
        self, cursor: PartitionCursor, data: memoryview, fetched: FetchedPartition
    ) -> None:
        """Check the bytes and put them at hand."""
        key = cursor.topic_partition
        is_committed_only = self._around.limits.isolation is Isolation.READ_COMMITTED
        aborted = fetched.aborted or () if is_committed_only else ()
        sparse = self._around.sparse_topics.get(key.topic)
        chunk, hole = scan(data, cursor.fetch_offset, aborted=aborted, is_sparse=bool(sparse))
        if hole is not None:
            generation = cursor.generation
            is_sparse = await self._is_sparse(key.topic)
            if cursor.generation != generation:
                return
            if is_sparse:
                chunk, hole = scan(data, cursor.fetch_offset, aborted=aborted, is_sparse=True)
        if hole is not None:
            self._report_hole(cursor, hole)
            return
        cursor.add(chunk)
        # The next turn is that of partitions that brought nothing.
        if self.cursors.pop(key, None) is not None:
            self.cursors[key] = cursor
        self._around.on_arrival(cursor)

    def _on_error(
        self,
        cursor: PartitionCursor,
        fetched: FetchedPartition,
        error: WireError,
        endpoints: Iterable[NodeEndpoint],
    ) -> None:
        around, key = self._around, cursor.topic_partition
        known = around.cluster.known_topic(key.topic)
        # Of a life that is over: its epochs say nothing of the present one.
        is_past = known is None or known.topic_id != cursor.topic_id
        around.cluster.on_error(
            key.topic,
            key.partition,
            self.node_id,
            error,
            leader=None if is_past else fetched.current_leader,
            endpoints=endpoints,
        )
        if not isinstance(error, FencedLeaderEpochError):
            self._avoid_follower(cursor)
        wait_s = around.cluster.policy.backoff_s(cursor.attempt, around.rng)
        self._fail(cursor, error, wait_s, self._patience_s(error))
        self._lose(cursor)

    def _on_corrupt(self, cursor: PartitionCursor, error: CorruptMessageError) -> None:
        """Fetch damaged batches again, a few times."""
        around = self._around
        around.counters.corrupt_batches += 1
        cursor.damage_count += 1
        log_event(
            logging.WARNING,
            "Received a corrupt batch",
            partition=cursor.topic_partition,
            node=self.node_id,
            attempt=cursor.damage_count,
            reason=error,
        )
        wait_s = around.cluster.policy.backoff_s(cursor.attempt, around.rng)
        patience_s = _FOREVER_S if cursor.damage_count < CORRUPT_TRIES_MAX else 0.0
        named = CorruptMessageError(f"{cursor.topic_partition}: {error}")
        self._fail(cursor, named, wait_s, patience_s)

    def _patience_s(self, error: DlogError) -> float:
        """Return how long an error may last before the reader hears of it."""
        passes = is_retriable(error) or isinstance(error, ProtocolError | BrokerNotAvailableError)
        return self._around.cluster.policy.deadline_s if passes else 0.0

    def _fail(
        self, cursor: PartitionCursor, error: DlogError, wait_s: float, patience_s: float
    ) -> None:
        if cursor.fail(error, self._around.loop.time(), wait_s, patience_s):
            log_event(
                logging.WARNING,
                "Gave up a partition",
                partition=cursor.topic_partition,
                offset=cursor.fetch_offset,
                attempts=cursor.attempt,
                error=error_name(error),
                reason=error,
            )
            self._around.on_arrival(cursor)

    def _lose(self, cursor: PartitionCursor) -> None:
        self.remove(cursor)
        cursor.lose_leader()
        self._around.on_lost(cursor)

    # Followers (KIP-392)

    def _follow(self, cursor: PartitionCursor, fetched: FetchedPartition) -> None:
        """Fetch from the node that the leader has named, as long as metadata is believed."""
        around, node_id = self._around, fetched.preferred_read_replica
        if node_id in (UNKNOWN, self.node_id) or fetched.error_code or cursor.leader is None:
            return
        around.counters.follower_moves += 1
        self.remove(cursor)
        cursor.replica_id = node_id
        cursor.replica_until_s = around.loop.time() + around.cluster.policy.metadata_age_s_max
        log_event(
            logging.INFO,
            "Reading from a follower",
            partition=cursor.topic_partition,
            follower=node_id,
            leader=self.node_id,
        )
        around.on_follower(cursor)

    def _leave_old(self, now_s: float) -> None:
        """Ask the leaders again who named this follower long ago."""
        for cursor in list(self.cursors.values()):
            if cursor.is_at_follower and cursor.replica_until_s <= now_s:
                self._lose(cursor)

    def _avoid_follower(self, cursor: PartitionCursor) -> None:
        """After an error at a follower: what the leader itself says counts."""
        if cursor.is_at_follower:
            cursor.leader_only_until_s = self._around.loop.time() + FOLLOWER_AVOIDED_S

    # Gaps

    async def _find_range(self, node: NodeClient, cursors: list[PartitionCursor]) -> None:
        """Find out where the logs begin and end whose reader asked for what they do not have."""
        asked = [Asked(cursor, cursor.generation, cursor.fetch_offset) for cursor in cursors]
        keys = [cursor.topic_partition for cursor in cursors]
        try:
            # Not the last stable offset: a reader of everything may be beyond it.
            isolation = Isolation.READ_UNCOMMITTED
            starts = await ask_offsets(node, dict.fromkeys(keys, EARLIEST), isolation)
            ends = await ask_offsets(node, dict.fromkeys(keys, LATEST), isolation)
        except (TransportError, WireError, ProtocolError) as error:
            self._on_node_error(asked, error)
            return
        nothing = FetchedPartition(-1, 0, -1, -1, -1, 0)
        for each, key in zip(asked, keys, strict=True):
            if each.generation != each.cursor.generation:
                continue
            for found in (starts[key], ends[key]):
                if isinstance(found, WireError):
                    self._on_error(each.cursor, nothing, found, ())
                    break
            else:
                self._judge_range(each.cursor, starts[key], ends[key])

    def _judge_range(
        self, cursor: PartitionCursor, start: FoundOffset | WireError, end: FoundOffset | WireError
    ) -> None:
        if not isinstance(start, FoundOffset) or not isinstance(end, FoundOffset):
            raise TypeError("errors are the caller's")
        if cursor.fetch_offset < start.offset:
            self._report(cursor, GapReason.RETENTION, cursor.fetch_offset, start.offset)
        elif cursor.fetch_offset > end.offset:
            self._cut_back(cursor, end.offset)
        else:
            # It is in the range by now, or the leader no longer knows the epoch of its batches.
            cursor.fetch_epoch = UNKNOWN
            wait_s = self._around.cluster.policy.backoff_s(cursor.attempt, self._around.rng)
            error = OffsetOutOfRangeError(
                f"{cursor.topic_partition}: offset {cursor.fetch_offset} was refused, although the "
                f"log goes from {start.offset} to {end.offset}"
            )
            self._fail(cursor, error, wait_s, self._around.cluster.policy.deadline_s)

    def _cut_back(self, cursor: PartitionCursor, end_offset: int) -> None:
        """The log ends, or differs from what was fetched, at `end_offset`."""
        position, fetched = cursor.position, cursor.fetch_offset
        cursor.rewind()
        if end_offset < position:
            self._report(cursor, GapReason.TRUNCATED, position, end_offset)
        elif fetched == position:
            # Nothing to go back to: the leader has no batch of that epoch, as behind compaction.
            cursor.position_epoch = cursor.fetch_epoch = UNKNOWN
        # Else nothing is lost but what nobody has taken; it is fetched again from there.

    def _report_hole(self, cursor: PartitionCursor, hole: Hole) -> None:
        self._report(cursor, GapReason.MISSING, hole.start, hole.end)

    def _report(self, cursor: PartitionCursor, reason: GapReason, offset: int, resume: int) -> None:
        """Stop before a gap; the reader hears of it when it has taken what is in front."""
        report_gap(self._around, cursor, reason, offset, resume)

    async def _is_sparse(self, topic: str) -> bool:
        """Return whether a topic is compacted, so that offsets may be missing; ask once.

        Where nobody may ask or nobody answers, that is taken for granted, and logged.
        """
        around = self._around
        known = around.sparse_topics.get(topic)
        if known is not None:
            return known
        try:
            is_sparse = await around.cluster.run(
                around.cluster.any_node, lambda node: is_compacted(node, topic)
            )
        except (TransportError, WireError, ProtocolError) as error:
            is_sparse = True
            log_event(
                logging.WARNING,
                "Treated a topic with missing offsets as compacted",
                topic=topic,
                error=error_name(error),
                reason=error,
            )
        around.sparse_topics[topic] = is_sparse
        return is_sparse


def _lags(cursor: PartitionCursor) -> WireError:
    """Return the error of a follower that does not have what was read before.

    It cannot tell its own end from that of the log, or of an epoch: the leader can.
    """
    return OffsetNotAvailableError(f"{cursor.topic_partition}: the follower lags behind")
