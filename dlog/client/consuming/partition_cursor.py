"""Cursor of one partition: records returned, records at hand, next offset to fetch.

Pure: time is passed in. `dlog.client.consuming.fetcher` puts chunks in and errors on, the consumer
takes records out; both on the loop's thread.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TypeVar
from uuid import UUID

from dlog.batch.columns import Columns, decode_columns
from dlog.batch.decoding import OPENED_BYTES_ENOUGH, Opening, bounds, read_shaped
from dlog.batch.records import RECORDS_BYTES_MAX
from dlog.client.bad_batches import BadBatch
from dlog.client.consumed import ConsumedRecord, fitting
from dlog.client.consuming.fetched_batches import BatchSpan, FetchedBatches
from dlog.client.gaps import Gap
from dlog.client.views import PartitionLeader
from dlog.errors import DlogError, WireError
from dlog.types import ZERO_TOPIC_ID, TopicPartition

T = TypeVar("T")

UNKNOWN = -1
NO_END = 2**63 - 1
NO_COLUMNS = decode_columns([])

_GUESS_FACTOR, _GUESS_BYTES_MIN = 1.25, 64 * 1024
_EMPTY_ANSWERS_ENOUGH = 2
"""So many answers without data of one node, though the log goes on behind the end, and nothing is
left there: the last records were compacted away."""


class Packed(NamedTuple):
    """Whole batches, checked and still packed; records before `start_offset` were taken before."""

    views: list[memoryview]
    start_offset: int


class PartitionCursor:
    """The reader's place in one partition. Owner: the loop's thread.

    Invariant: `position <= fetch_offset`; what lies between is in chunks, without a hole.
    Invariant: with a gap, a bad batch or a failure nothing is fetched. With a bad batch nothing is
    at hand, and `position` is in that batch.
    """

    __slots__ = (
        "_chunks",
        "_decoded",
        "_decoded_bytes",
        "_decoded_end",
        "_next_decoded",
        "_opening",
        "attempt",
        "bad_batch",
        "buffered_bytes",
        "damage_count",
        "empty_count",
        "end_offset",
        "failing_since_s",
        "failure",
        "fetch_epoch",
        "fetch_offset",
        "gap",
        "generation",
        "given_bytes",
        "high_watermark",
        "is_paused",
        "last_stable_offset",
        "leader",
        "leader_only_until_s",
        "log_start_offset",
        "position",
        "position_epoch",
        "record_bytes",
        "replica_id",
        "replica_until_s",
        "retry_at_s",
        "topic_id",
        "topic_partition",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        position: int,
        end_offset: int = NO_END,
        *,
        epoch: int = UNKNOWN,
        batch_bytes_max: int = RECORDS_BYTES_MAX,
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id: UUID = ZERO_TOPIC_ID
        self.leader: PartitionLeader | None = None
        # Of the follower to read from, as the leader said (KIP-392), and for how long.
        self.replica_id = UNKNOWN
        self.replica_until_s = 0.0
        # A follower failed: until then the leader is not to name one.
        self.leader_only_until_s = 0.0
        self.is_paused = False
        # Nothing is fetched from here on; batches that begin before it come whole.
        self.end_offset = end_offset
        self.empty_count = 0
        # What the records up to the end take, as far as that can be guessed; 0: as much as may be.
        self.record_bytes = 0.0
        # Of the next record to hand out, and the epoch of the batch before it.
        self.position = position
        self.position_epoch = epoch
        # Of the next record to ask for, and the epoch of the batch before it.
        self.fetch_offset = position
        self.fetch_epoch = epoch
        # Raised by everything that makes an answer under way useless.
        self.generation = 0
        self.buffered_bytes = 0
        self.high_watermark = UNKNOWN
        self.last_stable_offset = UNKNOWN
        self.log_start_offset = UNKNOWN
        self.gap: Gap | None = None
        self.bad_batch: BadBatch | None = None
        self.failure: DlogError | None = None
        self.attempt = 0  # errors since the last success, and of these damaged batches
        self.damage_count = 0
        self.failing_since_s: float | None = None
        self.retry_at_s = 0.0
        self._chunks: deque[FetchedBatches] = deque()
        # Records decoded and not handed out: they begin at `position`. None are kept by seeks.
        self._decoded: list[ConsumedRecord] = []
        self._next_decoded = 0
        self._decoded_end = 0
        self._decoded_bytes = 0
        # What the records took, decompressed, that were taken last.
        self.given_bytes = 0
        self._opening = Opening(batch_bytes_max, OPENED_BYTES_ENOUGH)

    @property
    def has_data(self) -> bool:
        """Whether there are records to take, most likely."""
        return bool(self._chunks)

    @property
    def has_decoded(self) -> bool:
        """Whether records can be taken without decoding any."""
        return self._next_decoded < len(self._decoded)

    @property
    def kept_bytes(self) -> int:
        """What the batches take, decompressed, whose records were decoded and not handed out."""
        return self._decoded_bytes if self.has_decoded else 0

    @property
    def is_at_end(self) -> bool:
        """Whether everything before `end_offset` was taken."""
        return self.fetch_offset >= self.end_offset and not self._chunks

    @property
    def is_at_follower(self) -> bool:
        """Whether this is read from another node than the leader."""
        return self.replica_id != UNKNOWN

    @property
    def source_id(self) -> int:
        """The node to fetch from, UNKNOWN while nobody is known to lead."""
        if self.leader is None or self.replica_id != UNKNOWN:
            return self.replica_id
        return self.leader.node_id

    @property
    def obstacle(self) -> Gap | BadBatch | None:
        """What reading cannot pass without a seek."""
        return self.gap or self.bad_batch

    @property
    def is_in_trouble(self) -> bool:
        """Whether the reader must hear of something before more is fetched."""
        return self.obstacle is not None or self.failure is not None

    def is_fetchable(self, now_s: float) -> bool:
        """Whether more may be asked for now, leaving aside how much is at hand."""
        return (
            not self.is_paused
            and self.leader is not None
            and not self.is_in_trouble
            and self.retry_at_s <= now_s
            and self.fetch_offset < self.end_offset
        )

    def bytes_to_end(self, bytes_max: int) -> int:
        """Return how much to ask for, so that little comes that lies behind the end."""
        if not self.record_bytes:
            return bytes_max
        guess = (self.end_offset - self.fetch_offset) * self.record_bytes * _GUESS_FACTOR
        return min(bytes_max, int(guess) + _GUESS_BYTES_MIN)

    # What comes in

    def add(self, chunk: FetchedBatches) -> None:
        """Take in what was fetched from `fetch_offset` on."""
        if chunk.end_offset > self.fetch_offset:
            if self.record_bytes:
                self.record_bytes = chunk.size_bytes / (chunk.end_offset - self.fetch_offset)
            self.empty_count = 0
            self.fetch_offset = chunk.end_offset
            self.fetch_epoch = chunk.leader_epoch
            self.buffered_bytes += chunk.size_bytes
            self._chunks.append(chunk)
            self._settle(self.position)
        self.succeed()

    def add_nothing(self, readable_offset: int) -> None:
        """Note an answer without data of a log that can be read up to `readable_offset`."""
        self.succeed()
        if self.fetch_offset < self.end_offset <= readable_offset:
            self.empty_count += 1
            if self.empty_count >= _EMPTY_ANSWERS_ENOUGH:
                self.fetch_offset = self.end_offset

    def succeed(self) -> None:
        """Note that the partition answers."""
        self.attempt = 0
        self.damage_count = 0
        self.failing_since_s = None

    def fail(self, error: DlogError, now_s: float, wait_s: float, patience_s: float) -> bool:
        """Note an error that may pass; return whether it has lasted too long and became final.

        Nothing is fetched for `wait_s`; a final error nothing until it was handed out.
        """
        self.attempt += 1
        self.retry_at_s = now_s + wait_s
        if self.failing_since_s is None:
            self.failing_since_s = now_s
        if now_s + wait_s - self.failing_since_s < patience_s:
            return False
        self.failure = error
        return True

    def take_failure(self) -> DlogError | None:
        """Return the failure to hand out, once: then fetching is tried again."""
        failure, self.failure = self.failure, None
        if failure is not None:
            self.failing_since_s = None
            self.damage_count = 0
        return failure

    # Moves

    def seek(self, offset: int, epoch: int = UNKNOWN) -> None:
        """Go on from `offset`, forgetting what is at hand, gaps, bad batches and failures.

        `epoch`: of the batch before it, or a later one in which the log did not end before it.
        """
        self.position = offset
        self.position_epoch = epoch
        self.gap = None
        self.bad_batch = None
        self.failure = None
        self.rewind()
        self.succeed()
        self.retry_at_s = 0.0

    def rewind(self) -> None:
        """Forget what is at hand: it will be fetched again."""
        self.generation += 1
        self._chunks.clear()
        self._forget_decoded()
        self.buffered_bytes = 0
        self.empty_count = 0
        self.fetch_offset = self.position
        self.fetch_epoch = self.position_epoch

    def lose_leader(self) -> None:
        """Forget who leads, and whom it named; an answer of either is useless now."""
        self.leader = None
        self.replica_id = UNKNOWN
        self.empty_count = 0
        self.generation += 1

    def _forget_decoded(self) -> None:
        self._decoded = []
        self._next_decoded = 0

    # What goes out

    def take_records(self, count_max: int, bytes_max: int | None = None) -> list[ConsumedRecord]:
        """Return the next records, in order, at most so many; none only when none are at hand.

        At most `bytes_max` of whole records, but always one. If the next batch cannot be decoded,
        none are at hand, and `bad_batch` is set.
        """
        while self._chunks and not self.has_decoded:
            self._decode(count_max, bytes_max)
        if self._next_decoded == 0 and len(self._decoded) <= count_max and bytes_max is None:
            records = self._decoded
        else:
            last = min(self._next_decoded + count_max, len(self._decoded))
            records = self._decoded[self._next_decoded : last]
            if bytes_max is not None:
                del records[fitting(records, bytes_max) :]
        if not records:
            return records
        self.given_bytes = self._decoded_bytes * len(records) // len(self._decoded)
        self._next_decoded += len(records)
        if self.has_decoded:
            self._settle(records[-1].offset + 1)
        else:
            self._forget_decoded()
            self._settle(self._decoded_end)
        return records

    def _decode(self, count_max: int, bytes_max: int | None) -> None:
        """Decode the next batches, for `count_max` records; more only to the end of a batch."""
        wanted = bounds(self.position, None, None, bytes_max)
        place = (self.topic_partition.topic, self.topic_partition.partition)
        found = self._try(
            count_max,
            lambda views: read_shaped(
                views, wanted, ConsumedRecord, place, opening=self._opening, verify_crc=False
            ),
        )
        if found is None:
            return
        self._decoded, self._decoded_end, self._decoded_bytes = found
        self._next_decoded = 0
        if not self._decoded:
            self._settle(self._decoded_end)

    def _try(self, count_max: int, decode: Callable[[list[memoryview]], T]) -> T | None:
        """Decode the next batches for `count_max` records; None if the first one is bad.

        If a later batch is bad, the batches before it are decoded one by one from now on.
        """
        chunk = self._chunks[0]
        last = chunk.select(count_max)
        try:
            return decode(chunk.views(last))
        except WireError as error:
            if last == chunk.next_batch + 1:
                self._stop_at(chunk.batches[chunk.next_batch], error)
                return None
        chunk.take_alone(last)
        return self._try(count_max, decode)

    def _stop_at(self, span: BatchSpan, cause: WireError) -> None:
        """Stop at a batch that cannot be decoded, until the reader seeks."""
        self.position = max(self.position, span.base_offset)
        self.bad_batch = BadBatch(self.topic_partition, span.base_offset, span.next_offset, cause)
        self.rewind()

    def take_columns(self, count_max: int, bytes_max: int | None = None) -> Columns:
        """Return the next records as columns, from one chunk, else as `take_records` does."""
        self._forget_decoded()
        columns = NO_COLUMNS

        def decode(views: list[memoryview]) -> Columns:
            return decode_columns(
                views,
                start_offset=self.position,
                max_records=count_max,
                max_bytes=bytes_max,
                opening=self._opening,
                verify_crc=False,
            )

        while self._chunks and not len(columns):
            found = self._try(count_max, decode)
            if found is not None:
                columns = found
                self.given_bytes = len(columns.keys.data) + len(columns.values.data)
                self._settle(columns.next_offset)
        return columns

    def take_packed(self) -> Packed | None:
        """Return the next whole batches, for somebody who decodes them elsewhere."""
        self._forget_decoded()
        if not self._chunks:
            return None
        chunk = self._chunks[0]
        packed = Packed(chunk.views(len(chunk.batches)), self.position)
        self._settle(chunk.end_offset)
        return packed

    def _settle(self, offset: int) -> None:
        """Move on to `offset`, past everything there that holds no record."""
        self.position = offset
        while self._chunks:
            chunk = self._chunks[0]
            epoch = chunk.skip_to(self.position)
            if epoch != UNKNOWN:
                self.position_epoch = epoch
            if not chunk.is_spent:
                return
            self._chunks.popleft()
            self.buffered_bytes -= chunk.size_bytes
            self.position = chunk.end_offset
            self.position_epoch = chunk.leader_epoch
        assert self.position <= self.fetch_offset
