"""Queue of one partition: batches from open to done, sequence numbers, repetitions. Pure.

One batch takes records; sealed ones wait; up to `INFLIGHT_MAX` are on the wire. What failed waits
again at its old place, and goes out again only when nothing of the partition is on the wire, so
that batches are appended in the order in which their records were given.

A batch keeps its producer id, epoch and sequence for all attempts, which is what lets a leader
recognise a repetition. It is numbered anew only in a new epoch, which begins when the leader misses
something for good (KIP-360), and only after every batch of the old epoch has been answered: what
may be in the log is first repeated under its old number. Epochs are counted per partition; leaders
compare them per partition too.
"""

import math
from collections import deque
from collections.abc import Iterator
from itertools import takewhile
from uuid import UUID

from dlog.batch.build import BatchBuilder, restamp
from dlog.client.futures import BatchResult
from dlog.client.producing.produce_window import INFLIGHT_MAX, ProduceWindow
from dlog.client.producing.producer_identity import NO_SEQUENCE, ProducerIdentity
from dlog.types import ZERO_TOPIC_ID

SEQUENCE_MASK = 0x7FFF_FFFF
EPOCH_MAX = 0x7FFF
NO_LEADER = (-1, -1)
ACKS_ALL = -1
ACKS_NONE = 0


class Batch:
    """Records of one partition on their way. Life: open, sealed, sent any number of times, done."""

    __slots__ = (
        "attempts",
        "base_sequence",
        "builder",
        "bytes_held",
        "created_s",
        "data",
        "deadline_s",
        "in_doubt",
        "last_error",
        "may_be_written",
        "order",
        "producer_epoch",
        "producer_id",
        "queue",
        "record_count",
        "result",
    )

    def __init__(
        self,
        queue: "PartitionQueue",
        builder: BatchBuilder,
        result: BatchResult,
        *,
        created_s: float,
        deadline_s: float,
    ) -> None:
        self.queue = queue
        self.builder = builder
        self.result = result
        self.created_s = created_s
        self.deadline_s = deadline_s
        self.bytes_held = 0
        self.record_count = 0  # known once sealed
        # Place among the batches of the partition; the parts of a split one stay at its place.
        self.order: tuple[int, ...] = ()
        self.data: bytearray | None = None
        self.attempts = 0
        # Whether its last attempts may have appended it: it must not be numbered anew then.
        self.in_doubt = False
        # Whether any attempt may have, or may still: it waits in a connection that was given up.
        self.may_be_written = False
        self.last_error: Exception | None = None
        self.producer_id = -1
        self.producer_epoch = -1
        self.base_sequence = NO_SEQUENCE

    @property
    def size_bytes(self) -> int:
        """Bytes on the wire; before they are made, without compression."""
        return self.builder.size_bytes if self.data is None else len(self.data)

    def number(self, producer_id: int, epoch: int, base_sequence: int) -> None:
        """Give the batch its number; bytes that were made before are changed."""
        self.producer_id = producer_id
        self.producer_epoch = epoch
        self.base_sequence = base_sequence
        if self.data is not None:
            restamp(
                self.data,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=base_sequence,
            )

    def encoded(self) -> bytearray:
        """Return the bytes of the batch, made when they are first asked for."""
        if self.data is None:
            self.data = self.builder.build(
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                base_sequence=self.base_sequence,
            )
        return self.data


class PartitionQueue:
    """The batches of one partition. Owner: the accumulator.

    Invariant: `waiting` is in the order of `Batch.order`; those that have a sequence come first.
    """

    __slots__ = (
        "_next_order",
        "acks",
        "epoch",
        "identity",
        "inflight",
        "is_known",
        "is_retired",
        "is_settling",
        "leader",
        "needs_epoch",
        "needs_id",
        "next_sequence",
        "not_before_s",
        "open",
        "partition",
        "producer_id",
        "topic",
        "topic_id",
        "waiting",
        "window",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        identity: ProducerIdentity | None,
        acks: int = ACKS_ALL,
        topic_id: UUID = ZERO_TOPIC_ID,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id  # zero: the cluster does not tell
        self.partition = partition
        self.identity = identity  # None: not idempotent
        self.acks = acks  # as on the wire
        # The topic was made anew, or would get a gap: what is on the wire is the last of it.
        self.is_retired = False
        # Whether `leader` knows this producer and epoch. One that does not takes any sequence, so
        # that the second batch could overtake the first: one goes at a time until then. Without
        # sequences that holds always.
        self.is_known = False
        self.leader = NO_LEADER  # node id and leader epoch, of what is on the wire
        self.open: Batch | None = None
        self.waiting: deque[Batch] = deque()
        self.inflight: list[Batch] = []
        self.window = ProduceWindow()
        self.is_settling = False  # something failed: wait for the answers to the others
        self.needs_epoch = False
        self.needs_id = False
        self.not_before_s = 0.0
        self.producer_id = -1
        self.epoch = -1
        self.next_sequence = 0
        self._next_order = 0

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    def shun(self, producer_id: int) -> None:
        """Number nothing under this id: batches of a queue before this one may still arrive.

        A leader could take the first ones of this queue for repetitions of those.
        """
        if self.identity is not None and producer_id >= 0:
            self.producer_id = producer_id
            self.needs_epoch = self.needs_id = True

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing under way."""
        return self.open is None and not self.waiting and not self.inflight

    def batches(self) -> Iterator[Batch]:
        """Yield all batches, in no particular order."""
        yield from self.inflight
        yield from self.waiting
        if self.open is not None:
            yield self.open

    def seal(self) -> None:
        """Let the open batch take no more records."""
        batch = self.open
        if batch is None:
            return
        self.open = None
        batch.record_count = batch.builder.record_count
        self.add_sealed(batch)

    def drop_open(self) -> None:
        """Forget the open batch, which ends unsent."""
        if self.open is not None:
            self.open.record_count = self.open.builder.record_count
            self.open = None

    def add_sealed(self, batch: Batch) -> None:
        """Add a sealed batch behind all others."""
        batch.order = (self._next_order,)
        self._next_order += 1
        self.waiting.append(batch)

    # What may be sent, and when

    def follow(self, leader: tuple[int, int]) -> bool:
        """Send to this leader (node id, leader epoch) from now on; False: not yet.

        What is on the wire to another leader is awaited first. A new leader may lack what that one
        had told the producer, even that there is such a producer; it would take the next batch, and
        a repetition of the one before it would come too late.
        """
        if leader != self.leader:
            if self.inflight:
                return False
            self.leader = leader
            self.is_known = False
        return True

    @property
    def has_room(self) -> bool:
        """Whether one more may be on the wire."""
        if not self.inflight:
            return True
        if not self.is_known or len(self.inflight) >= INFLIGHT_MAX:
            return False
        return not (self.window or self.waiting) or self._is_in_reach()

    def _is_in_reach(self) -> bool:
        """Return whether a leader that has the next batch too knows the oldest on the wire."""
        oldest = min(batch.order for batch in self.inflight)
        if self.waiting:
            batch = self.waiting[0]
            if batch.may_be_written or batch.order < oldest:
                return True  # it lies there already, or is itself the oldest
        numbered = takewhile(lambda each: each.base_sequence >= 0, self.waiting)
        doubtful = sum(each.may_be_written for each in numbered)
        return self.window.has_room(oldest, len(self.inflight) + doubtful)

    def due_s(self, now_s: float, linger_s: float, rush: bool) -> float:
        """Return from when on something may be sent, if nothing happens until then.

        `rush`: memory is short, so that nothing lingers.
        """
        if not self.has_room or (self.is_settling and self.inflight):
            return math.inf
        if self.needs_epoch and self.inflight and not any(b.in_doubt for b in self.waiting):
            return math.inf
        if self.waiting:
            return self.not_before_s
        batch = self.open
        if batch is None:
            return math.inf
        # Somebody waits for it. With another one on the wire, company may come until its answer.
        if rush or (batch.result.is_urgent and not self.inflight):
            return self.not_before_s
        return max(self.not_before_s, batch.created_s + linger_s)

    def deadline_s(self) -> float:
        """Return when the first batch has to be done."""
        deadline_s = math.inf if self.open is None else self.open.deadline_s
        for batch in self.inflight:
            if not batch.result.is_done:
                deadline_s = min(deadline_s, batch.deadline_s)
        if self.waiting:
            deadline_s = min(deadline_s, self.waiting[0].deadline_s)
        return deadline_s

    def take(self) -> Batch | None:
        """Return the batch to be sent now, numbered; None when there is none that may be."""
        if not self.has_room or (self.is_settling and self.inflight):
            return None
        self.is_settling = False
        batch = self._next()
        if batch is not None:
            self.waiting.remove(batch)
            self.inflight.append(batch)
            batch.attempts += 1
        return batch

    def _next(self) -> Batch | None:
        if self.needs_epoch:
            doubtful = next((each for each in self.waiting if each.in_doubt), None)
            if doubtful is not None:
                # Who does not know the producer would take it before the ones that wait before it.
                return doubtful if self.is_known else self.waiting[0]
            if self.inflight or not self._begin_epoch():
                return None
        if not self.waiting:
            self.seal()
        batch = self.waiting[0] if self.waiting else None
        if batch is None or self.identity is None or batch.base_sequence >= 0:
            return batch
        return batch if self._number(batch) else None

    # Numbers

    def _number(self, batch: Batch) -> bool:
        """Number a batch for the first time; False when that has to wait."""
        identity = self.identity
        assert identity is not None
        if identity.producer_id != self.producer_id:
            # Another id begins when all that was numbered under the old one is answered.
            if self.inflight or identity.producer_id < 0:
                identity.is_wanted = identity.producer_id < 0
                return False
            self.producer_id, self.epoch = identity.producer_id, identity.epoch
            self.next_sequence = 0
            self.is_known = False
            self.window.clear()
        batch.number(self.producer_id, self.epoch, self.next_sequence)
        self._advance(batch)
        return True

    def _advance(self, batch: Batch) -> None:
        self.next_sequence = (self.next_sequence + batch.record_count) & SEQUENCE_MASK

    def _begin_epoch(self) -> bool:
        """Number what waits from 0 in a new epoch; False when a new producer id has to come."""
        identity = self.identity
        assert identity is not None
        assert not self.inflight
        if identity.producer_id != self.producer_id:
            self.producer_id, self.epoch = identity.producer_id, identity.epoch
        elif self.needs_id or self.epoch >= EPOCH_MAX:
            identity.is_wanted = True
            return False
        else:
            self.epoch += 1
        self.needs_epoch = self.needs_id = self.is_known = False
        self.window.clear()
        self.next_sequence = 0
        for batch in self.waiting:
            if batch.base_sequence >= 0:
                batch.number(self.producer_id, self.epoch, self.next_sequence)
                self._advance(batch)
        return True

    # Answers

    def is_oldest(self, batch: Batch) -> bool:
        """Return whether no batch before `batch` is still under way."""
        if self.waiting and self.waiting[0].order < batch.order:
            return False
        return not any(other.order < batch.order for other in self.inflight)

    def written(self, batch: Batch) -> None:
        """Take a batch off the wire that is in the log."""
        self.is_known = self.identity is not None
        self.remove(batch)

    def remove(self, batch: Batch) -> None:
        """Take a batch off the wire that is done."""
        self.inflight.remove(batch)
        self.pass_by(batch)
        if not self.inflight:
            self.is_settling = False

    def pass_by(self, batch: Batch) -> None:
        """Note a batch that is done, and may be in the log, where an older one is not done yet."""
        if self.identity is not None and not self.is_oldest(batch):
            self.window.add(batch.order)

    def retry(self, batch: Batch, not_before_s: float) -> None:
        """Put a batch that failed back at its place."""
        self.inflight.remove(batch)
        self.is_settling = bool(self.inflight)
        self.not_before_s = max(self.not_before_s, not_before_s)
        self.insert(batch)

    def insert(self, batch: Batch) -> None:
        """Put a batch among those that wait, where its order says."""
        at = 0
        while at < len(self.waiting) and self.waiting[at].order < batch.order:
            at += 1
        self.waiting.insert(at, batch)

    def give_back_number(self, batch: Batch) -> None:
        """Use the sequence of a batch that was certainly not appended again, if nothing follows."""
        following = (batch.base_sequence + batch.record_count) & SEQUENCE_MASK
        is_last = following == self.next_sequence and batch.producer_id == self.producer_id
        if batch.base_sequence >= 0 and is_last and batch.producer_epoch == self.epoch:
            self.next_sequence = batch.base_sequence
